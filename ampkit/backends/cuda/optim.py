"""Bodies of the optimizers: an update, with its moments and 16-bit copies, in one pass over flat memory; norms and
clipping; schedules.

Learning rates, betas, momentum, the count of steps and the flag of a real step are read by the kernels. float64 masters
are left to the references. Not yet run on a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import backends
from ...core.dtypes import DType, bfloat16, float16, float32, float64
from ...flat import narrow
from ...optim.adam import adam_update
from ...optim.clip import power_sum, shrink
from ...optim.schedule import follow
from ...optim.sgd import sgd_update
from .kernel import STORED, blocks_for, launch, typed

Array = Any  # a CuPy array
BLOCK = 256  # threads
BLOCKS = 4096  # of an update: several for each place that a GPU has, so that none is idle for long at the end
PARTS = 1024  # blocks of a sum, which the threads of one block then add up


def _flat(*arrays: Array | None) -> bool:
    return all(a is None or bool(a.flags.c_contiguous) for a in arrays)


def _wide(dtype: DType, *arrays: Array | None) -> int:
    """How many values of `dtype` are accessed at once: 16 bytes of them where all arrays begin on that many values."""
    count = 16 // dtype.itemsize
    return 1 if any(a is not None and a.data.ptr % (count * a.dtype.itemsize) for a in arrays) else count


def _grid(count: int, wide: int, most: int = BLOCKS) -> int:
    return min(blocks_for(count, BLOCK * wide), most)


def _update(name: str, flats: tuple[Array | None, ...], copies: list[Array], *numbers: Any) -> None:
    """Launch an update of `flats`, the masters first, in the kernel's order: flats, copies, numbers, count."""
    by_dtype = {copy.dtype: copy for copy in copies}
    homes = by_dtype.get(float16), by_dtype.get(bfloat16)
    wide, count = _wide(float32, *flats, *homes), flats[0].size  # type: ignore[union-attr]
    entry = typed(name, str(wide))
    launch("optim", entry, _grid(count, wide), BLOCK, *flats, *homes, *numbers, np.int64(count))


@adam_update.on("cuda", when=lambda master, gradient, *rest, **options: master.dtype == gradient.dtype == float32)
def adam_update_cuda(
    master: Array, gradient: Array, mean: Array, square: Array, largest: Array | None, steps: Array,
    lr: Array, betas: Array, go: Array | None, copies: list[Array], scratch: Any,
    *, eps: float, weight_decay: float, decoupled: bool, maximize: bool,
) -> None:  # fmt: skip
    decay, penalty = (weight_decay, 0.0) if decoupled else (0.0, weight_decay)
    numbers = np.float32(eps), np.float64(decay), np.float32(penalty), np.bool_(maximize)
    _update("adam_update", (master, gradient, mean, square, largest), copies, steps, lr, betas, go, *numbers)


@sgd_update.on("cuda", when=lambda master, gradient, *rest, **options: master.dtype == gradient.dtype == float32)
def sgd_update_cuda(
    master: Array, gradient: Array, buffer: Array | None, steps: Array, lr: Array, momentum: Array,
    go: Array | None, copies: list[Array], scratch: Any,
    *, dampening: float, weight_decay: float, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    numbers = np.float64(dampening), np.float32(weight_decay), np.bool_(nesterov), np.bool_(maximize)
    _update("sgd_update", (master, gradient, buffer), copies, steps, lr, momentum, go, *numbers)


def _narrows(master: Array, copy: Array) -> bool:
    return master.dtype == float32 and copy.dtype in (float16, bfloat16) and _flat(master, copy)


@narrow.on("cuda", when=_narrows)
def narrow_cuda(master: Array, copy: Array) -> None:
    wide = _wide(float32, master, copy)
    entry = typed("narrow", copy.dtype, str(wide))
    launch("optim", entry, _grid(master.size, wide), BLOCK, master, copy, np.int64(master.size))


# norms


@power_sum.on("cuda", when=lambda values, order, scratch: values.dtype in STORED and _flat(values))
def power_sum_cuda(values: Array, order: float, scratch: Array) -> Array:
    kind = "0" if order == math.inf else "2" if order == 2 else "1"
    wide, home = _wide(values.dtype, values), backends.of(values)
    blocks = _grid(values.size, wide, PARTS)
    parts, total = home.empty((blocks,), float64), home.empty((), float64)
    entry = typed("power_sum", values.dtype, str(wide), kind)
    launch("optim", entry, blocks, BLOCK, values, parts, np.float64(order), np.int64(values.size))
    launch("optim", typed("power_sum_finish", kind), 1, BLOCK, parts, total, np.int64(blocks))
    return total


@shrink.on("cuda", when=lambda values, factor, go: values.dtype in STORED and _flat(values))
def shrink_cuda(values: Array, factor: Array, go: Array) -> None:
    wide = _wide(values.dtype, values)
    entry = typed("shrink", values.dtype, str(wide))
    launch("optim", entry, _grid(values.size, wide), BLOCK, values, factor, go, np.int64(values.size))


# schedules


@follow.on("cuda")
def follow_cuda(count: Array, seen: Array, steps: Array, table: Array, row: Array) -> None:
    rows, width = table.shape
    launch("optim", "follow", 1, 32, count, seen, steps, table, row, np.int64(rows), np.int64(width))
