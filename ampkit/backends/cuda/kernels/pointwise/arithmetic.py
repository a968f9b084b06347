"""CUDA kernels of sums, differences, remainders and multiply-adds: functions of elementwise.cu.

Operands may differ in dtype.
"""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import FLOATS
from ampkit.ops.pointwise import arithmetic as ops

from .registration import gradients, register_backward, register_forward

Array = Any

register_forward(ops.add, "Add")
register_forward(ops.sub, "Sub")
for _op, _function, *_saves in (
    (ops.remainder, "Remainder", "input", "other"),
    (ops.fmod, "FMod", "input", "other"),
    (ops.addcmul, "AddCMul", "tensor1", "tensor2"),
    (ops.addcdiv, "AddCDiv", "tensor1", "tensor2"),
):
    register_forward(_op, _function, *_saves)
    register_backward(_op, _function, *_saves, passthrough=(0,))


def _register_sum_backward(op: Any, function: str) -> None:
    """Register the backward of a sum or a difference, which returns dy itself wherever dy is the gradient."""

    def kernel(dy: Array, saved: Any, needs: Any, alpha: Any) -> Any:
        if needs[1] is None or (function == "Add" and alpha == 1):
            return dy, dy
        grads = gradients(op, function, dy, (alpha,), [None, needs[1]])
        return NotImplemented if grads is NotImplemented else (dy, grads[1])

    kernel.__name__ = f"{op.name}_backward_cuda"
    op.on_backward("cuda", when=lambda dy, saved, needs, alpha: dy.dtype in FLOATS)(kernel)


_register_sum_backward(ops.add, "Add")
_register_sum_backward(ops.sub, "Sub")
