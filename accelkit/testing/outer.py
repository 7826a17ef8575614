"""The half of the plug-in that launches: one test becomes a run, the ranks' reports become the test's."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from accelkit.contract import names
from accelkit.contract.spec import Program
from accelkit.host import paths
from accelkit.host.config import loading
from accelkit.host.config.model import RunConfig
from accelkit.host.errors import KitError, UsageError
from accelkit.host.launch import api, stopping
from accelkit.host.launch.plan import LaunchPlan, Mount
from accelkit.host.launch.request import Request, prepare
from accelkit.host.launch.screen import Quiet
from accelkit.host.launch.signals import Guard
from accelkit.host.runs import status
from accelkit.host.runs.record import ConfigValue, Record
from accelkit.host.runs.store import Store
from accelkit.testing.inner import REPORTS

STAGED: Final = ("testing/__init__.py", "testing/inner.py", "testing/plugin.py")
PYTEST_FOLDER: Final = "/accelkit/pytest"
"""Where containers see the host's pytest."""
_PYTEST_PARTS: Final = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_KILLED: Final = ("oom", "signal", "node-lost")
"""Root causes that other ranks' failures only follow from."""
_ALLOWED: Final = {"nodes", "procs_per_node", "image", "timeout", "env"}


@dataclass(frozen=True)
class RankReports:
    """What one rank left."""

    rank: int
    reports: list[pytest.TestReport | pytest.CollectReport]

    @property
    def failed_at(self) -> float | None:
        """When its first failing report ended; None when none failed."""
        times = [getattr(r, "stop", float("inf")) for r in self.reports if r.failed]
        return min(times) if times else None


_EARLIER: Final = pytest.StashKey[dict[str, list[Path]]]()
"""Of a session: test -> the runs that earlier sessions kept of it."""


def run(item: pytest.Item, marker: pytest.Mark, where: str) -> list[pytest.TestReport]:
    """Run `item` on the ranks that its marker asks for and return the reports to show for it.

    The run of a test that failed is kept in `.accelkit/runs` of the rootdir, until the test is run again.
    """
    started = time.time()
    try:
        request = _request(item, _config(marker, where))
        _forget_earlier(item, Store(request.workdir))
        record = _launch(request)
    except KitError as error:
        return [_failed(item, f"{error.message}\n{error.hint or ''}".strip(), started)]
    reports = _merge(item, record, started)
    failed = [report for report in reports if report.failed]
    for report in failed:
        report.sections.append(("kept", f"record and logs of the run: {record.plan.run_dir}"))
    if not failed:
        shutil.rmtree(record.plan.run_dir, ignore_errors=True)
    if record.outcome is not None and record.outcome.state == "interrupted":
        raise KeyboardInterrupt
    return reports


def _config(marker: pytest.Mark, where: str) -> RunConfig:
    """What the marker asks for. Raises UsageError for arguments that it does not have, and ConfigError for values that cannot be."""
    if marker.args:
        words = ", ".join(map(repr, marker.args))
        raise UsageError(f"ranks({words}): its arguments have names", hint="for example ranks(procs_per_node=2)")
    if unknown := set(marker.kwargs) - _ALLOWED:
        raise UsageError(f"ranks({min(unknown)}=...): unknown; allowed are {', '.join(sorted(_ALLOWED))}")
    asked = {"nodes": 1, "procs_per_node": 2, "image": "cpu", "timeout": "120s", "env": (), **marker.kwargs}
    asked["timeout"] = str(asked["timeout"])
    asked["env"] = [*_pairs(asked["env"]), "PYTHONDONTWRITEBYTECODE=1"]
    settings = {"on": where, "outputs": [], **asked}
    return loading.check_values({f"run.{name}": value for name, value in settings.items()}).run


def _forget_earlier(item: pytest.Item, store: Store) -> None:
    """Remove the runs that were kept of this test; at the first run of a session, also what killed sessions left running."""
    stash = item.config.stash
    if _EARLIER not in stash:
        stash[_EARLIER] = {}
        for entry in store.entries():
            if entry.record is None or entry.record.command[:1] != ("pytest",) or status.of(entry) in status.ALIVE:
                continue
            stash[_EARLIER].setdefault(entry.record.command[1], []).append(entry.run_dir)
            if entry.record.outcome is None:
                with contextlib.suppress(KitError):  # no engine: the runs that need it say so
                    stopping.sweep(entry.run_id, with_engine=entry.record.plan.backend == "docker")
    for folder in stash[_EARLIER].pop(item.nodeid, []):
        shutil.rmtree(folder, ignore_errors=True)


def _launch(request: Request) -> Record:
    prepared = prepare(request)
    try:
        record = api.record_run(prepared)
        with Guard() as guard:
            return api.supervise_run(prepared.store, record, Quiet(), guard, _backend(prepared.plan))
    finally:
        api.release(prepared)


