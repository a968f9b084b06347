"""Fused ops: fewer passes over memory where a backend fuses them, and one rounding fewer. PyTorch has none of these.

Batch norm with ReLU is in batch_norm.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core import dispatch
from ampkit.core.capture import anew
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

from ..linalg.matmul import linear
from ..pointwise.smooth_activations import gelu

__all__ = ["linear_gelu_linear"]
_PIECE = 1 << 17  # elements, which with their gradients stay in a second-level cache


@op(cast=Cast.LOW)
def linear_gelu_linear(
    input: Array, weight: Array, bias: Array | None, weight2: Array, bias2: Array | None = None, approximate="none"
):
    """linear(gelu(linear(input, weight, bias)), weight2, bias2): the feed-forward layer of a transformer.

    input [..., in], weight [hidden, in], bias [hidden], weight2 [out, hidden], bias2 [out] -> [..., out]. Precision of
    each product as `linear`; the hidden layer is rounded to the output's dtype at most twice, before and after gelu.
    Raises as `linear` and `gelu`.
    Vaswani et al. 2017, arXiv:1706.03762, eq. 2; Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    hidden = _gelu(_linear(input, weight, bias), approximate)
    saved = Saved(input=input, weight=weight, bias=bias, weight2=weight2)
    return _linear(hidden, weight2, bias2), saved


@linear_gelu_linear.check
def linear_gelu_linear_check(input, weight, bias, weight2, bias2, approximate):
    assert linear.checks is not None and gelu.checks is not None
    linear.checks(input, weight, bias)
    gelu.checks(input, approximate)
    shape, more = np.shape(weight2), np.shape(bias2)
    if len(shape) != 2 or shape[1] != len(weight):
        raise ShapeError("linear_gelu_linear", f"weight2 [out, {len(weight)}]", f"weight2 {list(shape)}")
    if bias2 is not None and more != shape[:1]:
        raise ShapeError("linear_gelu_linear", f"bias2 [{shape[0]}]", f"bias2 {list(more)}")


@linear_gelu_linear.backward
def linear_gelu_linear_backward(dy, saved, needs, approximate):
    # The hidden layer is recomputed; kernels may save it.
    before = _linear(saved.input, saved.weight, saved.bias)
    hidden = Saved(input=_gelu(before, approximate), weight=saved.weight2)
    grad, dweight2, dbias2 = _backward(linear, dy, hidden, (True, needs[3], needs[4]))
    grad = _backward(gelu, grad, Saved(input=before), (True,), approximate)
    return (*_backward(linear, grad, Saved(input=saved.input, weight=saved.weight), needs[:3]), dweight2, dbias2)


def _linear(input, weight, bias):
    return linear.forward.reference.run(input, weight, bias)[0]


def _gelu(input, approximate):
    return gelu.forward.reference.run(input, approximate)[0]


def _backward(op, *args):
    return op.backward_primitive.reference.run(*args)


# op by op, as a kernel of backends: each of the three ops dispatches to its own best kernel


def linear_gelu_linear_by_op(
    input: Any, weight: Any, bias: Any, weight2: Any, bias2: Any, approximate: str, *, dtype: Any, versions: Any
) -> Any:
    """A kernel of linear_gelu_linear that also saves the hidden layer, before and after gelu."""
    before = dispatch.run_op(linear, (input, weight, bias), dtype=dtype, versions=versions[:3])
    hidden = dispatch.run_op(gelu, (before,), approximate, dtype=dtype)
    out = dispatch.run_op(linear, (hidden, weight2, bias2), dtype=dtype, versions=(None, *versions[3:]))
    saved = Saved(input=input, weight=weight, bias=bias, weight2=weight2, before=before)
    if not anew.leaves_out("gelu", hidden):
        saved.hidden = hidden
    return out, saved


def saved_hidden(dy: Any, saved: Saved, needs: Any, approximate: str) -> bool:
    """Whether the hidden layer was saved."""
    return "before" in vars(saved)


def linear_gelu_linear_backward_by_op(
    dy: Any, saved: Saved, needs: Any, approximate: str, versions: Any, grad_buffers: Any
) -> Any:
    """The backward of `linear_gelu_linear_by_op`; applies if `saved_hidden`."""
    dtype = saved.before.dtype
    wanted = dtype if any(needs[:3]) else None
    caches = (None, *versions[3:]), (None, *grad_buffers[3:])
    if hasattr(saved, "hidden"):
        hidden = Saved(input=saved.hidden, weight=saved.weight2)
        grad, *second = dispatch.run_op_backward(linear, dy, hidden, (wanted, *needs[3:]), *caches)
        if grad is None:
            return None, None, None, *second
        (grad,) = dispatch.run_op_backward(gelu, grad, Saved(input=saved.before), (dtype,), approximate=approximate)
    else:  # one buffer of the hidden layer's size: what reads it goes first, and gelu's gradient takes its place
        cut = {"chosen_for": (wanted, *needs[3:])}
        second = _second_weight_gradients(dy, saved, needs[3:], approximate, caches, cut)
        if wanted is None:
            return None, None, None, *second
        like_hidden = Saved(input=saved.before, weight=saved.weight2)
        grad, *_ = dispatch.run_op_backward(linear, dy, like_hidden, (dtype, None, None), *caches, **cut)
        grad = _gelu_gradient_in_pieces(grad, saved.before, approximate)
    return *first_linear_backward(grad, saved, needs, versions, grad_buffers), *second


def _second_weight_gradients(dy: Any, saved: Saved, needs: Any, approximate: str, caches: Any, cut: Any) -> list[Any]:
    if not any(needs):
        return [None, None]
    hidden = dispatch.run_op(gelu, (saved.before,), approximate, dtype=saved.before.dtype)
    second = Saved(input=hidden, weight=saved.weight2)
    return list(dispatch.run_op_backward(linear, dy, second, (None, *needs), *caches, **cut)[1:])


def _gelu_gradient_in_pieces(grad: Any, before: Any, approximate: str) -> Any:
    # Written over `grad`, which nothing else refers to, where both lie in one piece of memory.
    dtype, pieces = before.dtype, grad.size // _PIECE
    if pieces < 2 or grad.dtype != dtype or not (grad.flags.c_contiguous and before.flags.c_contiguous):
        return dispatch.run_op_backward(gelu, grad, Saved(input=before), (dtype,), approximate=approximate)[0]
    dy, x = grad.reshape(-1), before.reshape(-1)
    bounds = [*range(0, pieces * _PIECE, _PIECE), grad.size]  # the last is longer: for a short one another kernel runs
    for part in map(slice, bounds, bounds[1:]):
        call = gelu, dy[part], Saved(input=x[part]), (dtype,)
        dy[part] = dispatch.run_op_backward(*call, approximate=approximate)[0]
    return grad


def first_linear_backward(grad: Any, saved: Saved, needs: Any, versions: Any, grad_buffers: Any) -> tuple[Any, ...]:
    """The gradients of input, weight and bias, given that of the hidden layer before gelu."""
    first_saved = Saved(input=saved.input, weight=saved.weight)
    return dispatch.run_op_backward(linear, grad, first_saved, needs[:3], versions[:3], grad_buffers[:3])
