"""Memory traffic and occupancy of the memory-bound kernels, determined without a GPU.

    python -m tests.bench.traffic

Each line is a call: the bytes that its kernels read and write relative to those that its formula needs (each input read
once, each result written once); the registers of the kernel with the most traffic, and its occupancy on an H100. The
emulation counts bytes (tests/cuda_on_cpu/traffic.py), NVRTC reports registers for sm_90.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda_on_cpu import emulated_cupy, occupancy, traffic
from cuda_on_cpu.emulated_cublaslt import EmulatedCublasLt
from cuda_on_cpu.emulated_cudnn import EmulatedCudnn

import ampkit
from ampkit import Tensor, backends, ops, optim, set_default_device
from ampkit.amp.found_inf import unscale
from ampkit.backends.cuda.device import CUDA
from ampkit.backends.cuda.launch import reduction
from ampkit.backends.cuda.launch import rows as rows_of
from ampkit.backends.cuda.libs import gemm
from ampkit.base.dtypes import bfloat16, float16, float32, int64
from ampkit.core.autograd.tape import grad
from ampkit.core.policy.recipe import RECIPES
from ampkit.kernels.cuda.nn import batch_norm, layer_norm
from ampkit.ops.linalg.quantization import dequantize, quantize, quantize_both

DTYPES = (float32, float16, bfloat16)
ROWS, COLS, CLASSES = 32, 1024, 50257


class Step(NamedTuple):
    """A call, and a function that returns the bytes it needs, valid after the call."""

    name: str
    run: Callable[[], Any]
    needed: Callable[[], int]


class Moved(NamedTuple):
    """The kernel launches of a step, in order, and the bytes that it needs."""

    name: str
    dtype: str
    needed: int
    launches: list[traffic.Launch]

    @property
    def moved(self) -> int:
        return sum(launch.moved for launch in self.launches)

    @property
    def ratio(self) -> float:
        return self.moved / self.needed


def values(*shape: int, dtype: Any = float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def both(name: str, call: Callable[..., Any], inputs: list[Any], reads: list[int], kept: Any = 0) -> Iterator[Step]:
    """Yield forward and backward of `call`. reads: indices of the inputs that the backward reads, -1 for the result.

    kept: additional bytes saved for the backward, or a function of the number of elements of the result.
    """
    there: Any = backends.get("cuda")
    points = [Tensor(there.asarray(a), requires_grad=a.dtype in DTYPES) for a in inputs]
    wanted, outs, seeds = [p for p in points if p.requires_grad], [], []

    def forward() -> None:
        found = call(*points)
        outs[:] = found if isinstance(found, tuple) else (found,)

    def beside() -> int:
        return kept(outs[-1].numel()) if callable(kept) else kept

    yield Step(name, forward, lambda: size([*points, *outs]) + beside())
    seeds += [Tensor(there.asarray(values(*out.shape, dtype=out.dtype))) for out in outs]
    read = [(*points, outs[-1])[i] for i in reads]
    backward = f"{name} backward", lambda: grad(outs, wanted, seeds)
    yield Step(*backward, lambda: size([*seeds, *read, *wanted]) + beside())


def size(tensors: list[Tensor]) -> int:
    return sum(t.numel() * t.dtype.itemsize for t in tensors)


def maps(dtype: Any) -> Iterator[Step]:
    x, y = values(ROWS, COLS, dtype=dtype), values(ROWS, COLS, dtype=dtype, seed=1)
    yield next(both("add", ops.add, [x, y], []))
    yield next(both("add of a bias", ops.add, [x, x[0]], []))
    yield from both("mul", ops.mul, [x, y], [0, 1])
    yield from both("gelu", ops.gelu, [x], [0])
    yield from both("relu", ops.relu, [x], [0])
    yield from both("silu", ops.silu, [x], [0])
    yield from both("silu_mul", ops.silu_mul, [x, y], [0, 1])
    cos, sin = (Tensor(backends.get("cuda").asarray(values(8, 64, seed=seed))) for seed in (0, 1))
    yield from both(
        "rotary_embedding", lambda x: ops.rotary_embedding(x, cos, sin), [values(2, 16, 8, 128, dtype=dtype)], []
    )
    yield next(both("cast", lambda x: x.to(float32 if dtype != float32 else bfloat16), [x], []))
    yield from both("dropout", lambda x: ops.dropout(x, 0.5), [x], [], kept=lambda n: n)


def rows(dtype: Any) -> Iterator[Step]:
    for name, op in (("softmax", ops.softmax), ("log_softmax", ops.log_softmax)):
        for cols in (COLS, 4096, 50000, 128256):
            x = values(max(2, ROWS * COLS // cols), cols, dtype=dtype)
            yield from both(f"{name} of {cols}", lambda x, op=op: op(x, -1), [x], [-1])
    scores, labels = values(2, CLASSES, dtype=dtype), np.arange(2, dtype=int64)
    yield from both(f"cross_entropy of {CLASSES}", ops.cross_entropy, [scores, labels], [0, 1], kept=8)


def norms(dtype: Any) -> Iterator[Step]:
    for cols in (COLS, 1001, 4096, 8200):
        x, w, shape = values(max(32, 2 * ROWS * COLS // cols), cols, dtype=dtype), values(cols), (cols,)
        many = 8 * len(x)
        layer = lambda x, w, b, shape=shape: ops.layer_norm(x, shape, w, b)  # noqa: E731
        yield from both(f"layer_norm of {cols}", layer, [x, w, w], [0, 1], kept=many)
        rms = lambda x, w, shape=shape: ops.rms_norm(x, shape, w)  # noqa: E731
        yield from both(f"rms_norm of {cols}", rms, [x, w], [0, 1], kept=many // 2)
    x, w = values(32, 8200, dtype=dtype), values(8200)
    for step in both("layer_norm, sums apart", lambda x, w, b: ops.layer_norm(x, 8200, w, b), [x, w, w], [0, 1], 256):
        yield step._replace(run=lambda step=step: with_less_shared(step.run))
    for cols in (30000, 128256):
        x, shape = values(2, cols, dtype=dtype), (cols,)
        layer = lambda x, shape=shape: ops.layer_norm(x, shape)  # noqa: E731
        yield from both(f"bare layer_norm of {cols}", layer, [x], [0], kept=16)
    yield from residual(dtype)
    images, w = values(8, 32, 12, 12, dtype=dtype), values(32)
    large, v = values(1, 8, 160, 160, dtype=dtype), values(8)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    group = lambda x, w, b: ops.group_norm(x, 8, w, b)  # noqa: E731
    yield from both("group_norm", group, [images, w, w], [0, 1], kept=8 * 64)
    whole = lambda x, w, b: ops.group_norm(x, 2, w, b)  # noqa: E731
    yield from both("group_norm of 102400", whole, [large, v, v], [0, 1], kept=16)
    batch = lambda x, w, b: ops.batch_norm(x, None, None, w, b, training=True)  # noqa: E731
    twice = images.nbytes + 8 * 32  # the batch statistics must be complete before normalization starts
    yield from both("batch_norm", batch, [images, w, w], [0, 0, 1], kept=twice)
    yield from both("batch_norm, channels last", batch, [last, w, w], [0, 0, 1], kept=twice)


def with_less_shared(run: Callable[[], Any]) -> None:
    """Run with 64 KiB of shared memory, which hold a row here as 226 KiB hold one of 28928 values."""
    there: Any = backends.get("cuda")
    there.shared = 64 << 10
    run()
    del there.shared


def residual(dtype: Any) -> Iterator[Step]:
    x, w = values(2 * ROWS, COLS, dtype=dtype), values(COLS)
    stream = x.astype(float32)

    def call(x: Any, y: Any, w: Any, b: Any) -> Any:
        with ampkit.autocast("cuda", dtype=dtype if dtype != float32 else bfloat16, enabled=dtype != float32):
            return ops.add_layer_norm(x, y, (COLS,), w, b)

    steps = both("add_layer_norm", call, [stream, x, w, w], [2])
    kept = 8 * len(x), stream.nbytes + 8 * len(x)  # the backward reads the sum again
    for step, more in zip(steps, kept, strict=True):
        yield step._replace(needed=lambda step=step, more=more: step.needed() + more)


def lookups(dtype: Any) -> Iterator[Step]:
    index = np.random.default_rng(0).permutation(128)
    yield from both("embedding", lambda i, w: ops.embedding(i, w), [index, values(128, COLS, dtype=dtype)], [0])


def codes(dtype: Any) -> Iterator[Step]:
    """Both ways that a linear layer needs of its input; a second reading for maxima counts as needed."""
    there: Any = backends.get("cuda")
    x = there.asarray(values(4 * ROWS, COLS, dtype=dtype))
    for name in ("current", "delayed", "rowwise", "blockwise", "mxfp8", "nvfp4"):
        chosen, found = RECIPES[name], list[Any]()
        first, second = chosen.forward.first, chosen.weight_gradient.second
        scale = there.zeros((1, 1), float32) + np.float32(1) if first.delayed else None

        def run(first=first, second=second, scale=scale, found=found) -> None:
            found[:] = quantize_both(x, first, second, scale)

        readings = 2 if name in ("current", "rowwise", "nvfp4") else 1
        yield Step(
            f"quantize, {name}", run, lambda r=readings, found=found: r * x.nbytes + sum(q.nbytes for q in found[:2])
        )
    how = RECIPES["mxfp8"].forward.first
    quantized = quantize(x, how)[0]
    needed = quantized.nbytes + 4 * x.size
    yield Step("dequantize, mxfp8", lambda: dequantize(quantized), lambda: needed)


def sums(dtype: Any) -> Iterator[Step]:
    x = values(4 * ROWS, COLS, dtype=dtype)
    for name, dim in (("sum", None), ("sum of rows", 1), ("sum of columns", 0)):
        yield next(both(name, lambda x, dim=dim: ops.sum(x, dim), [x], []))
    yield next(both("gradient of a bias", lambda x: Tensor(gemm.column_sums(x.array, float32)), [x], []))


def updates(dtype: Any) -> Iterator[Step]:
    count = 1 << 17
    for name, make, each in (("AdamW", optim.AdamW, 28), ("SGD with momentum", optim.SGD, 20)):
        weight = ampkit.nn.Parameter(ampkit.randn(count))
        optimizer = make([weight], lr=1e-3, **({"momentum": 0.9} if make is optim.SGD else {}))
        with ampkit.autocast("cuda", dtype=bfloat16):
            ops.linear(ampkit.ones(1, 16), weight.reshape(-1, 16)[:4])
        weight.grad = ampkit.ones(count)
        optimizer.step()
        run = optimizer.present()[0]
        yield Step(name, optimizer.step, lambda r=run, each=each: (each + 2 * len(r.copies)) * count)
    inverse = run.arena.backend.zeros((), float32) + np.float32(1)
    yield Step("unscale", lambda: unscale(run.gradient, inverse, run.arena.nonfinite_scratch()), lambda: 8 * count)


CASES = [(group, dtype) for dtype in DTYPES for group in (maps, rows, norms, lookups, codes, sums)] + [
    (updates, float32)
]
MOST = 1.1  # moved over needed
MORE = {  # exceptions by prefix of the name, with their reasons
    "softmax of 128256 backward": (1.4, "shared memory holds 226 KiB of both inputs, the rest is read twice"),
    "log_softmax of 128256 backward": (1.4, "as softmax"),
    "bare layer_norm of 128256 backward": (1.4, "as softmax"),
    "layer_norm, sums apart backward": (
        1.8,
        "shared memory holds no sums for weight and bias beside a row: another kernel",
    ),
    "group_norm of 102400 backward": (
        1.8,
        "rows that exceed shared memory are read by two kernels",
    ),
}


def most_of(name: str) -> float:
    """The largest allowed ratio of moved to needed bytes of the step `name`."""
    return next((most for start, (most, _) in MORE.items() if name.startswith(start)), MOST)


@contextmanager
def few_blocks() -> Iterator[None]:
    """Within the block kernels use few thread blocks, as fits the few rows here."""
    changed = [(layer_norm, "CHUNKS", 1), (reduction, "BLOCKS", 4), (batch_norm, "BLOCKS", 64)]
    changed += [(rows_of, "MULTIPROCESSORS", 0)]
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextmanager
def on(kernels: Any) -> Iterator[None]:
    """Make an emulated GPU with these kernels the default device."""
    card: Any = CUDA(emulated_cupy, kernels=kernels, cublaslt=EmulatedCublasLt(), cudnn=EmulatedCudnn())
    card.raise_if = lambda *values: None  # of labels: kernels that only record their names do not set the flag
    undo = backends.install(card)
    set_default_device("cuda")
    try:
        yield
    finally:
        set_default_device("cpu")
        undo()


def measured(cases: Sequence[tuple[Any, Any]] = CASES) -> list[Moved]:
    """Measure the steps of `cases`."""
    named = traffic.Entries()
    with few_blocks(), on(named):
        for _, step in _steps(cases):
            step.run()
    counted, found = traffic.Counted(named.found), []
    with few_blocks(), on(counted):
        for dtype, step in _steps(cases):
            counted.launches.clear()
            step.run()
            found.append(Moved(step.name, dtype.name, step.needed(), list(counted.launches)))
    return found


def _steps(cases: Sequence[tuple[Any, Any]]) -> Iterator[tuple[Any, Step]]:
    yield from ((dtype, step) for group, dtype in cases for step in group(dtype))


def main() -> None:
    print(f"{'':36}{'dtype':9}{'moved/needed':>13}{'registers':>11}{'occupancy':>11}  kernel that moves the most")
    for row in measured():
        most = max(row.launches, key=lambda launch: launch.moved)
        taken = occupancy.of(most)
        figures = f"{row.ratio:13.2f}{taken.registers:11}{taken.share:11.0%}"
        print(f"{row.name:36}{row.dtype:9}{figures}  {most.name}, {most.threads} threads")
    print(f"\nAbove {MOST}:")
    for start, (_, why) in MORE.items():
        print(f"{start}: {why}")


if __name__ == "__main__":
    main()
