"""CPU kernels of embedding; the backward sums rows of the same index in runs, one step of all runs at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.primitive import HostArray, empty
from ampkit.base.dtypes import FLOATS, accumulator
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.embedding import embedding

_RUN = 32  # rows added one after the other; sums of more are sums of such sums, or they would lose digits
_SHORT = 1 << 16  # NumPy sorts 16-bit integers several times as fast


def _sums(values: HostArray, index: HostArray) -> tuple[HostArray, HostArray]:
    """The sum of the rows of `values` [R, D] for each value of `index` [R], and these values."""
    while True:
        order = np.argsort(index, kind="stable")
        ordered = index[order]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        if len(starts) == len(index):
            return values, index
        place = np.arange(len(index)) - np.repeat(starts, np.diff(starts, append=len(index)))
        runs = np.flatnonzero(place % _RUN == 0)
        values, runs = _runs(values, order, runs)
        index = ordered[runs]
        if len(runs) == len(starts):
            return values, index


def _runs(values: HostArray, order: HostArray, runs: HostArray) -> tuple[HostArray, HostArray]:
    """The sums of the rows `order` of `values` in runs; and where these begin, which is `runs`, the longest first."""
    lengths = np.diff(runs, append=len(order))
    longest_first = np.argsort(-lengths, kind="stable")
    runs, lengths = runs[longest_first], lengths[longest_first]
    sums, scratch = (empty((len(runs), values.shape[1]), values.dtype) for _ in range(2))
    np.take(values, order[runs], 0, out=sums, mode="clip")
    for step, still in enumerate(np.searchsorted(-lengths, -np.arange(1, lengths[0])).tolist(), 1):
        np.take(values, order[runs[:still] + step], 0, out=scratch[:still], mode="clip")
        sums[:still] += scratch[:still]
    return sums, runs


def _fits(dy: Any, saved: Saved, needs: Any, padding_idx: Any) -> bool:
    return needs[1] is not None and dy.dtype in FLOATS and dy.size > 0


@embedding.on_backward("cpu", when=_fits)
def embedding_backward_cpu(dy: HostArray, saved: Saved, needs: Any, padding_idx: int | None) -> Any:
    index = saved.input.reshape(-1)
    if saved.rows <= _SHORT:
        index = index.astype(np.uint16)
    sums, rows = _sums(in_format(dy, accumulator(dy.dtype)).reshape(-1, dy.shape[-1]), index)
    out = empty((saved.rows, dy.shape[-1]), needs[1])
    out.view(np.uint8).fill(0)
    out[rows] = sums
    if padding_idx is not None:
        out[padding_idx] = 0
    return None, out
