"""What the programs of this folder share: weights that do not depend on the library, and the numbers that they report.

A program does a library's main job once, in the precision `sys.argv[1]` ("float32" where there is none), in under a
minute, downloads nothing and writes into a temporary folder only. The first line of its docstring says what it runs;
PACKAGES names the distributions whose versions belong to it, PRECISIONS what it can run in. By hand, run one with
HF_HUB_OFFLINE=1: without it and without a network, Hugging Face's Hub is asked in vain for minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

PRECISION = sys.argv[1] if len(sys.argv) > 1 else "float32"
DTYPE = getattr(torch, PRECISION)


def start(model: Any, seed: int = 0) -> Any:
    """Fill a model's parameters at random by their order and shape; those that are constant, as of norms, stay."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            shape = tuple(parameter.shape)
            count = parameter.numel()
            if count == 1 or (count and float(parameter.min()) != float(parameter.max())):
                values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 100)
                parameter.copy_(torch.from_numpy(values).to(parameter.dtype))
    return model


def numbers(*shape: int, seed: int = 0) -> Any:
    """A float32 tensor of normal random numbers that do not depend on the library."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def say(name: str, *values: Any) -> None:
    """Add numbers to those of a name: tensors of up to 64 elements whole, larger ones as sum and norm."""
    found: list[float] = []
    for value in values:
        array = value.detach().float().numpy() if hasattr(value, "detach") else value
        array = np.asarray(array, np.float64).reshape(-1)
        found += array.tolist() if array.size <= 64 else [float(array.sum()), float(np.linalg.norm(array))]
    print("\nRESULT", name, *(repr(number) for number in found), flush=True)


def autocast_to_float16(accelerator: Any) -> Any:
    """Have an Accelerator autocast to float16 on a CPU, with a GradScaler: by itself it trains in float32 there."""
    if PRECISION == "float16":
        accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu")
    return accelerator


@contextmanager
def timed() -> Iterator[None]:
    """Add the seconds of the block to those of the job, which are compared, without the start of the process."""
    began = time.perf_counter()
    yield
    print("SECONDS", time.perf_counter() - began, flush=True)
