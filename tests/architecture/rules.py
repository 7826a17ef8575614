"""The rules of this architecture as data, and how the tests here read the source.

This page is what you extend: an entry is a file (or a folder ending in `/`, or a module) and the reason why it may.
A rule that gets in the way is changed here, in plain sight, never worked around.
"""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# --- budgets: on the tail, for every Python file in the repository -----------------------------------------

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40  # from `def` to its end, less the docstring
MAX_BRANCHES = 10  # if, for, while, except, case, boolean operators, conditional expressions

FORBIDDEN_MODULE_NAMES = {"utils": "a name that says nothing; call the module by what it is about"}
ALLOWED_UTILS = {
    "accelkit/utils.py": "public names of the API family, re-exports only",
    "accelkit/utils/": "public names of the API family, re-exports only",
}

# --- walls: what each package may import --------------------------------------------------------------------

MAY_IMPORT: dict[str, set[str]] = {
    "accelkit.contract": set(),
    "accelkit.runtime": {"torch", "safetensors", "accelkit.contract"},
    "accelkit.host": {"typer", "rich", "yaml", "docker", "pydantic", "tomli", "accelkit.contract"},
    "accelkit.compat": {"torch", "accelkit.runtime", "accelkit.contract"},
    "accelkit.testing": {"pytest", "testcontainers", "docker", "accelkit.host", "accelkit.contract"},
    "accelkit.utils": {"accelkit.runtime"},
    "accelkit.hooks": {"accelkit.runtime"},
    "accelkit": {"accelkit.runtime"},
}
"""Package -> what it may import beside the standard library and itself (and `accelkit` for its version)."""

OWN_PARTS: dict[str, str] = {
    "accelkit.host.launch.plan": "what a run is to be, as data: the record of a run holds one, and so does its launch",
}
"""Modules that count as a first-level part of their package when cycles between parts are looked for."""

ONLY_FOR_TYPES: dict[str, dict[str, str]] = {
    "typing_extensions": {"accelkit/contract/data.py": "what Python 3.10 has not got in typing"},
}
"""Library -> files that import it under TYPE_CHECKING alone, and why."""

OPTIONAL_LIBRARIES: dict[str, dict[str, str]] = {
    "numpy": {
        "accelkit/runtime/rng.py": "numpy's generator is seeded, saved and restored with the others",
    },
    "aim": {"accelkit/runtime/tracking/aim.py": "the tracker that is about it"},
    "clearml": {"accelkit/runtime/tracking/clearml.py": "the tracker that is about it"},
    "comet_ml": {"accelkit/runtime/tracking/comet_ml.py": "the tracker that is about it"},
    "dvclive": {"accelkit/runtime/tracking/dvclive.py": "the tracker that is about it"},
    "mlflow": {"accelkit/runtime/tracking/mlflow.py": "the tracker that is about it"},
    "swanlab": {"accelkit/runtime/tracking/swanlab.py": "the tracker that is about it"},
    "tensorboardX": {"accelkit/runtime/tracking/tensorboard.py": "the tracker that is about it"},
    "transformers": {
        "accelkit/runtime/bigmodel/describe.py": "builds the model that a config describes, without memory",
        "accelkit/runtime/strategies/deepspeed_building.py": "tells it that DeepSpeed divides what it builds",
    },
    "tqdm": {"accelkit/runtime/progress.py": "the progress bar"},
    "trackio": {"accelkit/runtime/tracking/trackio.py": "the tracker that is about it"},
    "wandb": {"accelkit/runtime/tracking/wandb.py": "the tracker that is about it"},
    "torchao": {"accelkit/runtime/float8.py": "the precision that is about it"},
    "torchdata": {
        "accelkit/runtime/data/adopted.py": "makes its loader where a script asks for it",
    },
    "deepspeed": {
        "accelkit/runtime/strategies/deepspeed_building.py": "its part that divides models while they are built",
        "accelkit/runtime/strategies/deepspeed_library.py": "its part that loads it",
        "accelkit/runtime/strategies/deepspeed_model.py": "its part that gathers parameters",
    },
    "torch_xla": {
        "accelkit/runtime/strategies/xla.py": "the strategy that is about it",
        "accelkit/runtime/xla.py": "the device that is about it",
    },
}
"""Optional library -> the files that are about it. Imported inside functions: the file itself imports without it."""

NEEDS_NO_TORCH: dict[str, str] = {
    "accelkit.runtime.boot": "starts the ranks: torch's second and a half is each rank's own, not the launcher's too",
    "accelkit.runtime.describe": "says what the environment says where torch is missing or broken",
}
"""Runtime modules (and what lies below them) that import with torch absent."""

