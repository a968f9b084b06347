"""CPU kernels of batch_norm, with and without a residual and ReLU, instance_norm and group_norm (batch_norm.cpp)."""

from __future__ import annotations

from math import prod
from typing import Any

from ampkit.backends.cpu.copies import contiguous, copy
from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.native.arrays import (
    MIN_FUSED,
    Function,
    HostArray,
    empty,
    empty_like,
    merge_axes,
    need_view,
    supported,
)
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.kernels.shared.norms import register_batch_norm

from ..pointwise import elementwise

_forward = Function("channel_norm_forward", "aaaaaaaadiii")
_backward = Function("channel_norm_backward", "aaaaaaaaaaaiii")
_update = Function("update_running_statistics", "aaaafff")


def _planes(array: HostArray, merge: bool) -> HostArray | None:
    """[N, C, ...] as [N, C, S], or merged as [1, C, N * S]; None where that takes a copy."""
    n, c, *size = array.shape
    s = prod(size)
    if array.flags.c_contiguous and (n == 1 or not merge):  # quickly, as most are
        return array.reshape(n, c, s)
    planes = merge_axes(array, (n, c, s))
    if planes is None or not merge:
        return planes
    merged = merge_axes(planes.transpose(1, 0, 2), (c, n * s))
    return None if merged is None else merged[None]


def _views(groups: int, written: HostArray | None, *read: HostArray) -> list[HostArray | None]:
    """The arrays [N, C, ...] as the kernels take them; for batch norm as one sample where no copy is needed.

    Raises UnsupportedError where that takes a copy of what is `written`; None stays None.
    """
    arrays = read if written is None else (written, *read)
    n, c, *size = arrays[0].shape
    # Several planes of each channel that are not adjacent in memory, as in most images.
    apart = min(n, c, prod(size)) > 1 and all(a.flags.c_contiguous for a in arrays)
    for merge in (False,) if groups or apart else (True, False):
        found = [view for a in arrays if (view := _planes(a, merge)) is not None]
        if len(found) == len(arrays):
            return [None, *found] if written is None else [*found]
    first = None if written is None else need_view(_planes(written, False))
    return [first, *[contiguous(a).reshape(*a.shape[:2], -1) for a in read]]


def _in_order_of(array: HostArray, x: HostArray) -> HostArray:
    """`array` in the memory order of `x`, or a broadcast number."""
    if array.strides == x.strides or not any(array.strides):
        return array
    out = empty_like(x, array.dtype)
    copy(out, array)
    return out


def fits(input: HostArray, *scales: HostArray | None) -> bool:
    """Whether the kernels take an array [N, C, ...] and these scales [C]."""
    known = supported(input, *scales) and input.size > 0
    return known and (input.flags.c_contiguous or _planes(input, False) is not None)


def normalized(
    x: HostArray, weight: HostArray | None, bias: HostArray | None, eps: float, dtype: DType, groups: int = 0,
    given: tuple[HostArray, HostArray] | None = None, relu: bool = False, residual: HostArray | None = None,
) -> tuple[HostArray, HostArray, HostArray, HostArray]:  # fmt: skip
    """(the norm, mean, variance, rstd): these of each channel, or of the groups of each sample; float32.

    residual: of the shape of x, added to the norm before the ReLU.
    """
    sets = len(x) * groups or x.shape[1]
    mean, variance = given or (empty((sets,), float32), empty((sets,), float32))
    out, rstd = empty_like(x, dtype), empty((sets,), float32)
    views = _views(groups, out, x, *([] if residual is None else [_in_order_of(residual, x)]))
    y, values, added = (*views, None)[:3]
    _forward(y, mean, variance, rstd, values, added, weight, bias, eps, groups, given is not None, relu)
    return out, mean, variance, rstd


def gradients(
    dy: HostArray, saved: Saved, needs: Any, groups: int = 0, dmean: HostArray | None = None,
    dvar: HostArray | None = None, given: bool = False, relu: bool = False,
) -> list[HostArray | None]:  # fmt: skip
    """The gradients of input, weight and bias in the dtypes `needs`; None where that is None."""
    x, c = saved.input, saved.input.shape[1]
    dx = empty_like(x, needs[0]) if needs[0] else None
    dw, db = (empty((c,), need) if need else None for need in needs[1:3])
    dx_rows, dy_rows, x_rows = _views(groups, dx, _in_order_of(dy, x), x)
    mean, rstd = saved.mean.reshape(-1), saved.rstd.reshape(-1)
    weight, bias = (getattr(saved, name, None) for name in ("weight", "bias"))
    _backward(dx_rows, dw, db, dy_rows, dmean, dvar, x_rows, weight, bias, mean, rstd, groups, given, relu)
    return [dx, dw, db]


def _normalized_batch(
    input: HostArray, weight: HostArray | None, bias: HostArray | None, running: Any, residual: HostArray | None,
    eps: float, relu: bool, dtype: DType,
) -> Any:  # fmt: skip
    given: Any = None if running is None else tuple([in_format(each, float32) for each in running])
    return *normalized(input, weight, bias, eps, dtype, given=given, relu=relu, residual=residual), {}


def _readable(grads: Any, saved: Saved, needs: Any) -> bool:
    bias, out = getattr(saved, "bias", None), getattr(saved, "out", None)
    known = fits(saved.input, saved.weight, bias) and supported(*grads, out, saved.mean) and saved.rstd.dtype == float32
    return bool(known) and grads[0].size >= MIN_FUSED


def _gradients_of_batch(dy: HostArray, dmean: Any, dvar: Any, saved: Saved, needs: Any, relu: bool) -> Any:
    dresidual = None
    if "out" in vars(saved):  # what the ReLU lets pass is the gradient of the residual, and of the norm
        (dy,), relu = elementwise.backward("Relu", dy, (saved.out,), (dy.dtype,)), False
        dresidual = dy if needs[5] is None else in_format(dy, needs[5])
    if saved.running_mean is None:
        return *gradients(dy, saved, needs, dmean=dmean, dvar=dvar, relu=relu), None, None, dresidual
    wide = float32 if needs[3] or needs[4] else None
    dx, dw, db = gradients(dy, saved, (needs[0], wide or needs[1], wide or needs[2]), given=True, relu=relu)
    if wide is None:
        return dx, dw, db, None, None, dresidual
    scale = saved.rstd.reshape(-1) * (1 if saved.weight is None else in_format(saved.weight, float32))
    each = dw, db, -db * scale, -0.5 * dw * scale * saved.rstd.reshape(-1)  # type: ignore[operator]  # wide
    return dx, *[in_format(d, need) if need else None for d, need in zip(each, needs[1:5], strict=True)], dresidual


def _updated(
    running_mean: HostArray, running_var: HostArray, mean: HostArray, var: HostArray, unbiased: float, momentum: float
) -> None:
    """The reference's bits; what is not finite is seen at once, for nobody waits for this CPU."""
    _update(running_mean, running_var, mean, var, unbiased, momentum, 1 - momentum)


register_batch_norm(
    "cpu", _normalized_batch, _gradients_of_batch, lambda *arguments: fits(*arguments[:6]), _readable, _updated,
    lambda *arrays: supported(*arrays[:4]) and {a.dtype for a in arrays[:4]} == {float32}, min_elements=MIN_FUSED,
)  # fmt: skip
