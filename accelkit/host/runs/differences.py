"""What two recorded runs have not in common, from their records alone: what went in, and what came out."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from accelkit.contract import codec
from accelkit.contract.data import data
from accelkit.host.runs.record import CodeState, FileDigest, Record

Kind = Literal[
    "command", "config", "code", "environment", "seeds", "image", "runtime", "packages", "hardware", "inputs", "outcome",
    "metrics", "outputs",
]  # fmt: skip
NOT_THERE: Final = "not there"
_HARDWARE: Final = ("hostname", "kernel", "machine", "cpu", "cores", "memory", "gpus", "tpu")


@data
class Unlike:
    """One thing that two runs have otherwise."""

    kind: Kind
    what: str
    first: Any
    """As it is recorded, not as it may be shown: it may be secret."""
    second: Any


def between(first: Record, second: Record) -> list[Unlike]:
    """All differences: what went in, in the order in which it decides, then what came out. Empty: the runs are alike."""
    return [*_went_in(first, second), *_came_out(first, second)]


def _went_in(first: Record, second: Record) -> Iterator[Unlike]:
    if first.command[1:] != second.command[1:]:
        yield Unlike(kind="command", what="kit", first=list(first.command[1:]), second=list(second.command[1:]))
    yield from _pairs("config", _config(first), _config(second))
    yield from _pairs("code", _code(first), _code(second))
    yield from _pairs("environment", first.environment, second.environment)
    yield from _pairs("seeds", first.seeds, second.seeds)
    yield from _pairs("image", _image(first), _image(second))
    yield from _pairs("runtime", {"accelkit's": first.runtime_digest[:19]}, {"accelkit's": second.runtime_digest[:19]})
    yield from _pairs("packages", _packages(first), _packages(second))
    yield from _pairs("hardware", *({n: r.hardware.get(n) for n in _HARDWARE} for r in (first, second)))
    yield from _pairs("inputs", _digests(first.inputs), _digests(second.inputs))


def _came_out(first: Record, second: Record) -> Iterator[Unlike]:
    yield from _pairs("outcome", _outcome(first), _outcome(second))
    yield from _pairs("metrics", *({n: f"{m.value} ({m.hex})" for n, m in r.metrics.items()} for r in (first, second)))
    yield from _pairs("outputs", _digests(first.outputs), _digests(second.outputs))
    yield from _pairs("outputs", _digests(first.workdir_outputs), _digests(second.workdir_outputs))


def _pairs(kind: Kind, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Unlike]:
    for name in sorted({*first, *second}):
        if (name in first, first.get(name)) != (name in second, second.get(name)):
            one, other = (side.get(name, NOT_THERE) for side in (first, second))
            yield Unlike(kind=kind, what=name, first=one, second=other)


def _config(record: Record) -> dict[str, Any]:
    return {key: found.value for key, found in record.config.items()}


def _image(record: Record) -> dict[str, str]:
    return {record.image.reference: record.image.id[:19]} if record.image else {}


def _packages(record: Record) -> dict[str, str]:
    return {**record.packages, **record.node_packages}


def _outcome(record: Record) -> dict[str, Any]:
    return {"state": record.outcome.state, "exit code": record.outcome.exit_code} if record.outcome else {}


def _digests(files: Mapping[str, FileDigest]) -> dict[str, str]:
    return {name: _short(digest) for name, digest in files.items()}


def _short(digest: FileDigest) -> str:
    return digest.link or digest.sha256[:12] or f"{digest.size} bytes"


def _code(record: Record) -> dict[str, str]:
    """The commit and every file that is not as committed; outside of git every file."""
    code = record.code
    found = {"commit": code.commit[:12]} if code.commit else {}
    found |= {change.path: f"{change.status} {change.content[-40:][:12]}" for change in code.changed}
    found |= {submodule.path: submodule.commit[:12] for submodule in code.submodules}
    return found | _digests({**_manifest(Path(record.plan.run_dir), code), **code.left_out})


def _manifest(run_dir: Path, code: CodeState) -> dict[str, FileDigest]:
    """Files of a copy; none where the record's own list of them is gone."""
    path = run_dir / code.manifest.name if code.manifest else None
    if path is None or not path.is_file():
        return {}
    return codec.loads(dict[str, FileDigest], path.read_bytes().decode("utf-8", "surrogateescape"))
