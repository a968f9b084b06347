"""Kernels of sums, products, quotients and remainders: functions of elementwise.cu. Operands may differ in dtype."""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import FLOATS
from ampkit.ops.pointwise import arithmetic as ops

from .registration import backwards, forwards, gradients, mapped

Array = Any

forwards(ops.add, "Add")
forwards(ops.sub, "Sub")
mapped(ops.mul, "Mul", "input", "other")
mapped(ops.div_, "Div", "input", "other")
mapped(ops.rdiv, "RDiv", "input")
forwards(ops.floor_divide, "FloorDivide")
forwards(ops.remainder, "Remainder", "input", "other")
backwards(ops.remainder, "Remainder", "input", "other", passes=(0,))
forwards(ops.fmod, "FMod", "input", "other")
backwards(ops.fmod, "FMod", "input", "other", passes=(0,))
mapped(ops.lerp, "Lerp", "input", "end", "weight")
for name, op in {"AddCMul": ops.addcmul, "AddCDiv": ops.addcdiv}.items():
    forwards(op, name, "tensor1", "tensor2")
    backwards(op, name, "tensor1", "tensor2", passes=(0,))


def _slope(op: Any, name: str) -> None:
    """The backward of a sum or a difference: dy as it is wherever it is the gradient itself."""

    def kernel(dy: Array, saved: Any, needs: Any, alpha: Any) -> Any:
        if needs[1] is None or (name == "Add" and alpha == 1):
            return dy, dy
        found = gradients(op, name, dy, (alpha,), [None, needs[1]])
        return NotImplemented if found is NotImplemented else (dy, found[1])

    kernel.__name__ = f"{op.name}_backward_cuda"
    op.on_backward("cuda", when=lambda dy, saved, needs, alpha: dy.dtype in FLOATS)(kernel)


_slope(ops.add, "Add")
_slope(ops.sub, "Sub")
