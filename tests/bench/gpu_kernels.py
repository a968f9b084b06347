"""Kernels against what a copy reaches on the same card, and products; PyTorch's beside them, where it is there.

For `gpu.py`. PyTorch's AdamW is the fused one, which writes no 16-bit copy of the parameters; ours does. Nothing of
PyTorch's stands beside the unscaling of gradients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ampkit
from ampkit import backends, ops, optim
from ampkit.arena import spans
from ampkit.overflow import unscale

Case = tuple[str, Callable[[], dict[str, Any]]]
DTYPES = (ampkit.float32, ampkit.bfloat16, ampkit.float16)


class Beside:
    """PyTorch on `device`. trouble: why it is not there, or nothing; then nothing is measured."""

    def __init__(self, device: str = "cuda"):
        self.device, self.torch, self.trouble = device, None, ""
        try:
            import torch
        except Exception as error:  # missing, or there and broken
            self.trouble = f"no PyTorch ({last_line(error)})"
            return
        if device == "cuda" and not torch.cuda.is_available():
            self.trouble = "PyTorch sees no GPU"
            return
        self.torch = torch

    def make(self, *shape: int, dtype: Any = ampkit.float32, grad: bool = False) -> Any:
        made = self.torch.randn(*shape, device=self.device).to(getattr(self.torch, dtype.name))
        return made.requires_grad_(grad)

    def measure(self, key: str, unit: float, prepare: Callable[[], Callable[[], Any]], count: int) -> dict[str, Any]:
        """{key: seconds * unit} of the call that `prepare` makes; nothing without PyTorch, in words where it fails."""
        if self.torch is None:
            return {}
        try:
            return {key: self._seconds(prepare(), count) * unit}
        except Exception as error:
            return {f"{key} error": last_line(error)}
        finally:
            self.free()

    def _seconds(self, call: Callable[[], Any], count: int) -> float:
        def marked() -> Any:
            if self.device != "cuda":
                return time.perf_counter()
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
            return event

        def between(start: Any, end: Any) -> float:
            if self.device != "cuda":
                return end - start
            end.synchronize()
            return start.elapsed_time(end) / 1e3

        return median_of(call, count, marked, between)

    def free(self) -> None:
        if self.torch is not None and self.device == "cuda":
            self.torch.cuda.empty_cache()


def last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]


def measured(cases: Iterator[Case], until: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each case gives, in its turn; words for those that fail, and for those that there is no time for."""
    for name, measure in cases:
        try:
            found = measure() if time.monotonic() < until else {"error": "no time left"}
        except Exception as error:
            found = {"error": last_line(error)}
        yield name, found


def seconds(call: Callable[[], Any], count: int) -> float:
    there: Any = backends.get()
    return median_of(call, count, lambda: there.mark("block"), there.between)


def median_of(call: Callable[[], Any], count: int, mark: Callable[[], Any], between: Callable[..., float]) -> float:
    call()
    times = []
    for _ in range(3):
        start = mark()
        for _ in range(count):
            call()
        times.append(between(start, mark()) / count)
    return statistics.median(times)


# kernels


def kernels(tiny: bool, beside: Beside) -> Iterator[Case]:
    rows, width, classes = (4, 64, 50) if tiny else (65536, 2048, 50257)
    few, count = rows // 8 or 1, 1 if tiny else 20

    def row(call: Callable[[], Any], size: int, prepare: Callable[[], Any] | None = None) -> dict[str, Any]:
        took = seconds(call, count)
        found = {"us": took * 1e6, "GB/s": size / took / 1e9}
        return found | (beside.measure("torch us", 1e6, prepare, count) if prepare else {})

    def copy() -> dict[str, Any]:
        with ampkit.no_grad():
            one, other = ampkit.ones(rows * width), ampkit.zeros(rows * width)
            return row(lambda: other.copy_(one), 8 * rows * width, lambda: _copy_of_theirs(beside, rows * width))

    def forward(name: str, dtype: Any) -> dict[str, Any]:
        x, call = _ours(name, dtype, rows, width, few, classes)
        size = x.numel() * dtype.itemsize

        def theirs() -> Any:
            torch, (_, call) = beside.torch, _theirs(beside, name, dtype, rows, width, few, classes)
            return torch.no_grad()(call)

        with ampkit.no_grad():
            return row(call, size if name == "cross_entropy" else 2 * size, theirs)

    def backward(name: str, dtype: Any) -> dict[str, Any]:
        x, call = _ours(name, dtype, rows, width, few, classes)
        size, out = x.numel() * dtype.itemsize, call()
        seed = ampkit.ones(*out.shape, dtype=out.dtype)

        def theirs() -> Any:
            x, call = _theirs(beside, name, dtype, rows, width, few, classes)
            out = call()
            seed = beside.torch.ones_like(out)
            return lambda: beside.torch.autograd.grad(out, [x], [seed], retain_graph=True)

        again = lambda: ampkit.grad(out, [x], [seed], retain_graph=True)  # noqa: E731
        return row(again, 2 * size if name == "cross_entropy" else 3 * size, theirs)

    yield "copy", copy
    for dtype in DTYPES:
        for name in ("layer_norm", "softmax", "cross_entropy"):
            yield f"{name} {dtype.name}", lambda n=name, d=dtype: forward(n, d)
            yield f"{name}_backward {dtype.name}", lambda n=name, d=dtype: backward(n, d)
    many = 1000 if tiny else 124_000_000
    yield "AdamW float32", lambda: _adamw(many, row, beside)
    yield "unscale float32", lambda: _unscale(many, row)


