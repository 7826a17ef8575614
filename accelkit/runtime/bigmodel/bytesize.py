"""Sizes in bytes: of types, and as people write them."""

import re
from enum import Enum
from fractions import Fraction
from math import inf
from numbers import Real
from typing import Any, Final

import torch

from accelkit.runtime.errors import SettingError


class CustomDtype(Enum):
    """Types of quantized weights that torch has no name for."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


_CUSTOM_BYTES: Final = {CustomDtype.FP8: 1.0, CustomDtype.INT4: 1 / 2, CustomDtype.INT2: 1 / 4}
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_WRITTEN: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kKmMgGtT]?)(i?)([bB])", re.ASCII)


def dtype_byte_size(dtype: torch.dtype | CustomDtype) -> float:
    """Bytes of one value. A bool counts an eighth, as it would packed; in memory torch gives it a whole byte."""
    if isinstance(dtype, CustomDtype):
        return _CUSTOM_BYTES[dtype]
    return 1 / 8 if dtype is torch.bool else float(dtype.itemsize)


def convert_file_size_to_int(size: float | str) -> int:
    """Bytes, from a number of bytes or a text such as "10GiB", "1.5 GB" or "300kb".

    KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB powers of 1000; a small b means bits. A number may be of any kind,
    numpy's too, as a share of what is free is (0.9 * free). Raises SettingError (a ValueError) that quotes anything else.
    """
    number: Any = size
    is_number = not isinstance(size, bool) and isinstance(size, Real)
    if is_number and 0 <= number < inf:
        return int(number)
    found = _WRITTEN.fullmatch(size.strip()) if isinstance(size, str) else None
    if found is None or (found[3] and not found[2]):
        raise SettingError(
            f"size {size!r} is not understood",
            hint='write a number of bytes, or a text such as "10GiB" (powers of 1024) or "10GB" (powers of 1000)',
        )
    unit = (_BINARY_UNITS if found[3] else _UNITS)[found[2].lower()]
    return int(Fraction(found[1]) * unit / (8 if found[4] == "b" else 1))
