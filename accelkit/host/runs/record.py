"""What is kept of a run: one JSON document, `record.json` in the run's folder, enough to run it again and to tell whether it was the same.

Values of secrets are never in it, only their names.
"""

from dataclasses import field
from typing import Any, Final, Literal

from accelkit.contract.data import data
from accelkit.contract.results import Cause, NodeReport, RankResult
from accelkit.host.launch.plan import ImagePlan, LaunchPlan

RECORD_VERSION: Final = 1

RunState = Literal["planned", "running", "ended"]
"""planned: recorded, nothing was started yet. running: the backend was asked to start it. ended: the outcome is there."""

OutcomeState = Literal["ok", "failed", "timeout", "interrupted", "stopped", "kit-error"]
"""How a run ended.

ok: every rank exited with 0. failed: a rank did not. timeout: its --timeout passed. interrupted: a signal reached kit (Ctrl-C, SIGTERM,
SIGHUP). stopped: `kit runs stop`. kit-error: kit or its engine failed.
"""


@data
class ConfigValue:
    """A setting and where it came from ("flag --seed", "KIT_SEED", "kit.yaml:12", "default")."""

    value: Any
    origin: str


@data
class FileDigest:
    """Content of a file, or the target of a symbolic link (whose digest is that of the target's text)."""

    sha256: str
    """Empty for a file that was too large to be read."""
    size: int
    """Bytes."""
    link: str | None = None
    executable: bool = False


@data
class StoredFile:
    """A file of the run's folder that belongs to its record."""

    name: str
    """Relative to the run's folder."""
    sha256: str
    size: int
    """Bytes."""


@data
class Change:
    """A file that differs from the commit: "A" added (or not tracked), "M" modified, "D" deleted, "T" type changed."""

    status: str
    path: str
    """Relative to the root of the code."""
    content: str = ""
    """Mode and object name that git gives it, which tell whether two changes are the same; zeros when it is deleted."""


@data
class Submodule:
    """A submodule: only its commit is recorded, not changes inside it."""

    path: str
    commit: str


@data
class CodeState:
    """The code that ran.

    kind "git": `commit` + the patch in `diff` (files that are not tracked and not ignored included). kind "copy": the files listed in
    `manifest`, each kept by content in `.accelkit/objects`.
    """

    kind: Literal["git", "copy"]
    root: str
    """Absolute: top of the repository, or the working folder of a copy."""
    subdir: str = ""
    """The working folder, relative to `root`; "" when they are the same."""
    commit: str | None = None
    branch: str | None = None
    """None when detached, and for a copy."""
    dirty: bool = False
    diff: StoredFile | None = None
    changed: tuple[Change, ...] = ()
    submodules: tuple[Submodule, ...] = ()
    manifest: StoredFile | None = None
    left_out: dict[str, FileDigest] = field(default_factory=dict)
    """Files that are too large to keep, known by size only: path relative to `root` -> its size, without a digest."""
    complete: bool = True
    """False when the folder had too many files to be copied: the run cannot be laid out again."""
    warnings: tuple[str, ...] = ()
    """What of the code is not in the record, and why; one sentence each."""


@data
class Supervisor:
    """The process that watches the run. A pid alone is reused; with its start time and the boot's ID it is not."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat; 0 where there is no /proc."""
    host: str
    boot_id: str = ""
    """Of the kernel's boot; "" where it is not known."""


@data
class RootCause:
    """The earliest failure of a run."""

    rank: int | None
    """None when a node or kit failed rather than a rank."""
    node: int | None
    cause: Cause | Literal["node-lost", "timeout", "kit-error"]
    message: str


@data
class Outcome:
    """How a run ended."""

    exit_code: int
    """What `kit run` exited with, or would have."""
    state: OutcomeState
    started_at: float | None
    """Seconds since the epoch; None when nothing was started."""
    ended_at: float
    root_cause: RootCause | None = None
    ranks: tuple[RankResult, ...] = ()
    nodes: tuple[NodeReport, ...] = ()


@data
class Metric:
    """The last value of a metric."""

    value: float | None
    """None when it is not finite (JSON has no word for that); `hex` says which."""
    hex: str
    """`float.hex` of the value: what is compared bit for bit."""
    step: int | None = None


@data
class Record:
    """Everything that is kept of a run."""

    version: int = RECORD_VERSION
    run_id: str
    created_at: float
    """Seconds since the epoch."""
    state: RunState = "planned"
    command: tuple[str, ...]
    """As it was typed."""
    config: dict[str, ConfigValue]
    """Dotted key ("run.seed") -> value and origin."""
    plan: LaunchPlan
    code: CodeState
    environment: dict[str, str] = field(default_factory=dict)
    """What the ranks were given by name, less secrets."""
    secrets: tuple[str, ...] = ()
    """Names only."""
    seeds: dict[str, int] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    """What the probe found on the machine where `kit` was typed."""
    packages: dict[str, str] = field(default_factory=dict)
    """Of the host side: accelkit, python, ... -> version. Those of the ranks are in the nodes' reports."""
    inputs: dict[str, FileDigest] = field(default_factory=dict)
    """Files of the declared inputs, relative to the working folder."""
    supervisor: Supervisor | None = None
    outcome: Outcome | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    """Name -> last value, from exchange/metrics.jsonl."""
    outputs: dict[str, FileDigest] = field(default_factory=dict)
    """Files of the run's own output folder, relative to it."""
    workdir_outputs: dict[str, FileDigest] = field(default_factory=dict)
    """Files of the declared outputs that this run wrote, relative to the working folder."""
    reproduces: str | None = None
    """ID of the run that this one is `kit reproduce` of."""

    @property
    def image(self) -> ImagePlan | None:
        """The image of its containers; None without containers."""
        return self.plan.container.image if self.plan.container else None

    @property
    def runtime_digest(self) -> str:
        """Digest of the runtime that was mounted."""
        return self.plan.runtime_digest

    @property
    def node_packages(self) -> dict[str, str]:
        """Installed distributions on node 0, name -> version; empty until it has reported."""
        reports = self.outcome.nodes if self.outcome else ()
        return next((dict(r.packages) for r in reports if r.node == 0), {})
