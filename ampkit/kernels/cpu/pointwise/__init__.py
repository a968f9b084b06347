"""CPU kernels of pointwise ops: the functions of kernels/shared/functions.h, computed by elementwise.cpp."""

from __future__ import annotations

from math import inf

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, MIN_FUSED, HostArray, available, broadcast_to, supported
from ampkit.core.autograd.accumulate import add_to, is_dense
from ampkit.core.blocked_sum import blocked_sum
from ampkit.kernels.shared.launcher import Launcher
from ampkit.kernels.shared.pointwise import register_pointwise

from . import elementwise
from .elementwise import backward, forward, total

# What NumPy computes in one pass: below this size of float32 arrays, a kernel on one thread is no faster. NumPy's sine
# is twice as fast at any size, with larger errors.
_ONE_PASS = (
    *("abs", "add", "ceil", "div", "eq", "exp", "floor", "ge", "gt", "isfinite", "isinf", "isnan", "le", "log"),
    *("logical_and", "logical_not", "logical_or", "lt", "maximum", "minimum", "mul", "ne", "neg", "round", "sqrt"),
    *("square", "sub", "tanh", "trunc", "div_backward", "exp_backward", "mul_backward", "neg_backward"),
    *("sqrt_backward", "square_backward", "tanh_backward", "where_backward"),
)
_SINES = ("sin", "cos", "sin_backward", "cos_backward")
_MANY_PASSES = (
    *("gelu", "binary_cross_entropy_with_logits", "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm"),
    *("adaptive_max_pool", *(f"{kind}_pool{axes}d" for kind in ("max", "avg", "adaptive_avg") for axes in (2, 3))),
)
_MIN_OF = {name: MIN_FUSED for op in _MANY_PASSES for name in (op, f"{op}_backward")}
_MIN_FLOAT32: dict[str, float] = {**dict.fromkeys(_ONE_PASS, 1 << 16), **dict.fromkeys(_SINES, inf)}

LAUNCHER = Launcher(
    "cpu", forward, backward, total, blocked_sum, MIN_ELEMENTS, _MIN_OF, _MIN_FLOAT32, True, broadcast_to
)


def _are_alike(held: HostArray, gradient: HostArray) -> bool:
    # Whether their elements follow each other in memory in one order.
    same = held.dtype == gradient.dtype and held.strides == gradient.strides
    return same and supported(held, gradient) and is_dense(held)


if available():
    from . import chain as chain

    register_pointwise(LAUNCHER)
    add_to.on("cpu", _are_alike, min_elements=MIN_ELEMENTS)(elementwise.add_to)
