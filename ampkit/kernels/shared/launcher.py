"""Registers functions of functions.h as kernels: `register(launcher, op, function, saves)` for an op and its backward,
on the backend of the launcher. pointwise/ and loss.py say which function computes which op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampkit.base.dtypes import Array, DType, bfloat16, bool_, float16, float32
from ampkit.core.autograd.saved import Saved

from .registration import on

Function = str | Callable[..., tuple[str, tuple[Any, ...]]]  # a name, or: the op's parameters -> name, scalar operands
STORED = frozenset({float32, float16, bfloat16})  # storage dtypes; arithmetic is float32


@dataclass(frozen=True)
class Launcher:
    """How a backend computes functions. Each raises UnsupportedError for dtypes and layouts that it does not take.

    forward(function, operands, dtype) -> their values. backward(function, dy, operands, dtypes) -> a gradient for each
    of dtypes, None for None. total(function, operands, divisor, dtype) -> the sum of the values / divisor, [].
    sum_over(array, axes) -> its sum in float32. min_elements: of the first array, below which the reference runs;
    min_of: another one for some ops; min_float32: one for contiguous float32 arrays. Both are by the name of the op, or
    of the op with `_backward`. keeps_subnormals: whether its float32 arithmetic does, and values are read at no cost.
    broadcast_to: of NumPy, or a quicker one. reductions_wait: whether reductions may wait in a compiled step, too.
    """

    backend: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    total: Callable[..., Any]
    sum_over: Callable[..., Any]
    min_elements: int = 0
    min_of: Mapping[str, int] = field(default_factory=dict)
    min_float32: Mapping[str, float] = field(default_factory=dict)
    keeps_subnormals: bool = False
    broadcast_to: Callable[..., Any] = np.broadcast_to
    reductions_wait: bool = False

    def on(self, op: Any, run: Any, when: Any, dtypes: Any = None, launches: bool = False) -> None:
        """Register the kernel `run` of an op, with the predicates `when` and, of dtypes, `dtypes`.

        launches: see Kernel.
        """
        least = self.min_of.get(op.name, self.min_elements)
        when = self._if_large(op.name, when)
        on(op, self.backend, run, when, min_elements=least, dtypes=dtypes, launches=launches)

    def on_backward(self, op: Any, run: Any, when: Any, wants_cache: bool = False, launches: bool = False) -> None:
        """Register the kernel `run` of an op's backward, with the predicate `when`. launches: see Kernel."""
        backward = op.backward_primitive
        least = self.min_of.get(backward.name, self.min_elements)
        when = self._if_large(backward.name, when)
        on(backward, self.backend, run, when, wants_cache=wants_cache, min_elements=least, launches=launches)

    def on_small_backward(self, op: Any, run: Any, when: Any, launches: bool = False) -> None:
        """Register the kernel `run` of the backward of an op whose result, and so dy, is smaller than its input."""
        on(op.backward_primitive, self.backend, run, when, launches=launches)

    def _if_large(self, name: str, when: Any) -> Any:
        if name not in self.min_float32:
            return when

        def fits(first: Any, *more: Any, **params: Any) -> bool:
            small = first.size < self.min_float32[name] if getattr(first, "dtype", None) == float32 else False
            return not (small and first.flags.c_contiguous) and when(first, *more, **params)

        return fits


def register(launcher: Launcher, op: Any, function: Function, *saves: str, passthrough: tuple[int, ...] = ()) -> None:
    """Register `function`, applied to the op's tensors and then its parameters, for `op` and for its backward.

    saves: the inputs (by name) and "out" that the backward reads, in the order of x, y, z in functions.h.
    """
    register_forward(launcher, op, function, *saves)
    register_backward(launcher, op, function, *saves, passthrough=passthrough)


def register_forward(
    launcher: Launcher, op: Any, function: Function, *saves: str, dtype: DType | None = None, when: Any = None
) -> None:
    """Register the forward kernel. dtype: of the result, where it is not the one asked for. when: its predicate."""
    count, result, prepare, alone = len(op.signature.names), dtype, _preparation(op, function), _is_alone(op, function)
    places = [(save, None if save == "out" else op.signature.names.index(save)) for save in saves]

    def kernel(*args: Any, dtype: DType, **more: Any) -> Any:
        name, operands = (function, args) if alone else prepare(args[:count], (*args[count:], *more.values()))
        out = launcher.forward(name, operands, result or dtype)
        if not saves:
            return out
        saved = Saved()
        for save, at in places:
            saved.__dict__[save] = out if at is None else args[at]
        return out, saved

    launcher.on(op, kernel, when or supports, launches=True)


