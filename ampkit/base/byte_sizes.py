"""Numbers of bytes in words."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")  # powers of 1000


def bytes_in_words(size: float) -> str:
    """A number of bytes with three digits and a unit: `8.19 kB`, `654 MB`; `0` for none."""
    if not size:
        return "0"
    step = 0
    while step < len(_UNITS) - 1 and abs(size) / 1000**step >= 999.5:
        step += 1
    return f"{size / 1000**step:.3g} {_UNITS[step]}"
