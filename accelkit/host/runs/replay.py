"""Laying recorded code out again, and what differs today from what was recorded."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from accelkit.contract import codec
from accelkit.host import process
from accelkit.host.errors import RecordError
from accelkit.host.runs import capture
from accelkit.host.runs.record import CodeState, FileDigest, Record
from accelkit.host.runs.store import Store

Kind = Literal["tree", "runtime", "image", "inputs", "packages", "hardware"]
REFUSED: Final = ("image", "inputs", "packages", "hardware", "runtime")
"""Kinds that stop a reproduction unless --allow names them. The tree never does: the recorded code is what runs."""
_STATUS: Final = {None: "as committed", "A": "added", "M": "modified", "D": "deleted", "T": "of another type"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not as it was recorded."""

    kind: Kind
    what: str
    recorded: str
    now: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.kind}: {self.what}: recorded {self.recorded}, now {self.now}"


def lay_out(record: Record, store: Store, target: Path) -> Path:
    """The recorded code under `target` (which must not exist); returns the working folder in it.

    In git a detached worktree at the commit, with the diff applied; elsewhere a copy, each file checked by digest. The user's tree,
    index and branch are not touched. Raises RecordError when something of the code is missing or damaged.
    """
    code = record.code
    if code.kind == "git":
        _worktree(code, store.run_dir(record.run_id), target)
    else:
        _copy(code, store, store.run_dir(record.run_id), target)
    return target / code.subdir


def remove(record: Record, target: Path) -> None:
    """Remove what `lay_out` made; nothing happens when it is gone."""
    if record.code.kind == "git" and Path(record.code.root).is_dir():
        process.run(["git", "-C", record.code.root, "worktree", "remove", "--force", str(target)])
    shutil.rmtree(target, ignore_errors=True)


def _worktree(code: CodeState, run_dir: Path, target: Path) -> None:
    diff = _stored(run_dir, code) if code.diff else None
    done = process.run(
        [
            "git",
            "-C",
            code.root,
            "-c",
            "core.hooksPath=/dev/null",
            "worktree",
            "add",
            "--detach",
            "--force",
            str(target),
            str(code.commit),
        ]
    )
    if done.code:
        raise RecordError(
            f"commit {code.commit} cannot be checked out from {code.root}: {done.stderr.strip().splitlines()[-1]}"
        )
    if diff is not None:
        applied = process.run(["git", "-C", str(target), "apply", "--binary", "--whitespace=nowarn", str(diff)])
        if applied.code:
            raise RecordError(f"{diff}: does not apply to {code.commit}: {applied.stderr.strip()}")


def _stored(run_dir: Path, code: CodeState) -> Path:
    """A file of the record, checked by its digest."""
    stored = code.diff or code.manifest
    if stored is None:
        raise RecordError("the record has no code")
    path = run_dir / stored.name
    if not path.is_file():
        raise RecordError(f"{path}: missing; the recorded code cannot be laid out")
    if hashlib.sha256(path.read_bytes()).hexdigest() != stored.sha256:
        raise RecordError(f"{path}: changed since it was recorded; the recorded code cannot be laid out")
    return path


def _copy(code: CodeState, store: Store, run_dir: Path, target: Path) -> None:
    if not code.complete:
        raise RecordError("the working folder was too large to be kept; it cannot be laid out again")
    manifest = codec.loads(dict[str, FileDigest], _stored(run_dir, code).read_text(encoding="utf-8"))
    for name, digest in manifest.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if digest.link is not None:
            path.symlink_to(digest.link)
            continue
        source = store.objects_dir / digest.sha256
        if not source.is_file() or capture.digest_file(source) != digest:
            raise RecordError(f"{source}: missing or changed; {name} cannot be laid out")
        shutil.copyfile(source, path)


