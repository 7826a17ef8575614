"""The safetensors format: what we write others read, what others write we read, and rubbish is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from accelkit import CheckpointError
from accelkit.runtime.checkpoint import digest, memory, tensorfile
from accelkit.utils import load, save

DTYPES = list(tensorfile._CODES)
SHAPES = [(), (0,), (1,), (3, 2), (2, 0, 3), (2, 3, 4)]


def some(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Different numbers of a type."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 2 if dtype is torch.bool else torch.arange(count) % 16).to(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_we_agree_with_the_library(tmp_path: Path, dtype: torch.dtype) -> None:
    """Every type and shape, both ways, bit for bit."""
    tensors = {f"t{index}": some(dtype, shape) for index, shape in enumerate(SHAPES)}
    digest.write_file(tmp_path / "ours", digest.Inline(), lambda file: tensorfile.write(file, tensors, {}))
    save_file(tensors, tmp_path / "theirs")

    for name, value in load_file(tmp_path / "ours").items():
        assert value.dtype == dtype
        assert value.shape == tensors[name].shape
        assert bytes(memory.view(value)) == bytes(memory.view(tensors[name]))
    for path in (tmp_path / "ours", tmp_path / "theirs"):
        layout = tensorfile.read_layout(path)
        blank = {name: torch.zeros_like(value) for name, value in tensors.items()}
        tensorfile.read_into(path, [(layout.slots[name], blank[name]) for name in blank])
        assert all(bytes(memory.view(blank[n])) == bytes(memory.view(tensors[n])) for n in tensors)


@pytest.mark.parametrize("stage", [1, 7, 64, 10**6])
def test_strides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    """Turned, stepped, expanded and conjugate tensors are written in the order of their elements, and read into such, piece by piece."""
    monkeypatch.setattr(memory, "STAGE", stage)
    base = torch.arange(60.0).reshape(3, 4, 5)
    tensors = {
        "turned": base.permute(2, 0, 1), "stepped": base[:, ::2, 1::2], "part": base[1, 2:], "plain": base,
        "one": base[:1, :1, :1].expand(3, 2, 2), "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
    }  # fmt: skip
    digest.write_file(tmp_path / "f", digest.Inline(), lambda file: tensorfile.write(file, tensors, {}))
    for name, value in load_file(tmp_path / "f").items():
        assert torch.equal(value, tensors[name])
    layout = tensorfile.read_layout(tmp_path / "f")
    blank = {
        "turned": torch.zeros(3, 4, 5).permute(2, 0, 1), "stepped": torch.zeros(3, 4, 5)[:, ::2, 1::2],
        "conjugate": torch.zeros(2, dtype=torch.complex64).conj(), "plain": torch.zeros(5, 4, 3).permute(2, 1, 0),
    }  # fmt: skip
    tensorfile.read_into(tmp_path / "f", [(layout.slots[name], blank[name]) for name in blank])
    assert all(torch.equal(blank[name], tensors[name]) for name in blank)


def test_rubbish(tmp_path: Path) -> None:
    """A file cut anywhere, and headers that lie, are refused."""
    save_file({"a": torch.ones(3, 2), "b": torch.ones(2)}, tmp_path / "f")
    content = (tmp_path / "f").read_bytes()
    for size in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="cut"):
            tensorfile.read_layout(tmp_path / "cut")
    for old, new in [(b"F32", b"X99"), (b"[3,2]", b"[9,9]"), (b"data_offsets", b"data_0ffsets"), (b'"', b"'")]:
        (tmp_path / "lie").write_bytes(content.replace(old, new))
        with pytest.raises(CheckpointError, match="header is damaged"):
            tensorfile.read_layout(tmp_path / "lie")


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
def test_digests_by_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """However a file is written, its digests are those of its chunks; every flipped byte is found."""
    monkeypatch.setattr(digest, "CHUNK", chunk)
    monkeypatch.setattr(digest, "_READ", 2)
    monkeypatch.setattr(digest, "_INLINE", 4)
    content = bytes(range(20))
    with digest.threads() as pool:
        for index, cut in enumerate((1, 3, 20)):
            path = tmp_path / str(index)
            parts = [content[start : start + cut] for start in range(0, 20, cut)]
            written = digest.write_file(path, pool, lambda file, parts=parts: [file.write(part) for part in parts])
            assert path.read_bytes() == content
            assert written == digest.read_digests(path, pool)
            assert len(written.crc32) == -(-20 // chunk)
        for position in range(20):
            path.write_bytes(content[:position] + b"\xff" + content[position + 1 :])
            found = digest.find_damage([("f", path, written)], pool, slice(None))
            assert [damage.start for damage in found] == [position // chunk * chunk]
            shares = [digest.find_damage([("f", path, written)], pool, slice(rank, None, 3)) for rank in range(3)]
            assert sum(map(len, shares)) == 1


def test_save_and_load_single_files(tmp_path: Path) -> None:
    """Objects and tensors come back; ties are stored once; code is not run unless asked; a failed save leaves the older file."""
    shared = torch.ones(2, 3)
    save({"a": shared, "b": shared, "c": shared.t()}, tmp_path / "s.safetensors", safe_serialization=True)
    assert load_file(tmp_path / "s.safetensors").keys() == {"a", "c"}
    save({"n": 1, "t": shared}, tmp_path / "o.pt")
    assert load(tmp_path / "o.pt")["n"] == 1
    before = (tmp_path / "o.pt").read_bytes()
    with pytest.raises((AttributeError, TypeError)):
        save(lambda: None, tmp_path / "o.pt")
    assert (tmp_path / "o.pt").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.pt", "s.safetensors"]
    save({"p": Path("x")}, tmp_path / "p.pt")
    with pytest.raises(Exception, match="weights_only"):
        load(tmp_path / "p.pt")
    assert load(tmp_path / "p.pt", weights_only=False) == {"p": Path("x")}
