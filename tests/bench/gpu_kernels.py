"""Time kernels, relative to a copy of the same bytes, and products, alternating with PyTorch's; for `gpu.py`.

    python tests/bench/gpu_kernels.py [--rows NAME ...] [--device cuda] [--tiny]     prints a line of JSON per row

Both libraries run on the same stream of one process, alternating every few calls, timed by the same events. Neither
uses TF32 unless the row says so. Rows of cross_entropy exclude ampkit's check of the labels, which has its own row;
PyTorch asserts inside its kernel. PyTorch's AdamW is the fused one, which writes no 16-bit copy of the parameters;
ampkit's does.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import gpu_facts
import numpy as np
from gpu_interleaved import Call, PyTorchSide, allowed, last_line, row, unchecked

import ampkit
from ampkit import ops, optim
from ampkit.amp.found_inf import unscale

Case = tuple[str, Callable[[], dict[str, Any]]]
DTYPES = (ampkit.bfloat16, ampkit.float16, ampkit.float32)

# kernels


def kernels(tiny: bool, beside: PyTorchSide) -> Iterator[Case]:
    """The rows of the section in order: (name, function that measures it)."""
    sizes = (4, 64, 50) if tiny else (65536, 2048, 50257)
    count, many = (1, 1000) if tiny else (20, 124_000_000)
    yield "copy", lambda: _copy(sizes[0] * sizes[1], beside, count)
    for dtype in DTYPES:
        for name in ("layer_norm", "softmax", "cross_entropy"):
            yield f"{name} {dtype.name}", lambda n=name, d=dtype: _forward(n, d, sizes, beside, count)
            yield f"{name}_backward {dtype.name}", lambda n=name, d=dtype: _backward(n, d, sizes, beside, count)
    yield "AdamW float32", lambda: _adamw(many, beside, count)
    yield "unscale float32", lambda: _unscale(many, beside, count)
    named = "cross_entropy bfloat16, labels checked"
    yield named, lambda: _forward("cross_entropy", ampkit.bfloat16, sizes, beside, count, checked=True)


def _bytes(found: dict[str, Any], size: int) -> dict[str, Any]:
    return found | {"GB/s": size / found["seconds"] / 1e9}


def _copy(size: int, beside: PyTorchSide, count: int) -> dict[str, Any]:
    def theirs() -> Call:
        one, other = beside.make(size), beside.make(size)
        return lambda: other.copy_(one)

    with ampkit.no_grad():
        one, other = ampkit.ones(size), ampkit.zeros(size)
        return _bytes(row(lambda: other.copy_(one), theirs, beside, count), 8 * size)


def _forward(
    name: str, dtype: Any, sizes: tuple[int, int, int], beside: PyTorchSide, count: int, checked: bool = False
) -> dict[str, Any]:
    x, call = _ours(name, dtype, sizes)
    size = x.numel() * dtype.itemsize

    def theirs() -> Call:
        _, call = _theirs(beside, name, dtype, sizes)
        without_graph: Call = beside.torch.no_grad()(call)
        return without_graph

    with ampkit.no_grad():
        if checked:
            return _bytes(row(call, theirs, beside, count), size)
        with unchecked():
            return _bytes(row(call, theirs, beside, count), size if name == "cross_entropy" else 2 * size)


def _backward(name: str, dtype: Any, sizes: tuple[int, int, int], beside: PyTorchSide, count: int) -> dict[str, Any]:
    x, call = _ours(name, dtype, sizes)
    size, out = x.numel() * dtype.itemsize, call()
    seed = ampkit.ones(*out.shape, dtype=out.dtype)

    def theirs() -> Call:
        x, call = _theirs(beside, name, dtype, sizes)
        out = call()
        seed = beside.torch.ones_like(out)
        return lambda: beside.torch.autograd.grad(out, [x], [seed], retain_graph=True)

    again = lambda: ampkit.grad(out, [x], [seed], retain_graph=True)  # noqa: E731
    return _bytes(row(again, theirs, beside, count), 2 * size if name == "cross_entropy" else 3 * size)


def _ours(name: str, dtype: Any, sizes: tuple[int, int, int]) -> tuple[Any, Call]:
    rows, width, classes = sizes
    if name == "cross_entropy":
        few = rows // 8 or 1
        x, labels = ampkit.randn(few, classes).to(dtype).requires_grad_(), ampkit.randint(0, classes, (few,))
        return x, lambda: ops.cross_entropy(x, labels)
    x = ampkit.randn(rows, width).to(dtype).requires_grad_()
    weight, bias = ampkit.ones(width), ampkit.zeros(width)
    if name == "softmax":
        return x, lambda: ops.softmax(x, -1)
    return x, lambda: ops.layer_norm(x, (width,), weight, bias)


def _theirs(beside: PyTorchSide, name: str, dtype: Any, sizes: tuple[int, int, int]) -> tuple[Any, Call]:
    functional, (rows, width, classes) = beside.torch.nn.functional, sizes
    if name == "cross_entropy":
        few = rows // 8 or 1
        labels = beside.torch.randint(0, classes, (few,), device=beside.device)
        x = beside.make(few, classes, dtype=dtype, grad=True)
        return x, lambda: functional.cross_entropy(x, labels)
    x = beside.make(rows, width, dtype=dtype, grad=True)
    weight, bias = beside.make(width, dtype=dtype), beside.make(width, dtype=dtype)
    if name == "softmax":
        return x, lambda: functional.softmax(x, -1)
    return x, lambda: functional.layer_norm(x, (width,), weight, bias)


def _parameter(count: int) -> Any:
    # With gradient, moments and a 16-bit copy in its optimizer's arena.
    weight = ampkit.nn.Parameter(ampkit.randn(count))
    optimizer = optim.AdamW([weight], lr=1e-3)
    with ampkit.autocast(ampkit.get_default_device().type, dtype=ampkit.bfloat16):
        ops.linear(ampkit.ones(1, 10), weight.reshape(-1, 10)[:4])
    weight.grad = ampkit.ones(count)
    return optimizer, optimizer.present()[0]


def _adamw(size: int, beside: PyTorchSide, count: int) -> dict[str, Any]:
    # Reads master, gradient and two moments, writes three of them and a 16-bit copy.
    optimizer, run = _parameter(size)

    def theirs() -> Call:
        weight = beside.make(size, grad=True)
        weight.grad = beside.torch.ones_like(weight)
        step: Call = beside.torch.optim.AdamW([weight], lr=1e-3, fused=True).step
        return step

    return _bytes(row(optimizer.step, theirs, beside, count), (28 + 2 * len(run.copies)) * size)


def _unscale(size: int, beside: PyTorchSide, count: int) -> dict[str, Any]:
    _optimizer, run = _parameter(size)
    inverse = run.arena.backend.zeros((), ampkit.float32) + np.float32(1)

    def theirs() -> Call:
        torch, gradient = beside.torch, beside.make(size)
        found, one = (torch.full((), value, device=beside.device) for value in (0.0, 1.0))
        return lambda: torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, one)

    ours = lambda: unscale(run.gradient, inverse, run.arena.nonfinite_scratch())  # noqa: E731
    return _bytes(row(ours, theirs, beside, count), 8 * size)


# products


def products(tiny: bool, beside: PyTorchSide) -> Iterator[Case]:
    """The rows of the section in order: (name, function that measures it)."""
    n, count = (16, 1) if tiny else (8192, 5)
    for dtype in DTYPES:
        yield f"{n}^3 {dtype.name}", lambda dtype=dtype: _product(n, dtype, count, beside)
    yield f"{n}^3 float32 by TF32", lambda: _product(n, ampkit.float32, count, beside, tf32=True)
    shape = (2, 2, 16, 8) if tiny else (16, 12, 1024, 64)
    for backward in (False, True):
        name = f"causal attention{'_backward' if backward else ''} {'x'.join(map(str, shape))} bfloat16"
        yield name, lambda backward=backward: _attention(shape, backward, count, beside)


def _product(n: int, dtype: Any, count: int, beside: PyTorchSide, tf32: bool = False) -> dict[str, Any]:
    def theirs() -> Call:
        a, b = (beside.make(n, n, dtype=dtype) for _ in range(2))
        return lambda: a @ b

    with ampkit.no_grad(), allowed(beside, tf32):
        a, b = (ampkit.randn(n, n).to(dtype) for _ in range(2))
        return _flops(row(lambda: a @ b, theirs, beside, count), 2 * n**3)


def _attention(shape: tuple[int, ...], backward: bool, count: int, beside: PyTorchSide) -> dict[str, Any]:
    dtype, (n, heads, length, width) = ampkit.bfloat16, shape

    def theirs() -> Call:
        torch, function = beside.torch, beside.torch.nn.functional.scaled_dot_product_attention
        three = [beside.make(*shape, dtype=dtype, grad=backward) for _ in range(3)]
        if not backward:
            return lambda: function(*three, is_causal=True)
        out = function(*three, is_causal=True)
        seed = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, three, [seed], retain_graph=True)

    three = [ampkit.randn(*shape).to(dtype).requires_grad_(backward) for _ in range(3)]
    ours = lambda: ops.scaled_dot_product_attention(*three, is_causal=True)  # noqa: E731
    if backward:
        out = ours()
        seed = ampkit.ones(*shape, dtype=dtype)
        ours = lambda: ampkit.grad(out, three, [seed], retain_graph=True)  # noqa: E731
    once = 2 * n * heads * length * length * width  # half of both products, under the diagonal
    return _flops(row(ours, theirs, beside, count), once * 5 // 2 if backward else once)


def _flops(found: dict[str, Any], count: int) -> dict[str, Any]:
    return found | {"TFLOP/s": count / found["seconds"] / 1e12}


# the process


def cases(tiny: bool, beside: PyTorchSide) -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """(section, name, function that measures it) of every row, kernels first."""
    for section, made in (("kernels", kernels), ("products", products)):
        yield from ((section, *case) for case in made(tiny, beside))


def names(tiny: bool = False) -> list[tuple[str, str]]:
    """(section, name) of every row."""
    return [(section, name) for section, name, _ in cases(tiny, PyTorchSide.__new__(PyTorchSide))]


def measured(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a measurement, or its error message."""
    try:
        return measure()
    except Exception as error:
        return {"error": last_line(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", help="the names of those to measure; all")
    parser.add_argument("--device", default="cuda", choices=("cuda", "emulated"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    gpu_facts.use(args.device)
    beside = PyTorchSide("cpu" if args.device == "emulated" else "cuda")
    for section, name, measure in cases(args.tiny, beside):
        if args.rows is None or name in args.rows:
            print(json.dumps({"section": section, "begun": name}), flush=True)
            print(json.dumps({"section": section, "name": name, "row": measured(measure)}), flush=True)
            gc.collect()
            ampkit.cuda.empty_cache()
            beside.free()


if __name__ == "__main__":
    main()
