"""Detects whether CuPy can use a GPU, and says in one line why not."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from ampkit.base.errors import DeviceError

from .install import EXTRAS, cure_for
from .multi_device import come_back
from .nvrtc import CUDA_ERRORS, Kernels

OLDEST = 75  # compute capability, times ten: Turing, the oldest that CUDA 13 compiles for

Problem = tuple[str, str, str] | None  # what is needed, what was found, the cure


def two_of_cupy() -> Problem:
    """The problem if CuPy is installed for two versions of CUDA, whose files overwrite each other; else None."""
    found = cupys()
    if len(found) < 2:
        return None
    cure = f"pip uninstall {' '.join(found)}, and then {cure_for(max(EXTRAS))} (or cuda12, by the driver's)"
    return "one CuPy", " and ".join(found), cure


def cupys() -> list[str]:
    """The names of the installed distributions of CuPy."""
    return [name for name in ("cupy", *(f"cupy-cuda{n}x" for n in (11, *EXTRAS))) if find_distribution(name)]


def find_distribution(name: str) -> bool:
    """Whether a distribution is installed."""
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def one_line(error: BaseException) -> str:
    """Shorten a multi-line error of CuPy or a compiler to the last line that names an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")] or [type(error).__name__]
    return next((line for line in reversed(lines) if "Error" in line or "error:" in line), lines[0])[-160:]


def why_not(xp: Any, index: int | None = None) -> Problem:
    """Why CuPy cannot use a GPU: what is needed, what was found, the cure; None if it can."""
    try:
        return _why_not(xp, index)
    except Exception as error:  # a broken driver or missing libraries
        return "CUDA's runtime", one_line(error), "see whether nvidia-smi works, and what `ampkit doctor` says"


def _why_not(xp: Any, index: int | None) -> Problem:
    runtime = xp.cuda.runtime
    driver, mine = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if not driver:
        return "NVIDIA's driver", "none", "install it, where there is a GPU; or train on the CPU"
    if driver // 1000 < mine // 1000:
        found = f"a driver for CUDA {driver // 1000} and CuPy for CUDA {mine // 1000}"
        cure = cure_for(driver // 1000)
        return "CuPy for the driver's CUDA", found, f"{cure}, or a newer driver" if cure.startswith("pip") else cure
    if not xp.cuda.is_available():
        return "a GPU", "a driver and no device", "see whether nvidia-smi lists one, and CUDA_VISIBLE_DEVICES"
    count = runtime.getDeviceCount()
    if index is not None and index >= count:
        known = f"one of cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        return known, f"cuda:{index}", "see which GPUs nvidia-smi lists, and CUDA_VISIBLE_DEVICES"
    return device_problem(xp, runtime.getDevice() if index is None else index)


def device_problem(xp: Any, index: int) -> Problem:
    """Why one GPU cannot be used, as `why_not`."""
    capability = str(xp.cuda.Device(index).compute_capability)
    if int(capability) < OLDEST:
        needs, found = f"a GPU of compute capability {OLDEST / 10} or newer", f"{capability[:-1]}.{capability[-1]}"
        return (
            needs,
            f"one of compute capability {found}",
            "train on the CPU: the kernels are not compiled for older cards",
        )
    return _compiles(xp, index, cure_for(xp.cuda.runtime.runtimeGetVersion() // 1000))


def _compiles(xp: Any, index: int, cure: str) -> Problem:
    """Why a small kernel cannot be compiled and loaded: CuPy alone brings neither the compiler nor CUDA's headers."""
    before = xp.cuda.runtime.getDevice()
    try:
        xp.cuda.runtime.setDevice(index)
        Kernels(xp).entry("amp/found_inf", "update_scale")
    except Exception as error:
        said, failed = one_line(error), isinstance(error, DeviceError)
        if failed or type(error).__name__ in CUDA_ERRORS:
            said = one_line(error.__cause__) if error.__cause__ is not None else said
            other = ", or name another, such as 'cuda:1'" if xp.cuda.runtime.getDeviceCount() > 1 else ""
            return "a GPU that loads a kernel", said, f"see in nvidia-smi whether others have its memory{other}"
        return "NVIDIA's run-time compiler, and CUDA's headers", said, cure
    finally:
        come_back(xp.cuda.runtime, before)
    return None
