"""Memory in use by a run."""

from __future__ import annotations

import os
from pathlib import Path

from .. import cuda


def memory_in_use(device: str) -> int | None:
    """Bytes of arrays on a GPU; on a CPU the resident memory of the process. None where the system does not tell."""
    if device != "cpu":
        return cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