HEAVY_FOR_HELP = {"torch", "numpy", "docker", "pydantic", "rich"}
"""What `kit --help`, `kit COMMAND --help` and `import accelkit` never import."""

# --- effects: who may touch the world -----------------------------------------------------------------------

READS_ENVIRONMENT: dict[str, str] = {
    "accelkit/host/render.py": "NO_COLOR and the terminal",
    "accelkit/host/engine/client.py": "DOCKER_HOST and DOCKER_CONTEXT, which say where the engine is",
    "accelkit/host/engine/command.py": "DOCKER_CONFIG, where the docker command's settings and plug-ins lie",
    "accelkit/host/image/inputs.py": "whether proxies are set, to hand them to the build",
    "accelkit/host/launch/environment.py": "decides what of the caller's environment a rank inherits",
    "accelkit/host/launch/secrets.py": "XDG_RUNTIME_DIR, where secrets may lie",
    "accelkit/host/paths.py": "XDG folders",
    "accelkit/host/process.py": "a child's environment is the caller's and what is added",
    "accelkit/testing/inner.py": "finds the launch spec, its own rank and the host's pytest",
    "accelkit/testing/plugin.py": "whether this session was started on a rank",
    "accelkit/runtime/boot_env.py": "hands each rank its environment",
    "accelkit/runtime/rank_main.py": "finds the launch spec and its own rank",
    "accelkit/runtime/environment.py": "functions by which scripts patch or clear it",
    "accelkit/runtime/env.py": "the one place where a rank reads its own",
}

STARTS_PROCESSES: dict[str, str] = {
    "accelkit/runtime/launchers.py": "forks ranks from a notebook",
    "accelkit/host/process.py": "every child of `kit` is started, signalled and reaped here",
    "accelkit/runtime/boot_ranks.py": "starts the ranks of a node",
}

CATCHES_EVERYTHING: dict[str, str] = {
    "accelkit/runtime/launchers.py": "an outer edge: whatever the function raises is told to the launcher",
    "accelkit/runtime/tracking/active.py": "an edge: whatever a tracker's library raises is named, after the other trackers had their turn",
    "accelkit/host/cli/main.py": "an outer edge: whatever fails in kit is one message and 125, never the script's own 1",
    "accelkit/host/launch/supervise.py": "an outer edge: what fails in a thread must reach the loop",
    "accelkit/runtime/data/dispatch.py": "an outer edge: what the data set raises on rank 0 must reach the ranks that wait for it",
    "accelkit/runtime/rank_main.py": "an outer edge: whatever the script raises becomes the rank's result",
    "accelkit/runtime/checkpoint/agreement.py": "what fails on a rank is told to the others before it is raised",
    "accelkit/runtime/bigmodel/dcp.py": "a damaged pickle may raise anything, and is one error that names the file",
    "accelkit/runtime/checkpoint/background.py": "what fails in the thread is raised by the next call that waits",
}
"""Files with an `except Exception`. One that ends by raising again (clean-up) is fine anywhere."""

# --- reading the source -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A Python file of the repository."""

    path: str
    """Relative to the top, with forward slashes."""

    @property
    def text(self) -> str:
        """The file's content."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        """The file as a syntax tree."""
        return _parse(self.path)

    @property
    def module(self) -> str:
        """The dotted name under which it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def at(self, node: ast.AST) -> str:
        """`file:line`, as editors and terminals take it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    def is_listed(self, paths: dict[str, str]) -> bool:
        """Whether the file, or a folder above it, stands in a list of this page."""
        return any(self.path == entry or (entry.endswith("/") and self.path.startswith(entry)) for entry in paths)


@cache
def _parse(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=path)


@cache
def repository_files() -> tuple[str, ...]:
    """All files of the checkout that git does not ignore, committed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return tuple(sorted(name for name in set(listed.stdout.split("\0")) if name and (ROOT / name).is_file()))


def python_sources(prefix: str = "") -> list[Source]:
    """The Python files below a folder (all, when none is named)."""
    return [Source(name) for name in repository_files() if name.endswith(".py") and name.startswith(prefix)]


def walk_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a file, nested ones and methods included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def imported_names(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """The dotted name of everything a file imports, relative imports resolved, `from a import b` as `a.b`."""
    package = source.module.split(".")
    if not source.path.endswith("/__init__.py"):
        package = package[:-1]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def is_within(name: str, package: str) -> bool:
    """Whether a dotted name is the package or lies in it."""
    return name == package or name.startswith(package + ".")


def complain(problems: list[str], rule: str) -> str:
    """The message of a failed rule: what holds, then each place that breaks it."""
    return "\n".join([f"{rule} ({len(problems)} places):", *(f"  {problem}" for problem in problems)])
