"""CPU kernel of Adafactor for matrices: blocks of rows on several threads, in three passes.

On a CPU a skipped step returns early; the reference, which must not wait for a device, computes both outcomes.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.backends.cpu.parallel_map import parallel_map
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.optim.adafactor import adafactor_update, rescaled
from ampkit.optim.clip import power_sum
from ampkit.optim.flat.memory import CHUNK, narrow, read_scalar


class _Part(NamedTuple):
    """Rows of a matrix, or whole matrices, of [outer, height, width]."""

    outer: slice
    height: slice


def _parts(outer: int, height: int, width: int) -> list[_Part]:
    if height * width >= CHUNK:
        lines = max(1, CHUNK // width)
        return [_Part(slice(i, i + 1), slice(r, r + lines)) for i in range(outer) for r in range(0, height, lines)]
    many = CHUNK // (height * width)
    return [_Part(slice(i, i + many), slice(0, height)) for i in range(0, outer, many)]


def _fits(
    master: HostArray, gradient: HostArray, rows: HostArray, columns: HostArray | None, *rest: Any, **options: Any
) -> bool:
    return type(master) is np.ndarray and columns is not None and master.size >= CHUNK


@adafactor_update.on("cpu", when=_fits)
def adafactor_update_cpu(
    master: HostArray, gradient: HostArray, rows: HostArray, columns: HostArray, steps: HostArray, lr: HostArray,
    all_finite: HostArray | None, copies: list[HostArray], beta2_decay: float, least: float, least_scale: float,
    limit: float, weight_decay: float, maximize: bool,
) -> None:  # fmt: skip
    """The reference's arithmetic; sums are put together in the order of the blocks, whoever came first."""
    if all_finite is not None and not read_scalar(all_finite):
        for copy in copies:  # after any step they count as fresh, and one that was just made is not filled yet
            narrow(master.reshape(-1), copy)
        return
    kind, (height, width) = master.dtype, master.shape[-2:]
    outer, count = prod(master.shape[:-2]), read_scalar(steps) + 1.0
    p, g = (array.reshape(outer, height, width) for array in (master, gradient))
    rows, columns = rows.reshape(outer, height, 1), columns.reshape(outer, 1, width)
    parts = _parts(outer, height, width)
    _learn(g, rows, columns, parts, kind.type(count**beta2_decay))
    share = rows / np.maximum(rows.mean(axis=-2, keepdims=True), least)

    def direction(part: _Part) -> HostArray:
        found: HostArray = rescaled(share[part] * columns[part.outer], least) * g[part]
        return found

    @ignore_fp_errors()
    def squares(part: _Part) -> tuple[float, float]:
        wide = np.empty((p[part].size,))
        both = p[part], direction(part)
        return tuple(float(power_sum(array.reshape(-1), 2.0, wide)) for array in both)  # type: ignore[return-value]  # of two

    @ignore_fp_errors()
    def move(part: _Part) -> None:
        block = p[part]
        block *= decay_factor
        block -= direction(part) * rate
        start = (part.outer.start * height + part.height.start) * width
        for copy in copies:
            narrow(block.reshape(-1), copy[start : start + block.size])

    size, moved = np.sqrt(np.sum(parallel_map(squares, parts), axis=0) / master.size)
    pace = np.maximum(least_scale, size) * min(read_scalar(lr), 1 / np.sqrt(count)) / np.maximum(1.0, moved / limit)
    rate, decay_factor = kind.type(-pace if maximize else pace), kind.type(1 - read_scalar(lr) * weight_decay)
    parallel_map(move, parts)


def _learn(g: HostArray, rows: HostArray, columns: HostArray, parts: list[_Part], new: Any) -> None:
    """Rows and columns take in the mean squares of g."""

    @ignore_fp_errors()
    def squares(part: _Part) -> HostArray:
        square, mean = g[part] * g[part], rows[part]
        mean += (square.mean(axis=-1, keepdims=True) - mean) * new
        sums: HostArray = square.sum(axis=-2, keepdims=True)
        return sums

    total = np.zeros_like(columns)
    for part, sums in zip(parts, parallel_map(squares, parts), strict=True):
        total[part.outer] += sums
    columns += (total / g.shape[-2] - columns) * new
