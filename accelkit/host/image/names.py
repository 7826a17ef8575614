"""Names of packages in requirements, and what of a line may be shown. Pure."""

import re
from typing import Final

_NAME: Final = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?=$|[\s\[(<>=!~;@])")
_LOGIN: Final = re.compile(r"://[^/\s]*@")


def name_of(requirement: str) -> str | None:
    """The package that a requirement is about, normalized; None for what is no requirement by name: options, comments, paths."""
    found = _NAME.match(requirement)
    return normalized(found[1]) if found else None


def normalized(name: str) -> str:
    """As all ways to write the name of a package are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def without_logins(words: str) -> str:
    """The same, less names and passwords in addresses."""
    return _LOGIN.sub("://", words)
