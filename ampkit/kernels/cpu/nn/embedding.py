"""CPU kernels of embedding: copies of rows, their sums by index (indexing/gather_scatter.cpp), and bags of them
(indexing/embedding_bag.cpp).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import (
    MIN_ELEMENTS,
    Function,
    HostArray,
    empty,
    int64_keys,
    reshape_view,
    supported,
)
from ampkit.base.dtypes import DType, float32, int64
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.indexing import register_embedding
from ampkit.ops.nn.embedding import check_indices, embedding_bag_

from ..indexing.gather_scatter import scatter_added, summed_rows, taken_rows

_reduce_bags = Function("reduce_bags", "aaaappii")


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, padding_idx: Any) -> bool:
    return needs[1] is not None and supported(dy) and dy.size > 0


register_embedding(
    "cpu",
    taken_rows,
    summed_rows,
    lambda input, weight, padding_idx: input.size * weight.shape[1] >= MIN_ELEMENTS,
    _backward_fits,
    reshape_view,
)


# bags


def _bags_fit(input: HostArray, weight: HostArray, starts: HostArray, scale: Any, *args: Any, **params: Any) -> bool:
    unit = supported(weight, scale) and weight.strides[1] == weight.itemsize
    return unit and 0 < input.size < 1 << 31 and weight.shape[1] > 0 and starts.size > 1


@embedding_bag_.on("cpu", when=_bags_fit)
def embedding_bag_cpu(
    input: HostArray,
    weight: HostArray,
    starts: HostArray,
    per_sample_weights: HostArray | None,
    mode: str,
    longest: int,
    padding_idx: int | None,
    *,
    dtype: DType,
) -> Any:
    check_indices(input, len(weight))
    index, begins = (np.ascontiguousarray(int64_keys(each)) for each in (input, starts))
    shape = len(starts) - 1, weight.shape[1]
    out, places = empty(shape, dtype), empty(shape, int64) if mode == "max" else None
    scale = None if per_sample_weights is None else np.ascontiguousarray(in_format(per_sample_weights, float32))
    skipped = -1 if padding_idx is None else padding_idx % len(weight)
    _reduce_bags(out, places, weight, scale, address(index), address(begins), skipped, mode == "mean")
    saved = Saved(input=input, weight=weight, starts=starts, per_sample_weights=per_sample_weights)
    saved.rows, saved.size, saved.argmax = len(weight), input.size, places
    return out, saved


def _bags_backward_fits(dy: HostArray, saved: Saved, needs: Any, *args: Any, **params: Any) -> bool:
    plain = saved.per_sample_weights is None and needs[1] is not None
    return plain and supported(dy) and dy.size > 0 and saved.input.size > 0


@embedding_bag_.on_backward("cpu", when=_bags_backward_fits)
def embedding_bag_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, mode: str, longest: int, padding_idx: int | None
) -> Any:
    keys, starts = saved.input.astype(np.int64, copy=False), saved.starts
    if mode == "max":  # the first row that has it; of an empty bag none, to which 0 is added
        grad = np.where(saved.argmax < 0, 0, in_format(dy, float32))
        return None, scatter_added(grad, keys[np.maximum(saved.argmax, 0)], 0, (saved.rows, dy.shape[1]), needs[1])
    sizes, keys = np.diff(starts), keys[: int(starts[-1])]
    bags, skipped = np.repeat(np.arange(len(sizes)), sizes), -1 if padding_idx is None else padding_idx % saved.rows
    if mode == "mean":
        counts = sizes if skipped < 0 else np.bincount(bags, keys != skipped, len(sizes))
        dy = in_format(dy, float32) / np.maximum(counts, 1).astype(np.float32)[:, None]
    rows = reshape_view(dy, (1, *dy.shape))
    return None, summed_rows(rows, keys, saved.rows, needs[1], skipped, sources=bags)[0]
