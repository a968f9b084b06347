"""The process of one library for `ops.py`: it makes a row's inputs, computes for some time, and answers with times.

python tests/bench/op_calls.py LIBRARY THREADS     reads lines of JSON, [row, seconds], and prints one for each
"""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from op_cases import Built, Input
from op_layers import FAMILIES

CASES = {case.name: (family, case) for family, cases in FAMILIES.items() for case in cases}
WAIT = 0.01  # seconds before a turn, in which the other library's OpenMP threads stop to spin
BLOCK = 1_000_003  # a prime: rows of repeated values differ


class Row(NamedTuple):
    """One line of the table; gradient: "dense" or "sum"."""

    op: str
    size: str
    dtype: str
    layout: str = "contiguous"
    gradient: str = "dense"

    @property
    def key(self) -> str:
        return ", ".join((self.op, self.size, self.dtype, self.layout, self.gradient))


def rows(dtypes: list[str], sizes: list[str], layouts: bool = True) -> Iterator[Row]:
    """Every size with a dense gradient; the other layout and a gradient behind .sum() with the medium size alone."""
    for dtype in dtypes:
        for _, case in CASES.values():
            for size in (size for size in sizes if size in case.inputs and dtype in case.dtypes):
                yield Row(case.name, size, dtype)
                if size in ("medium", "tiny") and case.backward and not case.scalar:
                    yield Row(case.name, size, dtype, gradient="sum")
                if size in ("medium", "tiny") and case.layout and layouts:
                    yield Row(case.name, size, dtype, case.layout)


class Inputs:
    """Makes the tensors of one library, with the same numbers as the other's."""

    def __init__(self, library: Any):
        self.library = library
        random = np.random.default_rng(0)
        self.normal, self.whole = random.standard_normal(BLOCK, np.float32), random.integers(0, 1 << 40, BLOCK)

    def make(self, given: Input, dtype: str, layout: str) -> Any:
        order = _memory_order(len(given.shape), layout)
        shape = [given.shape[i] for i in order]
        block = self.whole if isinstance(given.values, int) else self.normal
        values = np.resize(block[: max(1, math.prod(shape))], shape)
        if isinstance(given.values, int):
            return self._tensor(values % given.values, order)
        if given.values == "mask":
            return self._tensor(values > 0, order)
        if given.values in ("positive", "constant"):
            values = np.minimum(np.abs(values) + np.float32(0.1), np.float32(1))
        made = self._tensor(values, order, "float32" if given.values == "float32" else dtype)
        return made.requires_grad_(given.values != "constant")

    def _tensor(self, values: np.ndarray, order: list[int], dtype: str | None = None) -> Any:
        torch = self.library.__name__ == "torch"
        made = self.library.from_numpy(values) if torch else self.library.tensor(values)
        if dtype is not None:
            made = made.to(getattr(self.library, dtype))
        return made.permute(*(order.index(i) for i in range(len(order)))).detach()


def _memory_order(dimensions: int, layout: str) -> list[int]:
    """The axes of a tensor from the slowest to the fastest in memory."""
    axes = list(range(dimensions))
    if layout == "transposed" and dimensions > 1:
        axes[-2:] = axes[:-3:-1]
    if layout == "channels_last" and dimensions == 4:
        axes = [0, 2, 3, 1]
    return axes


class Timed:
    """A row's call, ready to be timed."""

    def __init__(self, row: Row, inputs: Inputs):
        case = CASES[row.op][1]
        tensors = [inputs.make(given, row.dtype, row.layout) for given in case.inputs[row.size]]
        library = inputs.library
        if case.built:
            self.built = case.call(library, row.dtype, *tensors)
        else:
            self.built = Built(lambda: case.call(library, *tensors), [t for t in tensors if t.requires_grad])
        self.backward, self.summed, self.seed = case.backward, row.gradient == "sum", None
        if case.once:
            self.seed = library.ones_like(tensors[0])
        else:
            self.once()

    def once(self) -> tuple[float, float]:
        """Seconds of forward and backward of one call."""
        self.built.before()
        for leaf in self.built.leaves:
            leaf.grad = None
        start = time.perf_counter()
        out = self.built.call()
        end = time.perf_counter()
        return end - start, self._backward(out) if self.backward else 0.0

    def _backward(self, out: Any) -> float:
        if self.summed:
            out, seed = out.sum(), None
        elif self.seed is None:
            self.seed = seed = dense_like(out)
        else:
            seed = self.seed
        start = time.perf_counter()
        out.backward(seed)
        return time.perf_counter() - start


def dense_like(tensor: Any) -> Any:
    """A copy of a tensor with its order of axes in memory, which ampkit's clone() does not keep."""
    axes = range(tensor.dim())
    order = sorted(axes, key=lambda axis: -tensor.stride(axis))
    copy = tensor.detach().permute(*order).clone() if order else tensor.detach().clone()
    return copy.permute(*(order.index(axis) for axis in axes)) if order else copy


def answers(library: Any) -> None:
    """Read requests of [row, seconds] from stdin; for each print the times of calls, or what failed."""
    inputs, row, timed = Inputs(library), None, None
    for line in sys.stdin:
        wanted, seconds = json.loads(line)
        try:
            if wanted != row:
                row, timed = wanted, None
                gc.collect()
                timed = Timed(Row(*wanted), inputs)
            answer: Any = turn(timed, seconds)
        except Exception as error:
            answer = {"error": (str(error).strip().splitlines() or [type(error).__name__])[0][:200]}
        print(json.dumps(answer), flush=True)


def turn(timed: Timed, seconds: float) -> list[tuple[float, float]]:
    """The times of calls for about so many seconds, of at least one."""
    time.sleep(WAIT if seconds else 0)
    found, end = [], time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        found.append(timed.once())
    return found


def main() -> None:
    library = __import__(sys.argv[1])
    library.set_num_threads(int(sys.argv[2]))
    gc.freeze()  # a collection between rows looks at their objects alone
    answers(library)


if __name__ == "__main__":
    main()
