"""CPU kernels of layer_norm and rms_norm, over rows (layer_norm.cpp), and of group_norm (batch_norm.cpp)."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cpu.native.arrays import Function, HostArray, empty, reshape_view, supported
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.norms import register_norm
from ampkit.ops.nn.layer_norm import group_norm, layer_norm, rms_norm

from ..pointwise import LAUNCHER
from . import batch_norm

row_norm_forward = Function("row_norm_forward", "aaaaaadaaaf")
row_norm_backward = Function("row_norm_backward", "aaaaaaaaaaaf")


def _rows(shape: Any, array: HostArray | None) -> HostArray | None:
    """An array [..., *shape] as rows [rows, n], a view; None for None."""
    axes = len(shape) if isinstance(shape, (tuple, list)) else 1
    if array is None or (array.ndim == 2 and axes == 1):
        return array
    at = array.ndim - axes
    return reshape_view(array, (prod(array.shape[:at]), prod(array.shape[at:])))


def _vector(scale: HostArray | None) -> HostArray | None:
    return scale if scale is None or scale.ndim == 1 else scale.reshape(-1)


def normalized(
    input: HostArray, shape: Any, weight: HostArray | None, bias: HostArray | None, eps: float, dtype: DType,
    centered: bool = True, total: HostArray | None = None, branch: HostArray | None = None,
    keep: HostArray | None = None, scale: float = 1.0,
) -> Any:  # fmt: skip
    """The norm of each row in `dtype`, with the means (None if not `centered`) and 1 / deviations [rows, 1], float32.

    branch: is multiplied by the mask `keep` and `scale`, and added; the sum is written to `total` and normalized.
    Raises UnsupportedError where rows are no views.
    """
    out = empty(input.shape, dtype)
    views = [_rows(shape, array) for array in (out, input, total, branch, keep)]
    count = len(views[1])  # type: ignore[arg-type]  # the input
    mean, rstd = empty((count,), float32) if centered else None, empty((count,), float32)
    row_norm_forward(views[0], mean, rstd, views[1], _vector(weight), _vector(bias), eps, *views[2:], scale)
    return out, None if mean is None else mean.reshape(-1, 1), rstd.reshape(-1, 1)


def norm_gradients(
    dy: HostArray, input: HostArray, saved: Saved, needs: Any, shape: Any, dsum: HostArray | None = None,
    branch: DType | None = None, keep: HostArray | None = None, scale: float = 1.0,
) -> Any:  # fmt: skip
    """The gradients of input, weight, bias and branch, in the dtypes `needs` and `branch`; None where that is None.

    Raises UnsupportedError where rows are no views.
    """
    trailing = dy.shape[dy.ndim - (len(shape) if isinstance(shape, (tuple, list)) else 1) :]
    sizes = dy.shape, trailing, trailing, dy.shape
    found = [None if d is None else empty(s, d) for s, d in zip(sizes, (*needs, branch), strict=True)]
    views = [_rows(shape, array) for array in (found[0], found[3], dy, dsum, input, keep)]
    mean = getattr(saved, "mean", None)
    statistics = None if mean is None else mean.reshape(-1), saved.rstd.reshape(-1)
    row_norm_backward(
        *views[:2], *map(_vector, found[1:3]), *views[2:5], _vector(weight_of(saved)), *statistics, views[5], scale
    )
    return found


def weight_of(saved: Saved) -> HostArray | None:
    """The weight, which is saved where the gradient of the input needs it."""
    return getattr(saved, "weight", None)


def _row_gradients(dy: HostArray, saved: Saved, needs: Any, normalized_shape: Any, eps: Any) -> Any:
    return tuple(norm_gradients(dy, saved.input, saved, (*needs, None)[:3], normalized_shape)[: len(needs)])


for _op in (layer_norm, rms_norm):
    register_norm(
        LAUNCHER, _op, normalized, _row_gradients,
        lambda input, shape, *scales: supported(input, *scales[:-1]),
        lambda dy, saved, needs, **params: supported(dy, saved.input, weight_of(saved)),
    )  # fmt: skip


def _normalized_groups(
    input: HostArray, num_groups: int, weight: HostArray | None, bias: HostArray | None, eps: float, dtype: DType
) -> Any:
    out, mean, _, rstd = batch_norm.normalized(input, weight, bias, eps, dtype, num_groups)
    return out, mean.reshape(-1, 1), rstd.reshape(-1, 1)


register_norm(
    LAUNCHER, group_norm, _normalized_groups,
    lambda dy, saved, needs, num_groups, eps: tuple(batch_norm.gradients(dy, saved, needs, num_groups)),
    lambda input, groups, weight, bias, eps: batch_norm.fits(input, weight, bias),
    lambda dy, saved, needs, **params: supported(dy) and batch_norm.fits(saved.input, weight_of(saved)),
)  # fmt: skip
