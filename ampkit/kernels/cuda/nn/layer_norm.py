"""CUDA kernels of layer_norm, rms_norm and group_norm: a warp or a block normalizes a row.

Forward and backward read each row from global memory once: rows of up to 8192 values stay in registers, longer ones and
those of odd length in shared memory; what does not fit is read again in each pass. The gradients of weight and bias are
sums over the rows of a block, then over the blocks.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import (
    contiguous,
    supports_array,
    supports_dtypes,
    supports_rows,
    to_float32,
    vector_width,
)  # fmt: skip
from ampkit.backends.cuda.launch.rows import (
    CHUNKS,
    Grid,
    RowPlan,
    back_grid,
    back_plan,
    cols_of,
    grid,
    row_plan,
    threads_of,
    weight_columns,
    weight_sums,
)
from ampkit.backends.cuda.launch.template_chains import TemplateCall
from ampkit.backends.cuda.launch.template_source import Template
from ampkit.backends.cuda.nvrtc import STORED, blocks_for, cached_columns, launch, typed
from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.norms import register_norm
from ampkit.ops.nn.layer_norm import group_norm, layer_norm, rms_norm

from ..pointwise import LAUNCHER

# layer_norm and rms_norm: a row is the trailing axes, flattened


@lru_cache(256)
def template(backward: bool, centered: bool, plan: RowPlan) -> Template:
    """The kernel of a norm, or of its gradient, for chains."""
    statistics, mean = ["float* mean", "float* rstd"][not centered :], "mean" if centered else "nullptr"
    sizes = "long long rows", "long long cols", "long long cached"
    how = ", ".join(map(_written, (centered, *plan)))
    if backward:
        sums, db = ["float* dw", "float* db"][: 1 + centered], "db" if centered else "nullptr"
        own = ["const float* weight", *[f"const {one}" for one in statistics], *sums, *sizes]
        affine, more = "ColumnAffine{{weight, nullptr}}", f"dw, {db}, rows, cols, cached"
        call = f"backward<{how}>({{loads}}, {affine}, {mean}, rstd, {{store}}, {more})"
    else:
        scales, bias = ["const float* weight", "const float* bias"][: 1 + centered], "bias" if centered else "nullptr"
        own = [*scales, *statistics, *sizes, "float eps"]
        more = f"{mean}, rstd, rows, cols, cached, eps"
        call = f"forward<{how}>({{loads}}, ColumnAffine{{{{weight, {bias}}}}}, {{store}}, {more})"
    bounds = f"MAX_BLOCK<{plan.accesses}, {_written(plan.block)}>"
    return Template(_name(centered, backward), "norm", call, ", ".join(own), bounds, plan.width)


def _written(argument: bool | int) -> str:
    return str(argument).lower()


def _name(centered: bool, backward: bool) -> str:
    return f"{'layer' if centered else 'rms'}_norm{'_backward' if backward else ''}"


def _call(
    backward: bool, centered: bool, loads: Any, vectors: Any, out: Array, results: Any, cols: int, plan: RowPlan,
    config: Grid, more: Any = (),
) -> TemplateCall:  # fmt: skip
    stored, answered = (out.dtype, loads[0].dtype) if backward else (loads[0].dtype, out.dtype)
    entry = typed(_name(centered, backward) + ("" if backward else "_forward"), stored, answered, *plan)
    numbers = np.int64(out.size // cols), np.int64(cols), np.int64(config.cached), *more
    made = template(backward, centered, plan) if plan.accesses else None  # of rows that registers hold
    title = "LayerNorm" if centered else "RMSNorm"
    arrays, costs = (loads, vectors, out, results), 0.0 if backward else 1.25  # it is some work, too
    return TemplateCall(title, backward, "nn/layer_norm", entry, *arrays, numbers, cols, config, made, costs)


def _normalized(
    input: Array, normalized_shape: Any, weight: Any, bias: Any, eps: float, dtype: DType, centered: bool = True
) -> Any:
    backend, cols = backends.backend_of(input), cols_of(input, normalized_shape)
    rows = input.size // cols
    x, out = contiguous(input), backend.empty(input.shape, dtype)
    scales = [to_float32(scale) for scale in ((weight, bias) if centered else (weight,))]
    statistics = [backend.empty((rows, 1), float32) for _ in range(1 + centered)]
    plan = row_plan(cols, x, out, *scales)
    config = grid(x, cols, plan)
    arrays = (x,), tuple(scales), out, tuple(statistics)
    _call(False, centered, *arrays, cols, plan, config, (np.float32(eps),)).launch()
    return out, *(statistics if centered else (None, *statistics))


def _gradients(
    dy: Array, saved: Saved, needs: Any, normalized_shape: Any, eps: Any, versions: Any, grad_buffers: Any
) -> Any:
    centered = hasattr(saved, "mean")
    statistics = [saved.mean, saved.rstd] if centered else [saved.rstd]
    cols = cols_of(dy, normalized_shape)
    grad, x = (contiguous(a).reshape(-1, cols) for a in (dy, saved.input))
    weight = to_float32(vars(saved).get("weight"))  # not saved where only dx reads it
    dx = backends.backend_of(dy).empty(x.shape, x.dtype) if needs[0] else None
    plan = back_plan(cols, grad, x, weight, dx)
    config = back_grid(grad, x, cols, plan, sum(need is not None for need in needs[1:]))
    summed = dx is not None and config.sums
    count = config.blocks if summed else min(CHUNKS, len(x))
    parts = [None if need is None else backends.backend_of(dy).empty((count, cols), float32) for need in needs[1:]]
    if dx is not None:
        given, shares = (weight, *statistics), tuple(parts) if summed else (None,) * len(parts)
        _call(True, centered, (grad, x), given, dx, shares, cols, plan, config).launch()
    if not summed:
        weight_columns(grad, x, statistics, parts)
    size = () if isinstance(normalized_shape, int) else normalized_shape
    sums = weight_sums(parts, needs[1:], grad_buffers[1:], dy.shape[dy.ndim - max(1, len(size)) :])
    return dx if dx is None else dx.reshape(dy.shape), *sums


def _fits(input: Array, normalized_shape: Any, *more: Any) -> bool:
    return supports_rows(input, cols_of(input, normalized_shape))


def _known(dy: Array, saved: Saved, needs: Any) -> bool:
    known = supports_dtypes(saved.input.dtype, dy.dtype) and needs[0] in (None, saved.input.dtype)
    return known and all(n is None or n in STORED for n in needs[1:])


def _readable(dy: Array, saved: Saved, needs: Any, normalized_shape: Any, **params: Any) -> bool:
    return _fits(saved.input, normalized_shape) and _known(dy, saved, needs)


for _op in (layer_norm, rms_norm):
    register_norm(LAUNCHER, _op, _normalized, _gradients, _fits, _readable, supports_dtypes, True, launches=True)


# group_norm: a row is a group of channels; weight and bias are per channel


def _group_sizes(input: Array, groups: int) -> tuple[int, int, int, int]:
    """Rows (batch * groups), values per row, channels per row, values per channel, of input [N, C, ...]."""
    rows = input.shape[0] * groups
    spatial = math.prod(input.shape[2:])
    return rows, input.size // rows, input.shape[1] // groups, spatial


def _normalized_groups(input: Array, num_groups: int, weight: Any, bias: Any, eps: float, dtype: DType) -> Any:
    backend, (rows, cols, channels, spatial) = backends.backend_of(input), _group_sizes(input, num_groups)
    x, out = contiguous(input), backend.empty(input.shape, dtype)
    mean, rstd = (backend.empty((rows, 1), float32) for _ in range(2))
    plan = row_plan(cols, x, out)
    config = grid(x, cols, plan)
    args = x, to_float32(weight), to_float32(bias), out, mean, rstd
    sizes = np.int64(rows), np.int64(cols), np.int64(config.cached), np.float32(eps)
    groups = map(np.int32, (num_groups, channels, spatial))
    config.launch("nn/group_norm", typed("group_norm_forward", x.dtype, dtype, *plan), *args, *sizes, *groups)
    return out, mean, rstd


def _group_gradients(
    dy: Array, saved: Saved, needs: Any, num_groups: int, eps: float, versions: Any, grad_buffers: Any
) -> Any:
    grad, x = contiguous(dy), contiguous(saved.input)
    _, _, channels, spatial = _group_sizes(x, num_groups)
    sums = [backends.backend_of(x).empty(x.shape[:2], float32) for _ in range(2)]
    shared = _group_shared_bytes(grad, x, num_groups) if needs[0] else 0
    if not shared:
        threads = min(256, -(-spatial // 32) * 32)
        args = grad, x, saved.mean, saved.rstd, *sums, np.int32(channels), np.int64(spatial)
        launch("nn/group_norm", typed("group_norm_channel_sums", x.dtype, dy.dtype), sums[0].size, threads, *args)
    dx = _group_dx(grad, x, saved, sums, num_groups, shared) if needs[0] else None
    parts = [None if need is None else each for each, need in zip(sums, needs[1:], strict=True)]
    return dx, *weight_sums(parts, needs[1:], grad_buffers[1:], x.shape[1:2])


def _group_shared_bytes(dy: Array, x: Array, groups: int) -> int:
    """Bytes of shared memory for a row of dy and of x, or 0 if they do not fit."""
    cols, each = _group_sizes(x, groups)[1], dy.dtype.itemsize + x.dtype.itemsize
    cached = cached_columns(x, cols, each)
    return cached * each if cached >= cols else 0


def _group_dx(dy: Array, x: Array, saved: Saved, sums: list[Array], groups: int, shared: int) -> Array:
    """The gradient of x. With shared memory the kernel writes the sums per channel to `sums`; without it reads them."""
    rows, cols, channels, spatial = _group_sizes(x, groups)
    dx = backends.backend_of(x).empty(x.shape, x.dtype)
    width = vector_width(cols, dy, x, dx)
    threads = threads_of(cols, RowPlan(width, 1, True), shared) if shared else min(256, -(-cols // (32 * width)) * 32)
    blocks = rows, 1 if shared else min(64, blocks_for(cols, threads * width * 4))
    args = dy, x, to_float32(vars(saved).get("weight")), saved.mean, saved.rstd, *sums, dx, np.int64(cols)
    entry = typed("group_norm_backward", x.dtype, dy.dtype, width, shared > 0)
    sizes = np.int32(groups), np.int32(channels), np.int32(spatial)
    launch("nn/group_norm", entry, blocks, threads, *args, *sizes, shared=shared)
    return dx


register_norm(
    LAUNCHER, group_norm, _normalized_groups, _group_gradients,
    lambda input, *more: supports_array(input),
    lambda dy, saved, needs, **params: supports_array(saved.input) and _known(dy, saved, needs),
    supports_dtypes, wants_cache=True,
)  # fmt: skip
