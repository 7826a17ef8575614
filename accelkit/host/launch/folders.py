"""What the ranks of a run write and read on the host, made so that their user may, who need not be the caller (`--user`)."""

import os
from pathlib import Path

from accelkit.contract import names
from accelkit.host import paths
from accelkit.host.launch.plan import ImagePlan, LaunchPlan, Mount
from accelkit.host.runs.store import EXCHANGE_FOLDER, OUTPUTS_FOLDER

PASSWD = "passwd"  # noqa: S105  (a file's name)
"""File of the run's folder that containers see as /etc/passwd."""
DOWNLOADS = f"{names.CONTAINER_HOME}/.cache/huggingface"


def home_mounts(uid: int, image: ImagePlan) -> tuple[Mount, ...]:
    """A home that stays: compiled kernels and settings, of this user in this image alone; models that were downloaded, in all images."""
    home = paths.cache_home() / "home" / str(uid) / image.id.removeprefix("sha256:")[:12]
    downloads = paths.cache_home() / "downloads" / str(uid)
    return (
        Mount(source=str(home), target=names.CONTAINER_HOME, read_only=False),
        Mount(source=str(downloads), target=DOWNLOADS, read_only=False),
    )


def make(plan: LaunchPlan) -> None:
    """Make the homes of a run whose own folders are written already, and let the ranks' user at all of them."""
    if plan.container is None:
        return
    homes = [Path(m.source) for m in plan.container.mounts if m.target in (names.CONTAINER_HOME, DOWNLOADS)]
    made = [
        *homes,
        homes[0] / ".cache",
        homes[0] / ".cache" / "huggingface",
    ]  # the last: where the downloads are mounted
    for folder in made:
        folder.mkdir(parents=True, exist_ok=True)
    uid, gid = (int(part) for part in plan.container.user.split(":"))
    if uid in (os.getuid(), 0):
        return
    run_dir = Path(plan.run_dir)
    exchange = run_dir / EXCHANGE_FOLDER
    files = [run_dir / PASSWD, exchange / names.SPEC_FILE]
    for path in (exchange, exchange / names.LOGS_FOLDER, run_dir / OUTPUTS_FOLDER, *made, *files):
        _give(path, uid, gid)


def _give(path: Path, uid: int, gid: int) -> None:
    """Root gives it away; anybody else can only open it to all."""
    if os.getuid() == 0:
        os.chown(path, uid, gid)
    else:
        path.chmod(0o777 if path.is_dir() else 0o644)
