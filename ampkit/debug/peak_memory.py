"""The peak memory of a process and of a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import cuda


def peak_bytes() -> int | None:
    """The peak resident memory of this process in bytes, or None where the system does not report it."""
    try:
        # getrusage would include the memory of the parent when it started this process.
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_of_device(device: str) -> int | None:
    """Bytes: on a GPU the most that arrays took at once, on a CPU the peak memory of the process, if it is known."""
    return peak_bytes() if device == "cpu" else cuda.max_memory_allocated(device)
