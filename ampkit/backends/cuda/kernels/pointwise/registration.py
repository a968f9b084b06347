"""Kernels of elementwise ops: which function of `elementwise.cu` an op is, and what of it the backward reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.backends.cuda.nvrtc import STORED
from ampkit.base.dtypes import DType, float16, float32
from ampkit.core.autograd.saved import Saved

Array = Any
Chooser = Callable[..., tuple[str, tuple[Any, ...]]]  # the op's parameters -> a function's name, its numbers


def mapped(op: Any, name: str | Chooser, *keeps: str) -> None:
    """Give `op` a kernel and one of its backward: the function `name` of its tensors and numbers.

    keeps: what it saves, inputs by name or "out", in the order in which the gradients in elementwise.cu name them.
    """
    forwards(op, name, *keeps)
    backwards(op, name, *keeps)


def forwards(op: Any, name: str | Chooser, *keeps: str, dtype: DType | None = None, when: Any = None) -> None:
    """Register a kernel for `op`. dtype: of the result, if not the one asked for. when: its predicate, if special."""
    names, choose = op.signature.names, _chooser(name)
    result = dtype

    def kernel(*given: Any, dtype: DType, **more: Any) -> Any:
        arrays, params = given[: len(names)], (*given[len(names) :], *more.values())
        function, numbers = choose(*params)
        out = maps.forward(function, met(op, (*arrays, *numbers)), result or dtype)
        if out is NotImplemented:
            return NotImplemented
        held = {**dict(zip(names, arrays, strict=True)), "out": out}
        return out, Saved(**{keep: held[keep] for keep in keeps})

    kernel.__name__ = f"{op.name}_cuda"
    op.on("cuda", when=when or fits)(kernel)


def backwards(
    op: Any, name: str | Chooser, *keeps: str, passes: tuple[int, ...] = (), flat: tuple[int, ...] = ()
) -> None:
    """Register a backward kernel. passes: the inputs whose gradient is dy itself; flat: those that take none."""
    names, choose = op.signature.names, _chooser(name)

    def kernel(dy: Array, saved: Any, needs: Any, **params: Any) -> Any:
        kept = [getattr(saved, keep, 0.0) for keep in keeps]
        function, numbers = choose(*params.values())
        dtypes = [
            None if i in passes + flat or need is None else wanted(need, getattr(saved, names[i], None), dy)
            for i, need in enumerate(needs)
        ]
        found = gradients(op, function, dy, (*kept, *numbers), dtypes)
        if found is NotImplemented:
            return NotImplemented
        return tuple([dy if i in passes and needs[i] is not None else slope for i, slope in enumerate(found)])

    kernel.__name__ = f"{op.name}_backward_cuda"
    op.on_backward("cuda", when=back_fits)(kernel)


def gradients(op: Any, function: str, dy: Array, operands: tuple[Any, ...], dtypes: list[DType | None]) -> Any:
    """`maps.backward` for operands as `op` met them; no launch where no gradient is wanted."""
    if all(dtype is None for dtype in dtypes):
        return dtypes
    return maps.backward(function, dy, met(op, operands), dtypes)


def wanted(need: DType, input: Any, dy: Array) -> DType:
    """The dtype for a gradient: what is needed, or float32 where the tape will sum what broadcasting spread."""
    return float32 if hasattr(input, "shape") and input.shape != dy.shape else need


def fits(*operands: Any, **numbers: Any) -> bool:
    """Whether a kernel reads these dtypes, one of them a floating-point one."""
    return any(getattr(a, "dtype", None) in STORED for a in operands) and known(*operands)


def known(*operands: Any, **numbers: Any) -> bool:
    """Whether a kernel reads these dtypes, bool alone too."""
    return all(a.dtype in maps.KINDS for a in operands if hasattr(a, "dtype"))


def back_fits(dy: Array, saved: Any, needs: Any, **numbers: Any) -> bool:
    """The same of a backward."""
    return fits(dy, *vars(saved).values()) and all(need is None or need in STORED for need in needs)


def _chooser(name: str | Chooser) -> Chooser:
    if not isinstance(name, str):
        return name
    return lambda *params: (name, params)


def met(op: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """`operands`, numbers rounded as `op` meets them."""
    # What only moves or compares values meets numbers in the arrays' float16, as NumPy does: 0.1 is then 0.09998.
    if not op.moves or not any(getattr(a, "dtype", None) == float16 for a in operands):
        return operands
    return tuple([a if hasattr(a, "dtype") else float(np.float16(a)) for a in operands])
