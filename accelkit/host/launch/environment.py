"""Which variables reach the ranks: deny by default in containers, inherit less the rank variables on local."""

import fnmatch
import getpass
import os
from collections.abc import Iterable, Mapping

from accelkit.contract import names
from accelkit.host.config import syntax
from accelkit.host.errors import UsageError


def asked(entries: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that `--env` entries give: NAME=VALUE as it stands, NAME or a pattern from `environ`.

    A pattern leaves out what is never passed on (names.REFUSED_ENV). Raises UsageError for a refused name that is asked for outright
    and for a NAME that is not set.
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, value = syntax.parse_env(entry)
        if value is not None:
            _refuse(name, entry)
            found[name] = value
        elif any(c in name for c in "*?["):
            found |= {n: v for n, v in environ.items() if fnmatch.fnmatchcase(n, name) and not refused(n)}
        elif name in environ:
            _refuse(name, entry)
            found[name] = environ[name]
        else:
            raise UsageError(f"--env {name}: not set here", hint=f"give its value: --env {name}=VALUE")
    return found


def refused(name: str) -> bool:
    """Whether a variable never crosses from the host into the ranks' environment."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in names.REFUSED_ENV)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment for local ranks: all of it, less rank and rendezvous variables and kit's own."""
    own = (
        *names.RANK_ENV_PATTERNS, names.ENV_SPEC, names.ENV_RUN_ID, names.ENV_NODE_NAME, names.ENV_METRICS_FILE,
        names.ENV_OUTPUT_DIR, names.ENV_SECRETS_DIR, names.ENV_IMAGE_DIGEST,
    )  # fmt: skip
    return {n: v for n, v in environ.items() if not any(fnmatch.fnmatchcase(n, pattern) for pattern in own)}


def of_container(user_name: str) -> dict[str, str]:
    """Variables of a container that stand for the user and the writable home, known to libraries that ignore HOME too."""
    cache = f"{names.CONTAINER_HOME}/.cache"
    return {
        "PYTHONPATH": names.CONTAINER_RUNTIME,
        "HOME": names.CONTAINER_HOME,
        "USER": user_name,
        "LOGNAME": user_name,
        "XDG_CACHE_HOME": cache,
        "TORCH_HOME": f"{cache}/torch",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "HF_HOME": f"{cache}/huggingface",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def user_name() -> str:
    """Name of the caller, or "user" where the system knows none for the UID."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"


def current() -> dict[str, str]:
    """A copy of kit's own environment."""
    return dict(os.environ)


def _refuse(name: str, entry: str) -> None:
    if refused(name):
        raise UsageError(
            f"--env {entry.split('=', maxsplit=1)[0]}: never passed on; kit and the image set it",
            hint=f"refused are {', '.join(names.REFUSED_ENV)}",
        )
