"""Random convolutions in bfloat16 and int8, and their gradients, against float64: `python -m tests.fuzz.convolutions`.

    python -m tests.fuzz.convolutions [--seconds 60] [--seed 0]

Of sequences, images and volumes, with strides, padding, groups, and transposed. New memory is filled with NaN, so that
what a library reads beyond an array, or leaves unwritten, shows. Run it on each kind of CPU, and with each version of
oneDNN: what it prints belongs in ampkit/backends/cpu/onednn/convolution.py. Exit status 1 if something differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any
from unittest.mock import patch

import numpy as np

import ampkit
from ampkit import Tensor, ops
from ampkit.autograd import grad
from ampkit.backends.cpu.caching_allocator import CachingAllocator
from ampkit.ops.quantized.products import conv2d_int8

TOLERANCE = 0.03  # of the largest element
FORWARD = ops.conv1d, ops.conv2d, ops.conv3d
TRANSPOSED = ops.conv_transpose1d, ops.conv_transpose2d, ops.conv_transpose3d


def filled(self: CachingAllocator, nbytes: int) -> Any:
    """New memory of bytes of 0xFF, which are a NaN in every format."""
    lease = _allocate(self, nbytes)
    lease.view(np.ndarray)[...] = 0xFF
    return lease


_allocate = CachingAllocator.allocate


def geometry(draw: np.random.Generator, axes: int) -> tuple[list[int], dict[str, Any], list[int]]:
    """A kernel, options and the size of the input, which the kernel fits into."""
    while True:
        kernel, stride = (draw.integers(1, 7, axes).tolist() for _ in range(2))
        stride = kernel if draw.random() < 0.6 else stride
        padding = int(draw.integers(0, 4)) if draw.random() < 0.4 else 0
        size = draw.integers(1, 8 if axes == 3 else 16, axes).tolist()
        if all(n + 2 * padding >= k for n, k in zip(size, kernel, strict=True)):
            return kernel, {"stride": stride, "padding": padding}, size


def channels(draw: np.random.Generator) -> tuple[int, int]:
    """Of the input, mostly a multiple of 8, and of the output."""
    count = int(draw.integers(1, 23)) * 8 if draw.random() < 0.7 else int(draw.integers(1, 180))
    return count, 8 * int(draw.integers(1, 6))


def float_case(draw: np.random.Generator) -> tuple[str, dict[str, float]]:
    """A convolution in bfloat16: its description, and the relative errors of its output and gradients."""
    axes, transposed, groups = int(draw.choice([1, 2, 2, 3])), draw.random() < 0.25, int(draw.choice([1, 1, 2, 4]))
    (kernel, options, size), (inner, outer) = geometry(draw, axes), channels(draw)
    if transposed:
        options["padding"] = 0
    shape = (inner * groups, outer, *kernel) if transposed else (outer * groups, inner, *kernel)
    arrays = [draw.standard_normal((int(draw.integers(1, 4)), inner * groups, *size)), draw.standard_normal(shape)]
    low = [Tensor(array.astype(np.float32)).bfloat16().detach().requires_grad_() for array in arrays]
    high = [tensor.detach().double().requires_grad_() for tensor in low]
    apply = (TRANSPOSED if transposed else FORWARD)[axes - 1]
    outs = [apply(*pair, groups=groups, **options) for pair in (low, high)]
    seed = Tensor(draw.standard_normal(outs[0].shape).astype(np.float32)).bfloat16()
    found, truth = (
        [out.detach(), *grad([out], pair, [seed.to(out.dtype)])] for out, pair in zip(outs, (low, high), strict=True)
    )
    names = ("output", "gradient of the input", "gradient of the weight")
    title = f"{apply.__name__} {[list(a.shape) for a in arrays]}, {options}, {groups} groups"
    return title, {name: error(a, b) for name, a, b in zip(names, found, truth, strict=True)}


def int8_case(draw: np.random.Generator) -> tuple[str, dict[str, float]]:
    """A convolution of codes: its description, and the relative error of its sums."""
    (kernel, options, size), (inner, outer) = geometry(draw, 2), channels(draw)
    x = draw.integers(0, 256, (int(draw.integers(1, 4)), inner, *size)).astype(np.uint8)
    w = draw.integers(-127, 128, (outer, inner, *kernel)).astype(np.int8)
    found = conv2d_int8(Tensor(x), Tensor(w), Tensor(np.ones(outer, np.float32)), **options)
    truth = ops.conv2d(Tensor(x.astype(float)), Tensor(w.astype(float)), **options)
    return f"conv2d_int8 {list(x.shape)} {list(w.shape)}, {options}", {"sums": error(found, truth)}


def error(found: Tensor, truth: Tensor) -> float:
    """The largest difference as a share of the largest element."""
    wanted = truth.numpy()
    return float(np.abs(found.double().numpy() - wanted).max() / max(np.abs(wanted).max(), 1e-9))


def differences(draw: np.random.Generator) -> Iterator[list[str]]:
    """Of one convolution after the other, what differs, in a line for each result."""
    for case in cycle((float_case, int8_case)):
        with patch.object(CachingAllocator, "allocate", filled):
            title, errors = case(draw)
        yield [f"{title}: {name} differs by {e:.2g}" for name, e in errors.items() if not e <= TOLERANCE]  # or is NaN


def main() -> int:
    """Print what differs, and how many convolutions were compared."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ampkit.set_num_threads(1)
    end, count, wrong = time.monotonic() + options.seconds, 0, 0
    for found in differences(np.random.default_rng(options.seed)):
        print(*found, sep="\n", end="\n" if found else "", flush=True)
        count, wrong = count + 1, wrong + len(found)
        if time.monotonic() > end:
            break
    print(f"{count} convolutions, {wrong} results differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