def register_backward(
    launcher: Launcher,
    op: Any,
    function: Function,
    *saves: str,
    passthrough: tuple[int, ...] = (),
    without_grad: tuple[int, ...] = (),
) -> None:
    """Register the backward kernel.

    passthrough: the inputs whose gradient is dy itself; without_grad: the inputs that have none.
    """
    names, skipped, prepare = op.signature.names, passthrough + without_grad, _preparation(op, function)
    alone = _is_alone(op, function) and len(saves) == 1 and not skipped

    def kernel(dy: Array, saved: Any, needs: Any, **params: Any) -> Any:
        if alone:
            return launcher.backward(function, dy, (saved.__dict__[saves[0]],), needs)
        name, operands = prepare(tuple([getattr(saved, save, 0.0) for save in saves]), tuple(params.values()))
        dtypes = [
            None if need is None or i in skipped else grad_dtype(need, getattr(saved, names[i], None), dy)
            for i, need in enumerate(needs)
        ]
        grads = launch_gradients(launcher, name, dy, operands, dtypes)
        if not passthrough:
            return grads
        return tuple([dy if i in passthrough and needs[i] is not None else grad for i, grad in enumerate(grads)])

    launcher.on_backward(op, kernel, supports_backward, launches=True)


def _is_alone(op: Any, function: Function) -> bool:
    """Whether `function` is one name and the op has one tensor and no parameter, the most frequent case."""
    return isinstance(function, str) and len(op.signature.names) == 1 and not op.signature.param_names


def _preparation(op: Any, function: Function) -> Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[str, Any]]:
    """(tensors, the op's parameters) -> the name of a function and its operands."""
    if isinstance(function, str) and not op.moves:
        return lambda tensors, params: (function, tensors + params)

    def prepare(tensors: tuple[Any, ...], params: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        name, scalars = (function, params) if isinstance(function, str) else function(*params)
        return name, round_scalars(op, (*tensors, *scalars))

    return prepare


def gradients(
    launcher: Launcher, op: Any, function: str, dy: Array, operands: tuple[Any, ...], dtypes: list[DType | None]
) -> Any:
    """One gradient per entry of `dtypes`, None where that is None; numbers are rounded as `round_scalars` does."""
    return launch_gradients(launcher, function, dy, round_scalars(op, operands), dtypes)


def launch_gradients(
    launcher: Launcher, function: str, dy: Array, operands: tuple[Any, ...], dtypes: list[DType | None]
) -> Any:
    """One gradient per entry of `dtypes`, None where that is None; launches nothing if all are."""
    if all([dtype is None for dtype in dtypes]):  # noqa: C419  # a generator takes longer, and this is often called
        return tuple(dtypes)
    return launcher.backward(function, dy, operands, dtypes)


def grad_dtype(need: DType, input: Any, dy: Array) -> DType:
    """`need`, or float32 where the tape still has to sum the gradient over broadcast axes."""
    return float32 if hasattr(input, "shape") and input.shape != dy.shape else need


def supports(*operands: Any, **params: Any) -> bool:
    """Whether the kernels read these dtypes, at least one of them a floating-point one."""
    found = False
    for operand in operands:
        dtype = getattr(operand, "dtype", None)
        if dtype in STORED:
            found = True
        elif dtype is not None and dtype != bool_:
            return False
    return found


def supports_dtypes(*operands: Any, **params: Any) -> bool:
    """Whether the kernels read these dtypes; all may be bool."""
    return all(a.dtype in STORED or a.dtype == bool_ for a in operands if hasattr(a, "dtype"))


def supports_backward(dy: Array, saved: Any, needs: Any, **params: Any) -> bool:
    """Whether the kernels read dy and what was saved, and store gradients of the dtypes `needs`."""
    for need in needs:
        if need is not None and need not in STORED:
            return False
    return supports(dy, *saved.__dict__.values())


def round_scalars(op: Any, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """`operands`, whose Python numbers are rounded to float16 where a float16 array is compared or moved.

    As NumPy does for such ops: 0.1 is then 0.09998. Arithmetic ops take numbers in float32.
    """
    if not op.moves or len(operands) == 1:  # one operand alone is no number
        return operands
    if not any(getattr(a, "dtype", None) == float16 for a in operands):
        return operands
    return tuple([a if hasattr(a, "dtype") else float(np.float16(a)) for a in operands])
