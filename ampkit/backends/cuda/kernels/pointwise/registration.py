"""Registers functions of `elementwise.cu` as the kernels of an op and of its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.nvrtc import STORED
from ampkit.base.dtypes import DType, float16, float32
from ampkit.core.autograd.saved import Saved

Array = Any
Function = str | Callable[..., tuple[str, tuple[Any, ...]]]  # a name, or: the op's parameters -> name, scalar operands


def register(op: Any, function: Function, *saves: str) -> None:
    """Register `function`, applied to the op's tensors and then its parameters, for `op` and for its backward.

    saves: the inputs (by name) and "out" that the backward reads, in the order of x, y, z in elementwise.cu.
    """
    register_forward(op, function, *saves)
    register_backward(op, function, *saves)


def register_forward(op: Any, function: Function, *saves: str, dtype: DType | None = None, when: Any = None) -> None:
    """Register the forward kernel. dtype: of the result, where it is not the one asked for. when: its predicate."""
    names, select, result = op.signature.names, _selector(function), dtype

    def kernel(*args: Any, dtype: DType, **more: Any) -> Any:
        arrays, params = args[: len(names)], (*args[len(names) :], *more.values())
        name, scalars = select(*params)
        out = elementwise.forward(name, round_scalars(op, (*arrays, *scalars)), result or dtype)
        values = {**dict(zip(names, arrays, strict=True)), "out": out}
        return with_saved(out, **{save: values[save] for save in saves})

    kernel.__name__ = f"{op.name}_cuda"
    op.on("cuda", when=when or supports)(kernel)


def register_backward(
    op: Any, function: Function, *saves: str, passthrough: tuple[int, ...] = (), without_grad: tuple[int, ...] = ()
) -> None:
    """Register the backward kernel.

    passthrough: the inputs whose gradient is dy itself; without_grad: the inputs that have none.
    """
    names, select = op.signature.names, _selector(function)

    def kernel(dy: Array, saved: Any, needs: Any, **params: Any) -> Any:
        name, scalars = select(*params.values())
        operands = (*(getattr(saved, save, 0.0) for save in saves), *scalars)
        dtypes = [
            None
            if i in passthrough + without_grad or need is None
            else grad_dtype(need, getattr(saved, names[i], None), dy)
            for i, need in enumerate(needs)
        ]
        grads = gradients(op, name, dy, operands, dtypes)
        if grads is NotImplemented:
            return NotImplemented
        return tuple([dy if i in passthrough and needs[i] is not None else grad for i, grad in enumerate(grads)])

    kernel.__name__ = f"{op.name}_backward_cuda"
    op.on_backward("cuda", when=supports_backward)(kernel)


def with_saved(out: Any, /, **saved: Any) -> Any:
    """What a kernel returns: `out` and what the backward reads; NotImplemented where `out` is."""
    return out if out is NotImplemented else (out, Saved(**saved))


def gradients(op: Any, function: str, dy: Array, operands: tuple[Any, ...], dtypes: list[DType | None]) -> Any:
    """One gradient per entry of `dtypes`, None where that is None; launches nothing if all are."""
    if all(dtype is None for dtype in dtypes):
        return dtypes
    return elementwise.backward(function, dy, round_scalars(op, operands), dtypes)


def grad_dtype(need: DType, input: Any, dy: Array) -> DType:
    """`need`, or float32 where the tape still has to sum the gradient over broadcast axes."""
    return float32 if hasattr(input, "shape") and input.shape != dy.shape else need


def supports(*operands: Any, **params: Any) -> bool:
    """Whether the kernels read these dtypes, at least one of them a floating-point one."""
    return any(getattr(a, "dtype", None) in STORED for a in operands) and supports_dtypes(*operands)


def supports_dtypes(*operands: Any, **params: Any) -> bool:
    """Whether the kernels read these dtypes; all may be bool."""
    return all(a.dtype in elementwise.KINDS for a in operands if hasattr(a, "dtype"))


def supports_backward(dy: Array, saved: Any, needs: Any, **params: Any) -> bool:
    """Whether the kernels read dy and what was saved, and store gradients of the dtypes `needs`."""
    return supports(dy, *vars(saved).values()) and all(need is None or need in STORED for need in needs)


def round_scalars(op: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """`operands`, whose Python numbers are rounded to float16 where a float16 array is compared or moved.

    As NumPy does for such ops: 0.1 is then 0.09998. Arithmetic ops take numbers in float32.
    """
    if not op.moves or not any(getattr(a, "dtype", None) == float16 for a in operands):
        return operands
    return tuple([a if hasattr(a, "dtype") else float(np.float16(a)) for a in operands])


def _selector(function: Function) -> Callable[..., tuple[str, tuple[Any, ...]]]:
    return function if not isinstance(function, str) else lambda *params: (function, params)
