"""From what the user asked for to every file of an image: uv resolves, for the image's Python and platform, on this machine.

Two questions are asked: what the image itself needs, and what it needs with the user's requirements, staying as close to the first answer
as they allow. What is in both is the layer with torch, which a new requirement leaves alone.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from accelkit.host import process, render
from accelkit.host.errors import BuildError, UsageError
from accelkit.host.image import catalogue, debian, pyproject, requirements, toml, uv, uvlock
from accelkit.host.image.inputs import MACHINES, Inputs
from accelkit.host.image.lockfile import LockedImage, Package
from accelkit.host.image.names import name_of, without_logins

_TORCH_SOURCE: Final = "pytorch"
Allowed = Mapping[str, Sequence[tuple[Path, frozenset[str]]]]
"""Package -> each requirements file that names the sha256 of the files which it may be."""


def resolve(inputs: Inputs, kept: LockedImage | None = None) -> LockedImage:
    """The image, down to the last file. `kept`: an earlier answer, whose versions stay where they can.

    Raises BuildError with uv's or apt's words where there is no answer.
    """
    with tempfile.TemporaryDirectory(prefix="accelkit-lock-") as name:
        top = Path(name)
        own = _ask(inputs, top / "own", (), kept.packages if kept else {})
        everything = own
        if inputs.requirements:
            everything = _ask(inputs, top / "all", inputs.requirements, {**own, **(kept.packages if kept else {})})
    packages = {
        n: _in_layer(p, torch=n in own and own[n].sha256 == p.sha256) for n, p in everything.items()
    }  # fmt: skip
    return LockedImage(
        torch=inputs.variant.torch,
        build=inputs.variant.name,
        python=inputs.variant.python,
        platform=inputs.platform,
        base=inputs.base,
        recipe=inputs.recipe,
        inputs=inputs.asked,
        apt=inputs.apt,
        debian=debian.resolve(inputs),
        packages=packages,
    )


def _ask(
    inputs: Inputs, folder: Path, wanted: tuple[requirements.Requirements, ...], kept: Mapping[str, Package]
) -> dict[str, Package]:
    folder.mkdir()
    project, answer = folder / "pyproject.toml", folder / "pylock.toml"
    project.write_text(project_text(inputs, wanted))
    files = [_given(inputs, folder, number, item) for number, item in enumerate(wanted)]
    if kept:
        answer.write_text(_as_pylock(kept))
    options = [
        "--format=pylock.toml", f"--output-file={answer}", "--no-header", "--quiet", "--only-binary=:all:", "--python", sys.executable,
        f"--python-version={inputs.variant.python}",
        f"--python-platform={MACHINES[inputs.platform]}-manylinux_{inputs.spec.glibc.replace('.', '_')}",
    ]  # fmt: skip
    options += [f"--find-links={_link(inputs.wheels)}"] if inputs.wheels else []
    options += _settings(inputs, folder, wanted)
    done = process.run(
        [uv.find(), "pip", "compile", str(project), *files, *options],
        cwd=folder,
        env={**_environment(inputs), "UV_NO_CONFIG": "1"},
        drop=uv.PLACES,
    )
    if done.code:
        raise BuildError(
            f"image {inputs.spec.name}: its packages do not resolve:\n{_told(done.stderr, inputs)}",
            hint="packages come from where --index-url and --wheels say; uv's and pip's own settings have no effect here",
        )
    return parse(answer.read_text(), inputs.variant.index, requirements.hashes(wanted))


def project_text(inputs: Inputs, wanted: tuple[requirements.Requirements, ...]) -> str:
    """The project that uv is asked about: torch from its own index and from nowhere else, unless the user has it."""
    also = [name for name in uvlock.SHIPPED_FOR_TORCH if requirements.mentions(wanted, name)]
    needed = [*inputs.variant.requirements, *inputs.spec.packages, *also]
    lines = [
        "[project]", 'name = "image"', 'version = "0"', f'requires-python = "=={inputs.variant.python}.*"',
        f"dependencies = {_toml_list(needed)}",
    ]  # fmt: skip
    if inputs.variant.index:
        lines += [
            "[[tool.uv.index]]",
            f'name = "{_TORCH_SOURCE}"',
            f'url = "{inputs.variant.index}"',
            "explicit = true",
        ]
        lines += ["[tool.uv.sources]"]
        lines += [
            f'{name} = {{ index = "{_TORCH_SOURCE}" }}'
            for name in inputs.spec.torch_index_packages
            if not (name == "torch" and inputs.torch_wheel)
        ]
    return "\n".join(lines) + "\n"


def _settings(inputs: Inputs, folder: Path, wanted: tuple[requirements.Requirements, ...]) -> list[str]:
    """What projects say of how their dependencies resolve. uv takes an override from any index: those of torch's own are constraints."""
    own = {name_of(line) for line in (*inputs.variant.requirements, *inputs.spec.packages)}
    projects = [(item.kind, item.project) for item in wanted if item.project]
    overrides = [line for _, project in projects for line in project.overrides]
    of_torch = [line for line in overrides if name_of(line) in inputs.spec.torch_index_packages]
    constraints = [line for kind, p in projects if kind == pyproject.FILE for line in p.constraints]
    settings = {
        "constraints": [*constraints, *of_torch],
        "overrides": [line for line in overrides if line not in of_torch],
        "excludes": [line for _, p in projects for line in p.excludes if name_of(line) not in own],
    }
    for name, lines in settings.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return [f"--{name}={folder / name}" for name, lines in settings.items() if lines]


