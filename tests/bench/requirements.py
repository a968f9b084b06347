"""Check what a GPU run needs, one line each; imports the standard library only."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib import metadata, util
from pathlib import Path

from processes import HERE, environment

# module: (package, what needs it)
PACKAGES = {
    "numpy": ("numpy", "ampkit"),
    "ml_dtypes": ("ml_dtypes", "ampkit"),
    "safetensors": ("safetensors", "ampkit"),
    "pydantic": ("pydantic, with pydantic_core, typing_inspection and annotated_types", "ampkit"),
    "rich": ("rich", "ampkit"),
    "pytest": ("pytest", "suite and sanitize"),
    "hypothesis": ("hypothesis", "some files of the suite"),
    "cupy": ("cupy-cuda13x (or cupy-cuda12x, by the driver)", "all parts"),
    "cudnn": ("nvidia-cudnn-frontend==1.23.0", "convolutions and attention: steps, bench and properties"),
    "torch": ("torch, built for the driver's CUDA", "PyTorch's side of bench"),
}
_TORCH = "import torch; assert torch.cuda.is_available(), f'torch {torch.__version__} sees no GPU'"


def check(device: str = "cuda") -> Iterator[str]:
    """Yield lines that begin with "ok" or "missing"."""
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield f"{_word(supported)} Python {sys.version.split()[0]}: 3.11 to 3.13"
    for name, (package, use) in PACKAGES.items():
        found = util.find_spec(name) is not None
        yield f"{_word(found)} {name}{_version(name) if found else f': install {package}'}; for {use}"
    for name, use in (("nvidia-smi", "environment"), ("g++", "the tests that compare with the emulation")):
        yield f"{_word(shutil.which(name))} {name}; for {use}"
    yield f"{_word(sanitizer())} compute-sanitizer; of CUDA's toolkit or nvidia-cuda-sanitizer-api; for sanitize"
    yield _runs("a GPU that ampkit can use, for all parts", [str(HERE / "gpu_facts.py"), "--device", device])
    yield _runs("a GPU that PyTorch can use, for bench", ["-c", _TORCH])


def _word(there: object) -> str:
    return "ok     " if there else "missing"


def _version(name: str) -> str:
    for package in metadata.packages_distributions().get(name, ()):
        return f" {metadata.version(package)}"
    return ""


def _runs(what: str, arguments: list[str]) -> str:
    try:
        run = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=120, env=environment()
        )
    except subprocess.TimeoutExpired:
        return f"missing {what}: no answer in 120 s"
    said = "" if run.returncode == 0 else f": {(run.stderr.strip().splitlines() or ['no reason'])[-1]}"
    return f"{_word(run.returncode == 0)} {what}{said}"


def sanitizer() -> list[str]:
    """The command of compute-sanitizer, from PATH or NVIDIA's wheels; [] if there is none."""
    found = shutil.which("compute-sanitizer")
    if found:
        return [found]
    script = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / "compute-sanitizer"
    return ["sh", str(script)] if script.exists() else []


def output(command: Sequence[str]) -> str:
    """The stdout of a program, or why it could not run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]}: {error}\n"
