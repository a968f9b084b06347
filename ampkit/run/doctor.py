"""What this machine has for mixed precision and what is missing. Changes nothing and never fails."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from .. import backends
from ..backends.cpu import cpuinfo, threads
from ..backends.cpu.native import library as native
from ..backends.cpu.onednn import library
from ..base import dtypes
from ..base.errors import DeviceError
from ..core.policy.recipe import RECIPES

# Instructions that compute in 16 bits, as Linux spells them in /proc/cpuinfo (x86: `flags`, Arm: `Features`).
BFLOAT16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512", "avx_ne_convert": "AVX", "bf16": "Arm", "svebf16": "SVE"}
FLOAT16 = {"amx_fp16": "AMX", "avx512_fp16": "AVX-512", "asimdhp": "Arm", "sme_f16f32": "SME"}
NO_UNITS = "no instructions for it"
_NEEDED = ("numpy", "ml_dtypes", "safetensors", "pydantic", "rich")


@dataclass(frozen=True)
class Finding:
    """The result of one examination: its state, what was found, and what to do about it or None."""

    topic: str
    state: Literal["ok", "note", "missing"]
    found: str
    cure: str | None = None


def examine() -> list[Finding]:
    """All findings, one line each."""
    return [finding for examination in _EXAMINATIONS for finding in _safely(examination)]


def examine_cpu() -> list[Finding]:
    """The findings about the CPU and its 16-bit instructions."""
    return _safely(_cpu)


def _safely(examination: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(examination())
    except Exception as error:  # a doctor that fails helps nobody
        return [Finding(examination.__name__.strip("_"), "note", f"could not be examined: {error}")]


def _python() -> Iterator[Finding]:
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    cure = None if supported else "use Python 3.11, 3.12 or 3.13"
    yield Finding("Python", "ok" if supported else "missing", f"{platform.python_version()} at {sys.executable}", cure)
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    tried = platform.system() == "Linux"
    cure = None if tried else "untried here: ampkit is tested on Linux"
    yield Finding("system", "ok" if tried else "note", system, cure)


def _packages() -> Iterator[Finding]:
    for name in _NEEDED:
        try:
            yield Finding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, "missing", "not installed", f"pip install {name}")


def _blas() -> Iterator[Finding]:
    kernels = threads.blas_kernels()
    name = f"{threads.blas_name()}{f', kernels for {kernels}' if kernels else ''}"
    cure = None if kernels else "its threads cannot be set while Python runs; those of OpenBLAS can"
    yield Finding("BLAS", "ok" if kernels else "note", name, cure)
    used, usable = threads.get_num_threads(), threads.usable_cpus()
    found, cure = f"{used} for products, on {usable} usable CPUs", None
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # of the last minute
    if used > 1 and load > (os.cpu_count() or 1):
        found += f", at a load of {load:.1f}"
        cure = "other processes compete for the CPUs: train.threads=1, or OMP_WAIT_POLICY=passive before Python"
    elif used != usable:
        cure = "ampkit.set_num_threads(n), or train.threads=n in a recipe"
    yield Finding("threads", "note" if cure else "ok", found, cure)


def _onednn() -> Iterator[Finding]:
    lib = library.library()
    if lib is None:
        cure = "NumPy runs everything; with oneDNN a training step takes about half of the time"
        yield Finding("oneDNN", "note", library.unavailable_reason(), cure)
    else:
        yield Finding("oneDNN", "ok", f"{'.'.join(map(str, lib.version))}, {library.isa()}")


def _compiled_kernels() -> Iterator[Finding]:
    if found := native.instruction_set():
        yield Finding("CPU kernels", "ok", f"compiled for {found}")
    else:
        cure = "NumPy's references run: all but products and convolutions takes several times as long"
        yield Finding("CPU kernels", "note", native.unavailable_reason(), cure)


def _cpu() -> Iterator[Finding]:
    if platform.system() != "Linux":
        untried = "its 16-bit instructions are untried outside Linux"
        yield Finding("CPU", "note", platform.processor() or "unknown", untried)
        return
    flags = cpuinfo.flags()
    yield Finding("CPU", "ok", cpuinfo.entry("model name") or platform.machine())
    for dtype, instructions in (("bfloat16", BFLOAT16), ("float16", FLOAT16)):
        found = ", ".join(f"{flag} ({name})" for flag, name in instructions.items() if flag in flags)
        used = library.has_fast_matmul(dtypes.parse(dtype))
        cure = None if used else "tensors take half the memory; arithmetic is float32, so no faster than float32"
        yield Finding(f"{dtype} on the CPU", "ok" if used else "note", found or NO_UNITS, cure)


def _recipes() -> Iterator[Finding]:
    floats = "codes by NumPy's references, products in float32"
    if native.instruction_set():
        wide = "bfloat16, in 16-bit units" if library.has_fast_matmul(dtypes.bfloat16) else "float32"
        floats = f"codes by compiled kernels, products in {wide}"
    integers = "of integers, by oneDNN" if library.has_exact_int8() else "in float64, by NumPy"
    found = f"FP8, MXFP8, NVFP4: {floats}; int8: products {integers}"
    cure = "the numbers are a card's, the speed is not: `ampkit lab RECIPE` says what a model loses in each"
    yield Finding("recipes below 16 bits on the CPU", "ok", found, cure)


def _cuda() -> Iterator[Finding]:
    install = importlib.import_module("ampkit.backends.cuda.install")
    driver, cupy = install.driver(), _cupy()
    major = 12 if cupy and "cuda12x" in cupy else int((driver or "13").partition(".")[0])
    wanted = install.cure_for(major)
    cure = None if driver else f"nothing, on a machine without a GPU; with one, NVIDIA's driver, and {wanted}"
    yield Finding("NVIDIA driver", "ok" if driver else "note", f"for CUDA {driver}" if driver else "none", cure)
    if cupy is None:
        cure = wanted if driver else "not needed without a GPU"
        yield Finding("CuPy", "missing" if driver else "note", "not installed", cure)
        return
    yield Finding("CuPy", "ok", cupy)
    yield from _gpu(wanted)


def _gpu(install: str) -> Iterator[Finding]:
    try:
        gpus: Any = backends.get("cuda")
    except DeviceError as error:
        line, _, cure = str(error).partition("\nhelp: ")
        yield Finding("GPU", "note", line.removeprefix("cuda: "), cure or None)
        return
    yield Finding("GPU", "ok", gpus.describe())
    if not gpus.multiplies_bfloat16:
        cure = "amp.dtype=float16: array code computes products and convolutions in bfloat16, and attention, in float32"
        yield Finding("bfloat16 products", "note", "no units for them before compute capability 8.0", cure)
    # Without these, array code runs products in float32, and convolutions and attention as products.
    reasons = {"cublasLt": gpus.cublaslt.unavailable_reason(), "cuDNN": gpus.cudnn.unavailable_reason()}
    for topic, reason in reasons.items():
        yield Finding(topic, "note" if reason else "ok", reason or "found", install if reason else None)
    if not reasons["cuDNN"] and (refusal := gpus.cudnn.dropout_refusal()):
        cure = "attention with dropout: use_deterministic_algorithms(False), or the backward is the reference's"
        yield Finding("cuDNN, deterministic backward", "note", refusal, cure)
    lines: dict[str, list[str]] = {}
    for recipe in RECIPES.values():
        if recipe.forward is not None:
            lines.setdefault(gpus.product_units(*recipe.forward), []).append(recipe.name)
    for line, names in lines.items():
        yield Finding("products below 16 bits", "ok", f"{', '.join(names)}: {line}")
    for line in gpus.refusals():
        yield Finding("refused by a library", "note", line, "the reference runs")


def _cupy() -> str | None:
    found = importlib.import_module("ampkit.backends.cuda.detection").cupys()
    return f"{found[0]} {metadata.version(found[0])}" if found else None


_EXAMINATIONS = (_python, _packages, _blas, _onednn, _compiled_kernels, _cpu, _recipes, _cuda)
