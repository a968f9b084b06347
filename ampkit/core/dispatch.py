"""Dispatch: run an op, or its backward, on plain arrays: the kernel that is selected, or else the reference.

A kernel sees arrays as they are stored. The reference sees them widened to the accumulator dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .. import backends
from ..base.dtypes import DType, accumulator
from .autograd.saved import Saved, widen, widen_saved
from .primitive import Kernel


def forward(
    op: Any, kernel: Kernel, arrays: Sequence[Any], params: Any, dtype: DType, compute: DType | None, versions: Any
) -> tuple[Any, Kernel]:
    """What the selected `kernel` of `op` returns for bound arguments, and the one that ran: it may decline.

    dtype: of the answer, for a kernel. compute: what the reference sees its arrays in; None for as they are.
    """
    primitive, signature = op.forward, op.signature

    def faster(kernel: Kernel) -> Any:
        run = partial(kernel.run, versions=versions) if kernel.wants_cache else kernel.run
        return signature.call_in(run, arrays, params, dtype)

    def reference() -> Any:
        wide = arrays if compute is None else [widen(a, compute) for a in arrays]
        return signature.call(primitive.reference.run, wide, params)

    return primitive.attempt(kernel, faster, reference)


def backward(
    op: Any,
    kernel: Kernel,
    dy: Any,
    saved: Saved,
    needs: Any,
    params: dict[str, Any],
    compute: DType | None,
    versions: Any = (),
    grad_buffers: Any = (),
) -> Any:
    """The gradients that the selected `kernel` of `op`'s backward returns, or the reference, if it declines.

    grad_buffers: per input, memory that the gradient may be left in, or None (see `tape.BackwardPass.grad_buffers`).
    """
    primitive = op.backward_primitive

    def faster(kernel: Kernel) -> Any:
        more = {"versions": versions, "grad_buffers": grad_buffers} if kernel.wants_cache else {}
        return kernel.run(dy, saved, needs, **params, **more)

    def reference() -> Any:
        if compute is None:
            return primitive.reference.run(dy, saved, needs, **params)
        return primitive.reference.run(widen(dy, compute), widen_saved(saved, compute), needs, **params)

    return primitive.attempt(kernel, faster, reference)[0]


# Ops inside a kernel of another op: not recorded, and in the dtype that is asked for.


def forward_in(op: Any, arrays: Sequence[Any], *params: Any, dtype: DType, versions: Any = ()) -> Any:
    """What `op` makes of arrays, in `dtype`; versions: those of its tensor inputs."""
    kernel = op.signature.select(op.forward, backends.backend_of(arrays[0]).name, arrays, params)
    out, _ = forward(op, kernel, arrays, params, dtype, accumulator(dtype), versions)
    return widen(out[0], dtype)


def backward_in(
    op: Any, dy: Any, saved: Saved, needs: tuple[Any, ...], versions: Any = (), grad_buffers: Any = (), **params: Any
) -> tuple[Any, ...]:
    """The gradients of `op`'s tensor inputs, in the dtypes that `needs` names; saved: as its reference saves it."""
    kernel = op.backward_primitive.select(backends.backend_of(dy).name, dy, saved, needs, **params)
    found = backward(op, kernel, dy, saved, needs, params, accumulator(dy.dtype), versions, grad_buffers)
    found = found if isinstance(found, tuple) else (found,)
    return tuple([None if need is None else widen(each, need) for each, need in zip(found, needs, strict=False)])
