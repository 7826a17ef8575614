"""The data of images/: without contradictions, each kind of which is found; a folder dropped in is an image."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from accelkit.host import paths
from accelkit.host.errors import KitError, UsageError
from accelkit.host.image import catalogue, contradictions, fit, variants
from accelkit.host.image.catalogue import Build, DeviceRules

NAMES = catalogue.names()


def test_the_data_holds_no_contradiction() -> None:
    """What ci/check-images says of the checkout."""
    assert contradictions.find() == []
    assert {"cpu", "cuda", "tpu", "rocm", "xpu"} <= set(NAMES)


def test_each_kind_of_contradiction_is_found() -> None:
    """Data that is wrong in one place is one sentence, which names the file."""
    spec, known = catalogue.load("cuda"), catalogue.compatibility("cuda")
    newer = known.builds["cu130"]

    def of_spec(**changes: object) -> list[str]:
        return list(contradictions.of_spec("cuda", dataclasses.replace(spec, **changes), known))  # type: ignore[arg-type]

    def of_data(**changes: object) -> list[str]:
        return list(contradictions.of_compatibility("cuda", dataclasses.replace(known, **changes)))  # type: ignore[arg-type]

    assert "name is cpu" in of_spec(name="cpu")[0]
    assert "has no base" in of_spec(python="3.9")[0]
    assert "are no variant" in of_spec(build="cu128")[0]
    assert "the same for every build" in of_spec(torch_index="x")[0]
    assert "for which there is no torch" in of_spec(base={**spec.base, "3.9": "python:3.9"})[0]
    assert "shm" in of_spec(shm="much")[0]
    assert "zero is not one" in of_spec(strategies=("ddp", "zero"))[0]
    assert "family" in of_data(family="rocm")[0]
    assert "no source" in of_data(sources=())[0]
    assert "newest first" in of_data(torch=dict(reversed(known.torch.items())))[0]
    assert (
        "is said to be of version 13.1"
        in of_data(builds={**known.builds, "cu130": dataclasses.replace(newer, cuda="13.1")})[0]
    )
    assert "an older driver" in of_data(builds={**known.builds, "cu130": dataclasses.replace(newer, driver="500")})[0]
    assert (
        "different oldest drivers"
        in of_data(builds={**known.builds, "cu126": dataclasses.replace(known.builds["cu126"], driver="530")})[0]
    )
    assert "missing" in of_data(builds={**known.builds, "cu130": dataclasses.replace(newer, driver=None)})[0]
    assert (
        "no torch version has it"
        in of_data(builds={**known.builds, "cu140": dataclasses.replace(newer, cuda="14.0")})[0]
    )


def test_a_folder_dropped_into_images_is_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Python is changed: it is listed, its variants are chosen from, its device rules are read, and its data is checked."""
    images = tmp_path / "images"
    shutil.copytree(paths.data_folder("images"), images)
    shutil.copytree(images / "rocm", images / "npu")
    for file in ("image.yaml", "compatibility.yaml"):
        text = (
            (images / "npu" / file)
            .read_text()
            .replace("name: rocm", "name: npu")
            .replace("family: rocm", "family: npu")
        )
        (images / "npu" / file).write_text(text.replace("/dev/kfd", str(tmp_path / "npu0")))
    monkeypatch.setattr(paths, "data_folder", lambda name: tmp_path / name)

    assert "npu" in catalogue.names()
    assert variants.choose(catalogue.load("npu"), catalogue.compatibility("npu"), variants.Wanted()).name == "rocm7.1"
    assert catalogue.devices("npu").paths == (str(tmp_path / "npu0"), "/dev/dri")
    assert not fit.present(catalogue.devices("npu"))
    (tmp_path / "npu0").touch()
    assert fit.present(catalogue.devices("npu"))
    assert contradictions.find() == []
    (images / "npu" / "Dockerfile").unlink()
    assert contradictions.find() == ["images/npu/Dockerfile: not there"]


def test_unknown_names_and_damaged_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest image, or the file and the field."""
    with pytest.raises(UsageError, match="no image is named 'cdua'") as told:
        catalogue.load("cdua")
    assert told.value.hint == "did you mean cuda?"
    shutil.copytree(paths.data_folder("images") / "cpu", tmp_path / "images" / "cpu")
    path = tmp_path / "images" / "cpu" / "image.yaml"
    path.write_text(path.read_text().replace("glibc:", "libc:"))
    monkeypatch.setattr(paths, "data_folder", lambda name: tmp_path / name)
    with pytest.raises(KitError, match=r"image.yaml: libc: unknown field"):
        catalogue.load("cpu")


def test_images_that_are_not_in_the_catalogue_ask_for_no_device() -> None:
    """An image of the user's own is run as a CPU image."""
    assert catalogue.devices("somebody/else:1") == DeviceRules()


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_can_be_chosen_by_its_own_words(name: str) -> None:
    """Torch, Python and build together mean that variant and no other."""
    spec, known = catalogue.load(name), catalogue.compatibility(name)
    for variant in variants.every(spec, known):
        wanted = variants.Wanted(
            torch=variant.torch, python=variant.python, build=variant.name, package_index_only=variant.index is None
        )
        assert variants.choose(spec, known, wanted) == variant


def refusal(name: str, **wanted: str | bool) -> tuple[str, str | None]:
    """What is said of a combination that does not exist."""
    with pytest.raises(UsageError) as told:
        variants.choose(catalogue.load(name), catalogue.compatibility(name), variants.Wanted(**wanted))  # type: ignore[arg-type]
    return told.value.message, told.value.hint


def test_impossible_combinations_are_refused_with_the_nearest_possible() -> None:
    """Each wish alone, wishes that exist but not together, and a wish that has no meaning for the image."""
    assert refusal("cuda", cuda="11.8")[1] == "the nearest that exists: --cuda 12.6"
    assert refusal("cuda", torch="2.13.0", cuda="12.8") == (
        "image cuda: torch 2.13.0, cuda 12.8 do not go together", "the nearest that exists: --torch 2.13.0 --cuda 12.6",
    )  # fmt: skip
    assert refusal("tpu", python="3.13")[1] == "the nearest that exists: --python 3.12"
    assert refusal("tpu", torch="2.13.0")[1] == "the nearest that exists: --torch 2.9.0"
    assert "nothing to do with CUDA" in refusal("cpu", cuda="12.6")[0]
    assert "the package index has none of its builds" in refusal("cpu", package_index_only=True)[0]
    assert "not a version" in refusal("cpu", torch="; rm")[0]


def test_drivers_and_gpus_are_compared_with_a_build() -> None:
    """An older driver, a GPU too old, a GPU too new without PTX, and those that fit."""
    known = catalogue.compatibility("cuda").builds

    assert "needs driver 580" in variants.runs_on(known["cu130"], "535.104.05", ())
    assert variants.runs_on(known["cu126"], "535.104.05", ("8.9",)) == ""
    assert "here is 7.0" in variants.runs_on(known["cu130"], "580.10", ("7.0",))
    assert "here is 10.0" in variants.runs_on(known["cu126"], "580.10", ("10.0",))
    assert variants.runs_on(known["cu130"], "580.10", ("8.9", "12.1", "13.0")) == ""
    assert variants.runs_on(known["cu130"], None, ()) == ""
    assert variants.runs_on(Build(), "1", ("1.0",)) == ""
