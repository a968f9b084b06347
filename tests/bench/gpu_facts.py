"""The environment of a GPU measurement: the card, its driver, the libraries and ampkit's source.

Run as a program, it prints them as one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Measurements that differ in one of these must not be compared.
IDENTITY = ("card", "driver", "CUDA", "cublasLt", "cuDNN", "CuPy", "PyTorch")


def use(device: str) -> Any:
    """Make the GPU, or an emulated one, the default device and return its backend."""
    import ampkit
    from ampkit import backends

    if device == "emulated":
        from cuda_on_cpu import emulated

        backends.install(emulated())
    ampkit.set_default_device("cuda")
    return backends.get("cuda")


def facts(gpu: Any) -> dict[str, str]:
    """The environment by name; what could not be determined says why."""
    import ampkit

    found = {"date": time.strftime("%Y-%m-%dT%H:%M:%S"), "card": gpu.describe()}
    looks: dict[str, Callable[[], str]] = {
        "driver": lambda: smi("driver_version"),
        "power limit": lambda: smi("power.limit"),
        "CUDA": lambda: f"driver {gpu.xp.cuda.runtime.driverGetVersion()}, {gpu.xp.cuda.runtime.runtimeGetVersion()}",
        "cublasLt": lambda: _cublaslt(gpu),
        "cuDNN": lambda: _cudnn(gpu),
        "CuPy": lambda: getattr(gpu.xp, "__version__", "emulated"),
        "PyTorch": _torch,
        "Python": lambda: sys.version.split()[0],
        "ampkit": lambda: f"{ampkit.__version__}, {source()}",
    }
    return found | {name: _said(look) for name, look in looks.items()}


def refused() -> list[str]:
    """The calls for which cublasLt and cuDNN had no algorithm, in this process."""
    from ampkit import backends

    gpu: Any = backends.get("cuda")
    found: list[str] = gpu.refusals()
    return found


def _said(look: Callable[[], str]) -> str:
    try:
        return look()
    except Exception as error:  # a missing library is a fact
        return f"none ({str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__})"


def smi(field: str) -> str:
    """A field of `nvidia-smi --query-gpu` of the first GPU."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()[0]


def _cublaslt(gpu: Any) -> str:
    major = gpu.xp.cuda.runtime.runtimeGetVersion() // 1000
    lib, trouble = importlib.import_module("ampkit.backends.cuda.libs.cublaslt").library(major)
    return str(lib.cublasLtGetVersion()) if lib is not None else f"none ({trouble})"


def _cudnn(gpu: Any) -> str:
    trouble = gpu.cudnn.unavailable_reason()
    if trouble:
        return f"none ({trouble})"
    cudnn = importlib.import_module("cudnn")
    return f"{cudnn.backend_version()}, frontend {cudnn.__version__}"


def _torch() -> str:
    torch = importlib.import_module("torch")
    return f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"


def source() -> str:
    """The commit, if any, and a hash of ampkit's files."""
    digest = hashlib.sha256()
    for path in sorted(p for p in (ROOT / "ampkit").rglob("*") if p.suffix in (".py", ".cu", ".cuh")):
        digest.update(path.read_bytes())
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, check=True)
        return f"commit {run.stdout.decode().strip()}, source {digest.hexdigest()[:8]}"
    return f"source {digest.hexdigest()[:8]}"


def differences(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    """Why measurements with `old` must not be compared with measurements with `new`."""
    yield from (f"{name}: {old.get(name)} and {new.get(name)}" for name in IDENTITY if old.get(name) != new.get(name))
    then, now = (time.mktime(time.strptime(each["date"], "%Y-%m-%dT%H:%M:%S")) for each in (old, new))
    if abs(now - then) > 86400:
        yield f"date: {old['date']} and {new['date']}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"))
    print(json.dumps(facts(use(parser.parse_args().device))))