def _ours(name: str, dtype: Any, rows: int, width: int, few: int, classes: int) -> tuple[Any, Callable[[], Any]]:
    if name == "cross_entropy":
        x, labels = ampkit.randn(few, classes).to(dtype).requires_grad_(), ampkit.randint(0, classes, (few,))
        return x, lambda: ops.cross_entropy(x, labels)
    x = ampkit.randn(rows, width).to(dtype).requires_grad_()
    weight, bias = ampkit.ones(width), ampkit.zeros(width)
    if name == "softmax":
        return x, lambda: ops.softmax(x, -1)
    return x, lambda: ops.layer_norm(x, (width,), weight, bias)


def _theirs(
    beside: Beside, name: str, dtype: Any, rows: int, width: int, few: int, classes: int
) -> tuple[Any, Callable[[], Any]]:
    functional = beside.torch.nn.functional
    if name == "cross_entropy":
        x, labels = (
            beside.make(few, classes, dtype=dtype, grad=True),
            beside.torch.randint(0, classes, (few,), device=beside.device),
        )
        return x, lambda: functional.cross_entropy(x, labels)
    x = beside.make(rows, width, dtype=dtype, grad=True)
    weight, bias = beside.make(width, dtype=dtype), beside.make(width, dtype=dtype)
    if name == "softmax":
        return x, lambda: functional.softmax(x, -1)
    return x, lambda: functional.layer_norm(x, (width,), weight, bias)


def _copy_of_theirs(beside: Beside, size: int) -> Callable[[], Any]:
    one, other = beside.make(size), beside.make(size)
    return lambda: other.copy_(one)


def _parameter(count: int) -> Any:
    # With gradient, moments and a 16-bit copy, in the memory of its optimizer.
    weight = ampkit.nn.Parameter(ampkit.randn(count))
    optimizer = optim.AdamW([weight], lr=1e-3)
    with ampkit.autocast(ampkit.get_default_device().type, dtype=ampkit.bfloat16):
        ops.linear(ampkit.ones(1, 10), weight.reshape(-1, 10)[:4])
    weight.grad = ampkit.ones(count)
    return optimizer, spans(optimizer.present())[0]


def _adamw(count: int, row: Callable[..., dict[str, Any]], beside: Beside) -> dict[str, Any]:
    # Reads master, gradient and two moments, writes three of them and a 16-bit copy.
    optimizer, run = _parameter(count)

    def theirs() -> Any:
        weight = beside.make(count, grad=True)
        weight.grad = beside.torch.ones_like(weight)
        return beside.torch.optim.AdamW([weight], lr=1e-3, fused=True).step

    return row(optimizer.step, (28 + 2 * len(run.copies)) * count, theirs)


def _unscale(count: int, row: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    _optimizer, run = _parameter(count)
    inverse = run.block.backend.zeros((), ampkit.float32) + np.float32(1)
    return row(lambda: unscale(run.gradient, inverse, run.block.flags()), 8 * count)


# products


def products(tiny: bool, beside: Beside) -> Iterator[Case]:
    n = 16 if tiny else 8192
    for dtype in (ampkit.bfloat16, ampkit.float16, ampkit.float32):
        yield f"{n}^3 {dtype.name}", lambda dtype=dtype: _product(n, dtype, 1 if tiny else 5, beside)


def _product(n: int, dtype: Any, count: int, beside: Beside) -> dict[str, Any]:
    with ampkit.no_grad():
        a, b = (ampkit.randn(n, n).to(dtype) for _ in range(2))
        took = seconds(lambda: a @ b, count)

    def theirs() -> Any:
        a, b = (beside.make(n, n, dtype=dtype) for _ in range(2))
        return lambda: a @ b

    found = {"ms": took * 1e3, "TFLOP/s": 2 * n**3 / took / 1e12}
    return found | beside.measure("torch ms", 1e3, theirs, count)