def parse(pylock: str, torch_index: str | None, allowed: Allowed | None = None) -> dict[str, Package]:
    """Packages of uv's answer. Raises BuildError for one that is no wheel with a hash, or with none of the hashes that are allowed."""
    found = {}
    for entry in toml.parse(pylock, Path("pylock.toml")).get("packages", []):
        name = entry["name"]
        wheels = [wheel for wheel in entry.get("wheels", []) if "sha256" in wheel.get("hashes", {})]
        if not wheels:
            raise BuildError(
                f"{name} {entry.get('version', '')}: not a wheel that can be told by its hash",
                hint="kit installs wheels of an index or a folder alone: put one into a folder, and name that with --wheels",
            )
        for path, hashes in (allowed or {}).get(name, ()):
            wheels = _allowed(f"{path}: {name} {entry['version']}", wheels, hashes)
        found[name] = _package(entry["version"], max(wheels, key=_closeness), torch_index)
    return found


def _allowed(what: str, wheels: list[dict[str, Any]], hashes: frozenset[str]) -> list[dict[str, Any]]:
    """Those of a package's wheels that a requirements file allows."""
    found = [wheel for wheel in wheels if wheel["hashes"]["sha256"] in hashes]
    if not found:
        have = ", ".join(f"{_file(wheel)} ({wheel['hashes']['sha256']})" for wheel in wheels)
        raise BuildError(
            f"{what}: no wheel with a hash that is allowed there; the index has {have}",
            hint="is it the file that you mean? A hash of its source does not count: kit installs wheels alone",
        )
    return found


def _closeness(wheel: dict[str, Any]) -> int:
    """How closely a wheel is made for the interpreter: several of a version may run on it, and the closest one is compiled."""
    *_, abi, platform = _file(wheel).removesuffix(".whl").split("-")
    return 3 if abi not in ("none", "abi3") else 2 if abi == "abi3" else int(platform != "any")


def _link(folder: Path) -> str:
    """A folder as uv takes one in a list, which commas separate."""
    return folder.as_uri().replace(",", "%2C") if "," in str(folder) else str(folder)


def _file(wheel: dict[str, Any]) -> str:
    return unquote(urlsplit(wheel.get("url") or wheel.get("path") or "").path).rpartition("/")[2]


