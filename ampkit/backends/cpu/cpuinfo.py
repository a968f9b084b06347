"""What Linux says about the CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def entry(name: str) -> str:
    """The first value of `name` in /proc/cpuinfo (`flags`, `vendor_id`, `model name`); "" where there is none."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            fields = (line.partition(":") for line in lines)
            return next((value.strip() for key, _, value in fields if key.strip() == name), "")
    except OSError:
        return ""


def flags() -> set[str]:
    """The CPU's features, as Linux names them."""
    return set((entry("flags") or entry("Features")).split())
