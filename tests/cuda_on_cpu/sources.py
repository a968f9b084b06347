"""The sources that a kernel includes, NVIDIA's headers, and the cache of compiled kernels."""

from __future__ import annotations

import fcntl
import os
import re
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path


def included(code: str, folders: Sequence[Path]) -> list[Path]:
    """The files of `folders` that `code` includes, and those that they include."""
    found: dict[Path, None] = {}
    waiting = [code]
    while waiting:
        names = re.findall(r'^\s*#\s*include "([^"]+)"', waiting.pop(), re.M)
        paths = [next((f / name for f in folders if (f / name).exists()), None) for name in names]
        new = [path for path in paths if path is not None and path not in found]
        found.update(dict.fromkeys(new))
        waiting += [path.read_text() for path in new]
    return sorted(found)


@cache
def cache_folder() -> Path:
    """The cache of compiled kernels, outside the repository; a file's name is the hash of what it was compiled from."""
    folder = Path(tempfile.gettempdir()) / f"ampkit_cuda_on_cpu_{os.getuid()}"
    folder.mkdir(exist_ok=True)
    return folder


def cached(path: Path, make: Callable[[Path], None]) -> Path:
    """Return `path`, made by `make(path)` if it does not exist.

    Of several threads and processes that ask for one file, one makes it and the others wait. `make` must write the
    file whole or not at all.
    """
    if not path.exists():
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                make(path)
    return path


@cache
def headers() -> Path | None:
    """The folder of NVIDIA's cuda_fp16.h: of the wheel nvidia-cuda-runtime, or of an installed toolkit."""
    site = Path(sysconfig.get_path("purelib")) / "nvidia"
    places = [*sorted(site.glob("cu*/include")), site / "cuda_runtime" / "include", Path("/usr/local/cuda/include")]
    return next((place for place in places if (place / "cuda_fp16.h").exists()), None)