def _package(version: str, wheel: dict[str, Any], torch_index: str | None) -> Package:
    url, file = wheel.get("url") or wheel.get("path") or "", _file(wheel)
    origin: Literal["index", "torch-index", "wheels"] = "index"
    if not url.startswith(("http://", "https://")):
        origin = "wheels"
    elif torch_index and _host_and_path(url).startswith(_host_and_path(torch_index).rpartition("/")[0]):
        origin = "torch-index"
    return Package(version=version, file=file, sha256=wheel["hashes"]["sha256"], origin=origin)


def _host_and_path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}{parts.path}".rstrip("/")


def _given(inputs: Inputs, folder: Path, number: int, item: requirements.Requirements) -> str:
    """A requirements file as uv takes it: a project's dependencies are written down, what another uv has locked is exported, less torch."""
    path = folder / f"{number:02}.txt"
    if item.kind == pyproject.FILE and item.project:
        path.write_text("".join(f"{line}\n" for line in item.project.dependencies))
        return str(path)
    if item.kind != "uv.lock":
        path.write_text(requirements.without_places(item))
        return str(path)
    done = process.run(
        [uv.find(), "export", "--frozen", "--no-emit-project", "--no-hashes", "--no-header", "--no-annotate", "--no-dev", "--quiet",
         "--project", str(item.path.parent)],
        env=_environment(inputs),
    )  # fmt: skip
    if done.code:
        raise BuildError(f"{item.path}: {_told(done.stderr, inputs)}")
    locked = uvlock.torch_of(done.stdout)
    if locked not in (None, inputs.variant.torch):
        raise UsageError(
            f"{item.path} has torch {locked}, the image {inputs.spec.name} gets {inputs.variant.torch}",
            hint=_other_torch(inputs, str(locked), item.path.parent),
        )
    document = toml.parse(item.text, item.path)
    path.write_text(uvlock.without_torch(done.stdout, document) + _own(item, uvlock.own(document), inputs.wheels))
    return str(path)


def _own(item: requirements.Requirements, names: list[str], wheels: Path | None) -> str:
    """Of a project's own packages those that there is a wheel of; the others are told: what they need is installed, they are not."""
    there = [name for name in names if pyproject.has_wheel(wheels, name)]
    if there != names:
        render.warn(
            f"{item.path}: {', '.join(name for name in names if name not in there)}: not installed, since your own code is mounted\n"
            "     where it is to be installed: uv build --wheel writes its wheel, into a folder that --wheels names"
        )
    return "".join(f"{name}\n" for name in there)


def _other_torch(inputs: Inputs, locked: str, project: Path) -> str:
    """What to type where a project has locked another torch than the image gets."""
    known = catalogue.compatibility(inputs.spec.name).torch
    of_image = [f"kit build {inputs.spec.name} --torch {locked}"] if locked in known else []
    return ", or ".join([*of_image, f"uv add --project {project} 'torch=={inputs.variant.torch}'"])


def _environment(inputs: Inputs) -> dict[str, str]:
    env = dict(uv.QUIET)
    if inputs.index_url:
        env["UV_DEFAULT_INDEX"] = inputs.index_url
    if inputs.ca:
        env["SSL_CERT_FILE"] = str(inputs.ca)
    return env


def _told(words: str, inputs: Inputs) -> str:
    """What uv said, without the address of an index, which may hold a password."""
    for secret in (inputs.index_url, inputs.variant.index):
        words = words.replace(secret, "(the index)") if secret else words
    return without_logins(words).strip()


def _in_layer(package: Package, *, torch: bool) -> Package:
    return replace(package, layer="torch" if torch else "packages")


def _as_pylock(kept: Mapping[str, Package]) -> str:
    """An answer that uv starts from: it keeps these versions where it can."""
    lines = ['lock-version = "1.0"', 'created-by = "accelkit"']
    for name, p in sorted(kept.items()):
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{p.version}"']
        lines += [f'wheels = [{{ url = "https://kept.invalid/{p.file}", hashes = {{ sha256 = "{p.sha256}" }} }}]']
    return "\n".join(lines) + "\n"


def _toml_list(items: list[str]) -> str:
    return "[" + ", ".join(f"'{item}'" for item in items) + "]"
