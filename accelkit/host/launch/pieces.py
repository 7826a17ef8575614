"""What nodes print, cut where it may be cut: after a line, and after a state of a progress bar."""

import re
from typing import Final

BAR_END: Final = b"\r"
"""A piece that ends with it will be written over by the next one."""
_PIECE: Final = re.compile(rb"[^\r\n]*[\r\n]")


class Pieces:
    """One stream, cut."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._rest = b""

    def cut(self, data: bytes) -> list[bytes]:
        """The pieces that are whole now, each with its end."""
        data = self._rest + data
        found = _PIECE.findall(data)
        self._rest = data[sum(map(len, found)) :]
        return found

    def last(self) -> list[bytes]:
        """At the end of the stream: what had no end, as a line."""
        rest, self._rest = self._rest, b""
        return [rest + b"\n"] if rest else []
