"""Finds the CUDA driver without loading CuPy, and names the command that installs what is missing."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

EXTRAS = (12, 13)  # the versions of CUDA that pyproject.toml has an extra for


@cache  # the search starts compilers and linkers, and libraries ask at every step whether there is a GPU
def driver() -> str | None:
    """The newest CUDA version that the installed driver knows, as `12.8`, or None without a driver."""
    library = ctypes.util.find_library("nvcuda" if platform.system() == "Windows" else "cuda")
    if library is None:
        return None
    version = ctypes.c_int(0)
    ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else None


def command(major: int) -> str:
    """The pip command that installs the extra for CUDA `major`, from the source of this installation of ampkit."""
    extra = f"[cuda{major}]"
    folder = source()
    return f"pip install 'ampkit{extra}'" if folder is None else f"pip install -e '{folder}{extra}'"


@cache  # for the same reason: it reads the metadata of packages
def source() -> Path | None:
    """The source folder with pyproject.toml that ampkit is imported or was installed from; None if there is none."""
    folders = [Path(__file__).parents[3]]
    try:
        origin = json.loads(metadata.distribution("ampkit").read_text("direct_url.json") or "{}").get("url", "")
    except (metadata.PackageNotFoundError, ValueError):
        origin = ""
    if origin.startswith("file:"):
        folders.append(Path(unquote(urlparse(origin).path)))
    return next((folder for folder in folders if (folder / "pyproject.toml").is_file()), None)


def cure_for(major: int) -> str:
    """What to install for CUDA `major`, the driver's or CuPy's; newer drivers run code for older ones."""
    if major < min(EXTRAS):
        return f"a driver for CUDA {min(EXTRAS)} or newer, and then {command(min(EXTRAS))}"
    return command(min(major, max(EXTRAS)))


def cure() -> str:
    """What to install for this machine's driver; the newest version without a driver."""
    found = driver()
    return cure_for(int(found.partition(".")[0])) if found else command(max(EXTRAS))
