"""Laying recorded code out again, and what differs today from what was recorded."""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final, Literal

from accelkit.contract import codec
from accelkit.contract.data import data
from accelkit.host.errors import RecordError
from accelkit.host.runs import capture, copies, git
from accelkit.host.runs.record import Change, CodeState, FileDigest, Record
from accelkit.host.runs.store import Store

Kind = Literal["tree", "runtime", "image", "inputs", "packages", "hardware"]
REFUSED: Final = ("image", "inputs", "packages", "hardware", "runtime")
"""Kinds that stop a reproduction unless --allow names them. The tree never does: the recorded code is what runs."""
NOT_THERE: Final = "not there"
MANY: Final = 3
"""Files of one folder that are told in a line each; more are told in one."""
NAMED: Final = 10
"""Files that are named in such a line."""
MAX_COPY: Final = 1 << 30
"""Bytes; a larger input is linked into the laid-out code, not copied."""
_STATUS: Final = {None: "as committed", "A": "added", "M": "modified", "D": "deleted", "T": "of another type"}


@data
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
        _worktree(code, store.run_dir(record.run_id), _root(code, store.workdir), target)
    else:
        _copy(code, store, store.run_dir(record.run_id), target)
    return target / code.subdir


def by_folder(differences: list[Difference]) -> list[str]:
    """Differences of the working tree, a line each: what lies at its top first, then folders, many files of one in one line."""
    folders: dict[str, list[Difference]] = {}
    for difference in differences:
        folders.setdefault(difference.what.rpartition("/")[0], []).append(difference)
    lines = []
    for folder, inside in sorted(folders.items()):
        if folder and len(inside) > MANY:
            files = [one.what.rpartition("/")[2] for one in inside]
            more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
            lines.append(f"{folder}/: {len(files)} files: {', '.join(files[:NAMED])}{more}")
        else:
            lines += [f"{one.what}: recorded {one.recorded}, now {one.now}" for one in inside]
    return lines


def remove(target: Path) -> None:
    """Remove what `lay_out` made; nothing happens when it is gone."""
    git.forget_worktrees(target)
    shutil.rmtree(target, ignore_errors=True)


def _root(code: CodeState, workdir: Path) -> Path:
    """Where the code's root is today: the project may have been moved since, its working folder is `workdir` now."""
    there = Path(code.root)
    return there if there.is_dir() else (workdir, *workdir.parents)[len(Path(code.subdir).parts)]


def _worktree(code: CodeState, run_dir: Path, root: Path, target: Path) -> None:
    diff = _stored(run_dir, code) if code.diff else None
    _checkout(root, str(code.commit), target)
    if diff is not None:
        applied = git.run(target, "apply", "--binary", "--whitespace=nowarn", str(diff))
        if applied.code:
            raise RecordError(f"{diff}: does not apply to {code.commit}: {applied.stderr.strip()}")
    for submodule in code.submodules:
        if not (root / submodule.path).is_dir():
            raise RecordError(f"{submodule.path}: the submodule is not there; git submodule update --init brings it")
        _checkout(root / submodule.path, submodule.commit, target / submodule.path)


def _checkout(repository: Path, commit: str, target: Path) -> None:
    words = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--force", str(target), commit)
    done = git.run(repository, *words)
    if done.code:
        why = (done.stderr.strip().splitlines() or ["git said nothing"])[-1]
        raise RecordError(f"commit {commit} cannot be checked out from {repository}: {why}")


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
        raise RecordError("the working folder had too many files to be kept; it cannot be laid out again")
    manifest = _manifest(run_dir, code)
    for name, digest in manifest.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if digest.link is not None:
            path.symlink_to(digest.link)
            continue
        source = store.objects_dir / digest.sha256
        if not source.is_file() or copies.digest_file(source).sha256 != digest.sha256:
            raise RecordError(f"{source}: missing or changed; {name} cannot be laid out")
        shutil.copyfile(source, path)
        if digest.executable:
            path.chmod(path.stat().st_mode | 0o111)


def _manifest(folder: Path, code: CodeState) -> dict[str, FileDigest]:
    text = _stored(folder, code).read_bytes().decode("utf-8", "surrogateescape")
    return codec.loads(dict[str, FileDigest], text)


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
    before, after = ({c.path: c for c in state.changed} for state in (then, now))
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            there = (workdir / path).exists()
            recorded, today = _words(before.get(path), after.get(path), there=there, moved=then.commit != now.commit)
            found.append(Difference(kind="tree", what=path, recorded=recorded, now=today))
    return found


def _words(before: Change | None, after: Change | None, *, there: bool, moved: bool) -> tuple[str, str]:
    """What a file was and is; `there`: whether it exists, `moved`: whether commits differ."""
    recorded, today = (_STATUS[change.status if change else None] for change in (before, after))
    if before is None and today == "added" and not moved:
        recorded = "not there"
    if after is None and not there:
        today = "not there"
    return recorded, "otherwise" if recorded == today else today


def _manifest_differences(
    then: CodeState, now: CodeState, workdir: Path, record: Record, scratch: Path
) -> list[Difference]:
    if then.kind != now.kind:
        return [Difference(kind="tree", what=str(workdir), recorded=then.kind, now=now.kind)]
    old, new = (_manifest(d, c) | c.left_out for d, c in ((Path(record.plan.run_dir), then), (scratch, now)))
    return [
        Difference(kind="tree", what=name, recorded=_short(old.get(name)), now=_short(new.get(name)))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _short(digest: FileDigest | None) -> str:
    return NOT_THERE if digest is None else digest.sha256[:12] or f"{digest.size} bytes"


def input_differences(record: Record, workdir: Path) -> list[Difference]:
    """Declared inputs whose content is another, or that are gone."""
    found = []
    for name, digest in record.inputs.items():
        path = workdir / name
        now = copies.digest_file(path, follow=True) if path.exists() else None
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
    """Python and packages of the ranks' interpreter, for runs without an image; those that are another version now, or gone."""
    then = dict(record.node_packages)
    if record.outcome and record.outcome.nodes:
        then["python"] = record.outcome.nodes[0].python
    return [
        Difference(kind="packages", what=name, recorded=version, now=now.get(name, "not installed"))
        for name, version in then.items()
        if now.get(name) != version
    ]


def refused(differences: list[Difference], allowed: set[str]) -> list[Difference]:
    """Those that stop the reproduction."""
    return [d for d in differences if d.kind in REFUSED and d.kind not in allowed and "all" not in allowed]


def bring_inputs(record: Record, workdir: Path, laid_out: Path) -> None:
    """Bring what is not part of the recorded code (declared inputs, files that were too large) to its place in the laid-out code.

    Folders of declared outputs are made there where they are here: a script need not make what it found.
    """
    for name in record.config["run.outputs"].value:
        if (workdir / name).is_dir() and not Path(name).is_absolute():
            (laid_out / name).mkdir(parents=True, exist_ok=True)
    for name in record.inputs:
        _bring(workdir / name, laid_out / name)
    root, top = _root(record.code, workdir), (laid_out, *laid_out.parents)[len(Path(record.code.subdir).parts)]
    for name in record.code.left_out:
        _bring(root / name, top / name)


def _bring(source: Path, target: Path) -> None:
    """A copy, so that the run cannot change the user's file; a link where a copy would be too large."""
    if target.exists() or not source.is_file():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.stat().st_size > MAX_COPY:
        with contextlib.suppress(OSError):  # another file system
            os.link(source.resolve(), target)
            return
    shutil.copy(source, target)