def tree_differences(record: Record, workdir: Path, scratch: Path) -> list[Difference]:
    """Files of the working tree that are not as recorded; `scratch`: a folder for a capture of today's."""
    outputs = record.config["run.outputs"].value
    now = capture.capture_code(workdir, scratch, exclude=outputs)
    then = record.code
    if then.kind == "copy" or now.kind == "copy":
        return _manifest_differences(then, now, workdir, record, scratch)
    found = []
    if then.commit != now.commit:
        found.append(Difference(kind="tree", what="commit", recorded=str(then.commit)[:12], now=str(now.commit)[:12]))
    before, after = ({c.path: c.status for c in state.changed} for state in (then, now))
    old, new = _sections(record.plan.run_dir, then), _sections(str(scratch), now)
    for path in sorted({*before, *after}):
        if old.get(path) != new.get(path):
            words = [_STATUS[before.get(path)], _STATUS[after.get(path)]]
            words[1] = "otherwise" if words[0] == words[1] else words[1]
            found.append(Difference(kind="tree", what=path, recorded=words[0], now=words[1]))
    return found


def _sections(folder: str, code: CodeState) -> dict[str, str]:
    """Path -> its part of the diff."""
    if code.diff is None:
        return {}
    text = (Path(folder) / code.diff.name).read_bytes().decode("utf-8", "surrogateescape")
    parts = text.split("diff --git ")[1:]
    return {change.path: next((p for p in parts if p.startswith(f"a/{change.path} ")), "") for change in code.changed}


def _manifest_differences(
    then: CodeState, now: CodeState, workdir: Path, record: Record, scratch: Path
) -> list[Difference]:
    if then.kind != now.kind:
        return [Difference(kind="tree", what=str(workdir), recorded=then.kind, now=now.kind)]
    run_dir = Path(record.plan.run_dir)
    old, new = (
        codec.loads(dict[str, FileDigest], _stored(d, c).read_text()) for d, c in ((run_dir, then), (scratch, now))
    )
    return [
        Difference(kind="tree", what=name, recorded=_short(old.get(name)), now=_short(new.get(name)))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _short(digest: FileDigest | None) -> str:
    return "not there" if digest is None else digest.sha256[:12]


def input_differences(record: Record, workdir: Path) -> list[Difference]:
    """Declared inputs whose content is another, or that are gone."""
    found = []
    for name, digest in record.inputs.items():
        path = workdir / name
        now = capture.digest_file(path) if path.exists() else None
        if now != digest:
            found.append(Difference(kind="inputs", what=name, recorded=_short(digest), now=_short(now)))
    return found


def plan_differences(record: Record, runtime_digest: str, image_id: str | None) -> list[Difference]:
    """Runtime and image."""
    found = []
    if record.runtime_digest != runtime_digest:
        found.append(
            Difference(
                kind="runtime", what="accelkit's runtime", recorded=record.runtime_digest[:19], now=runtime_digest[:19]
            )
        )
    if record.image is not None and image_id is not None and record.image.id != image_id:
        found.append(
            Difference(kind="image", what=record.image.reference, recorded=record.image.id[:19], now=image_id[:19])
        )
    return found


def hardware_differences(record: Record, now: dict[str, object]) -> list[Difference]:
    """What of the machine can change numbers: CPU, architecture, GPUs."""
    names = ("machine", "cpu", "gpus")
    return [
        Difference(kind="hardware", what=n, recorded=str(record.hardware.get(n)), now=str(now.get(n)))
        for n in names
        if record.hardware.get(n) != now.get(n)
    ]


def package_differences(record: Record, now: dict[str, str]) -> list[Difference]:
    """Packages of the ranks' interpreter, for runs without an image; those that were there and are another version or gone."""
    then = record.node_packages
    return [
        Difference(kind="packages", what=name, recorded=version, now=now.get(name, "not installed"))
        for name, version in then.items()
        if now.get(name) != version
    ]


def refused(differences: list[Difference], allowed: set[str]) -> list[Difference]:
    """Those that stop the reproduction."""
    return [d for d in differences if d.kind in REFUSED and d.kind not in allowed and "all" not in allowed]


def link_inputs(record: Record, workdir: Path, laid_out: Path) -> None:
    """Make declared inputs that are not part of the code (ignored by git, too large) reachable from the laid-out code."""
    for name in record.inputs:
        target = laid_out / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(workdir / name, target)
            except OSError:
                shutil.copyfile(workdir / name, target)
