"""Bytes that the memory-bound kernels of a training step move on a GPU, and its launches: eager and recorded.

    python tests/bench/gpu_fused_steps.py [llama] [vit] [gpt2] [resnet50] [--report]

Counted from the launches of a step of the real model in bfloat16, without a GPU and without running them: each array
that a kernel reads or writes counts once, with the bytes of its elements; of several views of the same memory, which a
chain reads at the same time, each byte once. Products, convolutions, attention and the optimizer's update are apart, as
no chain can join them. CuPy's own kernels, copies of arrays that no kernel of ampkit takes, count, too. A recorded step
is its graph and what the host launches beside it, such as the copy of the batch. Bytes are counted at two sizes of the
batch; from them follow those of the whole one, as what parameters alone need does not grow with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from cuda_on_cpu import emulated_cupy

import ampkit
from ampkit import backends, models, nn, ops, optim
from ampkit.backends.cuda.device import CUDA
from ampkit.backends.cuda.launch.waiting import bytes_of, extent

APART = ("cublaslt", "cudnn", "optim/update")


class Counted(NamedTuple):
    """source: of the kernel, or the library; name: of the kernel; moved: bytes; recorded: whether a graph has it."""

    source: str
    name: str
    moved: int
    recorded: bool


log: list[Counted] = []


def count(source: str, name: str, moved: int) -> None:
    log.append(Counted(source, name, moved, emulated_cupy.recording()))


def _bytes(arrays: Any) -> int:
    return sum(bytes_of(array) for array in arrays if isinstance(array, emulated_cupy.ndarray))


def _bytes_once(arrays: Any) -> int:
    """The same, where views may overlap."""
    found, group, end = 0, 0, 0
    given = [one for one in arrays if isinstance(one, emulated_cupy.ndarray) and one.nbytes]
    for array in sorted(given, key=lambda one: extent(one)[0]):
        low, high = extent(array)
        if low >= end:
            found, group, start = found + group, 0, low
        end = max(end, high) if group else high
        group = min(group + bytes_of(array), end - start)
    return found + group


class Kernels:
    """Kernels that do not run."""

    def entry(self, source: str, name: str) -> Callable[..., None]:
        def run(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            if "\n" in source:
                count("chain", name, _bytes_once(args))
            else:
                seen = args[name.startswith("batch_norm_statistics") :]  # which reads one element of each channel
                count(source, name, _bytes(seen))

        return run


class Products:
    refused: dict[str, str] = {}  # noqa: RUF012

    def unavailable_reason(self) -> str:
        return ""

    def run(self, device: int, product: Any, memory: Any, alpha: float = 1.0, beta: float = 0.0) -> bool:
        count("cublaslt", "product", 0)
        return True


class Cudnn:
    refused: dict[str, str] = {}  # noqa: RUF012

    def unavailable_reason(self) -> str:
        return ""

    def backward_workspace(self, call: Any) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        if name not in ("conv_forward", "conv_data", "conv_weight", "attention_forward", "attention_backward"):
            raise AttributeError(name)
        return lambda *args, **kwargs: count("cudnn", name, 0) or True


def count_cupy() -> None:
    """Count the kernels of CuPy itself, which do run."""
    done, assign = emulated_cupy._done, emulated_cupy.ndarray.__setitem__

    def counted_call(function: Any, args: Any, kwargs: Any, changes: bool, owner: Any = None) -> Any:
        found = done(function, args, kwargs, changes, owner)
        given, made = emulated_cupy._arrays([owner, *args, *kwargs.values()]), emulated_cupy._arrays([found])
        if changes or not any(one._memory is each._memory for one in made for each in given):
            count("cupy", function.__name__, _bytes([*given, *made]))
        return found

    def counted_assignment(array: Any, index: Any, value: Any) -> None:
        assign(array, index, value)
        count("cupy", "assignment", array._numpy[index].nbytes + _bytes([value]))

    emulated_cupy._done, emulated_cupy.ndarray.__setitem__ = counted_call, counted_assignment


class Rms(nn.Module):
    """RMS norm in plain ops."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(ampkit.ones(width))

    def forward(self, x: Any) -> Any:
        return x * ops.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """A block of a Llama-like model in plain ops."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = Rms(width), Rms(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def _heads(self, y: Any) -> Any:
        return y.reshape(*y.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        def turned(y: Any) -> Any:
            a, b = y.chunk(2, -1)
            return y * cos + ops.cat([-b, a], -1) * sin

        h = self.norm_1(x)
        q, k, v = turned(self._heads(self.q(h))), turned(self._heads(self.k(h))), self._heads(self.v(h))
        seen = ops.scaled_dot_product_attention(q.to(ampkit.bfloat16), k.to(ampkit.bfloat16), v, is_causal=True)
        x = x + self.o(seen.transpose(1, 2).reshape(*x.shape))
        h = self.norm_2(x)
        return x + self.down(ops.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """12 blocks of width 768."""

    def __init__(self, width: int = 768, heads: int = 12, hidden: int = 2048, layers: int = 12, tokens: int = 1024):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, heads, hidden) for _ in range(layers)])
        self.cos, self.sin = ampkit.zeros(tokens, width // heads), ampkit.zeros(tokens, width // heads)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return x


def _tokens(*shape: int) -> Any:
    return ampkit.tensor(np.random.default_rng(0).integers(0, 50257, shape))


def _classified(out: Any, labels: Any) -> Any:
    return ops.cross_entropy(out.flatten(0, -2), labels.flatten())


class Work(NamedTuple):
    """make: the model. batch(n): input and labels of n samples. size: of the whole batch."""

    make: Callable[[], Any]
    batch: Callable[[int], tuple[Any, Any]]
    loss: Callable[[Any, Any], Any]
    size: int


def _images(n: int) -> tuple[Any, Any]:
    return ampkit.zeros(n, 3, 224, 224), ampkit.zeros(n, dtype=ampkit.int64)


VIT = {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
GPT2 = {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
WORK = {
    "llama": Work(Llama, lambda n: (ampkit.zeros(n, 1024, 768),) * 2, lambda out, _: out.float().mean(), 16),
    "vit": Work(lambda: models.vit(**VIT, num_classes=1000), _images, ops.cross_entropy, 256),
    "resnet50": Work(lambda: models.resnet50(num_classes=1000), _images, ops.cross_entropy, 256),
    "gpt2": Work(lambda: models.gpt(**GPT2), lambda n: (_tokens(n, 1024), _tokens(n, 1024)), _classified, 16),
}
SIZES = 2, 3  # of the batches that are counted


def counted(name: str, compiled: bool, size: int) -> tuple[list[Counted], Any]:
    """The launches of one step of a batch of this size, and the report of a compiled one."""
    work = WORK[name]
    ampkit.manual_seed(0)
    model, (x, y) = work.make().to("cuda"), work.batch(size)
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)

    def step(x: Any, y: Any) -> None:
        with ampkit.autocast("cuda", dtype=ampkit.bfloat16):
            loss = work.loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    run = ampkit.compile(step, warmup=2) if compiled else step
    for _ in range(2):
        run(x, y)
    log.clear()
    run(x, y)
    if not compiled:
        return list(log), None
    graph = [one for one in log if one.recorded]
    log.clear()
    run(x, y)
    return [*graph, *log], run.report()


def install() -> None:
    """Make a GPU whose kernels do not run the default device."""
    gpu: Any = CUDA(emulated_cupy, kernels=Kernels(), cublaslt=Products(), cudnn=Cudnn())
    gpu.raise_if = lambda *values: None  # of labels
    backends.install(gpu)
    ampkit.set_default_device("cuda")
    count_cupy()


class Kernel(NamedTuple):
    """Launches of one kernel in a step of the whole batch."""

    times: int
    moved: float


def kernels(name: str, compiled: bool) -> tuple[dict[tuple[str, str], Kernel], Any]:
    """The kernels of a step of the whole batch, and the report of a compiled one."""
    (first, _), (second, report) = [counted(name, compiled, size) for size in SIZES]
    found, growth = dict[tuple[str, str], Kernel](), (WORK[name].size - SIZES[1]) / (SIZES[1] - SIZES[0])
    for key in {one[:2]: None for one in second}:
        few, many = ([one.moved for one in each if one[:2] == key] for each in (first, second))
        found[key] = Kernel(len(many), sum(many) + growth * (sum(many) - sum(few)))
    return found, report


def figures(found: dict[tuple[str, str], Kernel]) -> tuple[int, int, float]:
    """All launches, the memory-bound ones, and their bytes."""
    bound = [one for (source, _), one in found.items() if source not in APART]
    return sum(one.times for one in found.values()), sum(one.times for one in bound), sum(one.moved for one in bound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", nargs="*", default=list(WORK), metavar="WORK", help=", ".join(WORK))
    parser.add_argument("--report", action="store_true", help="show what was fused, and the kernels that remain")
    args = parser.parse_args()
    install()
    for name in args.work:
        (before, _), (after, report) = kernels(name, False), kernels(name, True)
        (all_1, bound_1, moved_1), (all_2, bound_2, moved_2) = figures(before), figures(after)
        print(f"{name}: launches {all_1} to {all_2}, memory-bound {bound_1} to {bound_2}, "
              f"{moved_1 / 1e9:.1f} to {moved_2 / 1e9:.1f} GB: {moved_2 / moved_1:.2f}")  # fmt: skip
        if args.report:
            print(report)
            for (source, kernel), one in sorted(after.items(), key=lambda each: -each[1].moved)[:24]:
                print(f"{one.moved / 1e9:8.2f} GB {one.times:5} x {source} {kernel}")


if __name__ == "__main__":
    main()