def _backend(plan: LaunchPlan) -> Any:
    """Testcontainers for containers; the plan's own for local processes."""
    if plan.backend != "docker":
        return None
    from accelkit.testing.containers import TestcontainersBackend

    return TestcontainersBackend(plan)


def _request(item: pytest.Item, config: RunConfig) -> Request:
    root, local = item.config.rootpath, config.on == "local"
    mode = item.config.getoption("importmode")
    return Request(
        config=config,
        values={"run.outputs": ConfigValue(value=[], origin="the plug-in")},
        program=Program(kind="module", target="accelkit.testing.inner", args=(item.nodeid, str(root), mode)),
        command=("pytest", item.nodeid),
        workdir=root if os.access(root, os.W_OK) else _spare_folder(),
        code_dir=root,
        records_code=False,
        extra_mounts=() if local else (Mount(source=str(_host_pytest()), target=PYTEST_FOLDER),),
        extra_env={} if local else {"KIT_PYTEST": PYTEST_FOLDER},
        staged_extra=STAGED,
    )


def _spare_folder() -> Path:
    """Where runs are recorded when the rootdir cannot be written."""
    folder = paths.cache_home() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _pairs(env: Any) -> list[str]:
    return [f"{k}={v}" for k, v in env.items()] if isinstance(env, dict) else list(env)


def _host_pytest() -> Path:
    """A copy of the host's pytest and what it needs, all of it pure Python, for images that have none."""
    folder = paths.cache_home() / f"pytest-{pytest.__version__}"
    if not folder.is_dir():
        site = Path(pytest.__file__).parent.parent
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".pytest-", dir=folder.parent))
        for part in _PYTEST_PARTS:
            if (site / f"{part}.py").is_file():
                shutil.copyfile(site / f"{part}.py", made / f"{part}.py")
            elif (site / part).is_dir():
                shutil.copytree(site / part, made / part, ignore=shutil.ignore_patterns("__pycache__"))
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:  # another session was first
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _merge(item: pytest.Item, record: Record, started: float) -> list[pytest.TestReport]:
    """The first failing rank's reports, else rank 0's; a rank that died without a report is a failure in the run's own words."""
    found = [_read(item, record, rank) for rank in range(record.plan.spec.world_size)]
    failing = sorted((r for r in found if r.failed_at is not None), key=lambda r: r.failed_at or 0.0)
    root = record.outcome.root_cause if record.outcome else None
    if failing and (root is None or root.cause not in _KILLED):
        return [_as_test_report(item, r, failing[0].rank, record, started) for r in failing[0].reports]
    if record.outcome is not None and record.outcome.exit_code:
        words = root.message if root else f"the run {record.outcome.state}"
        return [_failed(item, f"{words}\n{_logs(record)}", started)]
    silent = [r.rank for r in found if not any(isinstance(report, pytest.TestReport) for report in r.reports)]
    if silent:
        return [_failed(item, f"rank {silent[0]} ended without a report of its test\n{_logs(record)}", started)]
    return [r for r in found[0].reports if isinstance(r, pytest.TestReport)]


def _read(item: pytest.Item, record: Record, rank: int) -> RankReports:
    path = Path(record.plan.run_dir) / "exchange" / REPORTS.format(rank=rank)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return RankReports(rank, [])
    hook = item.config.hook
    return RankReports(rank, [hook.pytest_report_from_serializable(config=item.config, data=d) for d in data])


def _as_test_report(
    item: pytest.Item, report: "pytest.TestReport | pytest.CollectReport", rank: int, record: Record, started: float
) -> pytest.TestReport:
    node = names.node_name(rank // record.plan.spec.procs_per_node)
    if not isinstance(report, pytest.TestReport):
        return _failed(item, str(report.longrepr), started)
    if report.failed:
        where = f"rank {rank} on {node}, of {record.plan.spec.world_size} ranks on {record.plan.backend}"
        report.sections.insert(0, ("first failing rank", where))
    return report


def _logs(record: Record) -> str:
    """The last lines of every rank's log."""
    folder = Path(record.plan.run_dir) / "exchange"
    parts = []
    for rank in range(record.plan.spec.world_size):
        path = folder / names.rank_log_file(rank)
        if path.exists():
            tail = path.read_text(errors="replace").splitlines()[-20:]
            parts.append("\n".join([f"---- rank {rank}", *tail]))
    return "\n".join(parts)


def _failed(item: pytest.Item, words: str, started: float) -> pytest.TestReport:
    now = time.time()
    return pytest.TestReport(
        nodeid=item.nodeid, location=item.location, keywords=dict.fromkeys(item.keywords, 1), outcome="failed",
        longrepr=words, when="call", duration=now - started, start=started, stop=now,
    )  # fmt: skip
