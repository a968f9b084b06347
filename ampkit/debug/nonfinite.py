"""Where infinity and NaN come from: an observer that follows them from the op that made them to where they do harm.

An op that turns finite inputs into infinity is no fault by itself: masks are -inf, and a logarithm of 0 may be left out
by a `where`. So each non-finite array is remembered with its origin, the op that made it, and only what reaches the
loss or the gradient of a leaf counts. In a backward pass of a scaled loss, an origin that would be finite at a loss
scale of 1 is the work of the scale search, which backs off, and not a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import FLOATS, bfloat16, float16, float32, float64
from ..base.observe import ACCUMULATE, BACKWARD, FORWARD, HOOK, START, STEP, Event
from ..core import dispatch
from ..core.autograd.saved import cast
from ..core.fp_errors import ignore_fp_errors
from ..core.module_path import ModuleCall, current
from ..core.tensor import Tensor

# Per dtype, the unsigned integer of its size and the bits of its exponent: all of them set is infinity or NaN.
_EXPONENTS = {
    float16: (np.uint16, 0x7C00),
    bfloat16: (np.uint16, 0x7F80),
    float32: (np.uint32, 0x7F800000),
    float64: (np.uint64, 0x7FF0000000000000),
}


def is_finite(array: Any) -> bool:
    """Whether every value of an array is finite; true for integers and booleans. Reads the device."""
    if getattr(array, "dtype", None) not in FLOATS or not array.size:
        return True
    integer, exponent = _EXPONENTS[array.dtype]
    with backends.device_guard(array):
        bits = array.reshape(1).view(integer) if array.ndim == 0 else _bits(array, integer)
        return not bool(((bits & integer(exponent)) == integer(exponent)).any())


def _bits(array: Any, integer: Any) -> Any:
    try:
        return array.view(integer)
    except ValueError:  # some layouts have no view of another dtype
        return array.copy().view(integer)


@dataclass
class Origin:
    """A call of an op that made infinity or NaN.

    event: the call. output: what it made. call: of the module it ran in, or None. parent: for NaN made of a mask's
    infinity, the origin of that. outside: what it is if no op made it, such as "parameter head.weight". by_scale:
    whether it is finite at a loss scale of 1. saved: what a backward's node had saved, which it frees.
    """

    event: Event
    output: Any
    call: ModuleCall | None
    parent: Origin | None = None
    outside: str = ""
    by_scale: bool = False
    saved: Any = None

    @property
    def is_mask(self) -> bool:
        """Whether the infinity was meant: by a call that was given an infinite number, or a tensor of -inf."""
        numbers = (value for value in (*self.event.operands, *self.event.params) if type(value) is float)
        return (self.outside != "" and _is_minus_inf(self.output)) or any(map(math.isinf, numbers))

    @property
    def path(self) -> str:
        """Of the module it ran in."""
        return "(outside modules)" if self.call is None else self.call.path or "(model)"


class NonFiniteTracker:
    """An observer (see base/observe.py) that knows the origin of every non-finite array.

    harm: the origins that reached the loss or a leaf's gradient, and what they reached, in that order. overflows: how
    many leaf gradients were not finite because of the loss scale alone.
    """

    def __init__(self) -> None:
        self.harm: list[tuple[Origin, str]] = []
        self.overflows = 0
        self._known: dict[int, tuple[Any, Origin]] = {}  # by id; the array is kept, so that the id stays its own
        self._model: ModuleCall | None = None  # the last call of a module
        self._busy = False  # while it runs ops itself

    def __call__(self, event: Event) -> None:
        """Look at an event."""
        if self._busy:
            return
        self._busy = True
        try:
            with ignore_fp_errors():
                self._look(event)
        finally:
            self._busy = False

    def _look(self, event: Event) -> None:
        self._model = current() or self._model
        if event.phase == STEP:  # what the iteration has computed is no longer needed
            self._known.clear()
        elif event.phase == START:
            self._reached(event)
            self._known = {key: known for key, known in self._known.items() if known[1].event.phase == FORWARD}
        elif event.phase == ACCUMULATE:
            self._reached(event)
        elif event.phase in (FORWARD, BACKWARD, HOOK):
            for output in arrays_in(event.output):
                if not is_finite(output):
                    self._known[id(output)] = output, self._origin(event, output)

    def _reached(self, event: Event) -> None:
        (array,) = event.inputs
        if is_finite(array):
            return
        origin = self.origin_of(array) or Origin(event, array, _call(event), outside="code outside of ops")
        if origin.by_scale:
            self.overflows += 1
        else:
            what = "the loss" if event.phase == START else f"the gradient of {_leaf_name(event.output, self._model)}"
            self.harm.append((origin, what))

    def origin_of(self, array: Any) -> Origin | None:
        """The origin of a non-finite array, None if it is not known."""
        known = self._known.get(id(array))
        if known is not None:
            return known[1]
        overlapping = [origin for other, origin in self._known.values() if _may_share_memory(array, other)]
        return overlapping[-1] if overlapping else None

    def _origin(self, event: Event, output: Any) -> Origin:
        if event.op is None and event.phase == FORWARD and (inner := self._known.get(id(output))) is not None:
            return inner[1]  # a Function, whose ops were seen
        causes = [self._cause(event, array) for array in arrays_in(event.inputs) if not is_finite(array)]
        if not causes:
            saved = getattr(event.node, "saved", None)
            return Origin(event, output, _call(event), by_scale=_is_by_scale(event), saved=saved)
        first = min(causes, key=lambda cause: (cause.by_scale, cause.is_mask))
        if first.is_mask and _has_nan(output):  # the mask was meant, but not NaN
            return Origin(event, output, _call(event), parent=first)
        return first

    def _cause(self, event: Event, array: Any) -> Origin:
        known = self.origin_of(array)
        if known is None:
            known = Origin(event, array, _call(event), outside=_outside(event, array))
            self._known[id(array)] = array, known
        return known


def _call(event: Event) -> ModuleCall | None:
    """Of the module in which a kernel ran; casts and sums of gradients belong to the node that they are for."""
    return current() or getattr(event.node, "module_call", None)


def _outside(event: Event, array: Any) -> str:
    """What an array is that is not finite, and that no op has computed."""
    for operand in event.operands:
        if isinstance(operand, Tensor) and (operand.array is array or _may_share_memory(operand.array, array)):
            kind, name = _name_in_model(operand, current())
            return f"{kind} {name}" if name else "an input of the model, or what code outside of ops computed"
    return "what code outside of ops computed"


def _name_in_model(tensor: Tensor, call: ModuleCall | None) -> tuple[str, str]:
    """("parameter" or "buffer", its name) of a tensor in the model of `call`; both are empty if it is none of its."""
    if call is not None:
        for kind, found in (("parameter", call.model.named_parameters()), ("buffer", call.model.named_buffers())):
            for name, held in found:
                if held is tensor or held.array is tensor.array:
                    return kind, name
    return "", ""


def _leaf_name(leaf: Tensor, call: ModuleCall | None) -> str:
    return _name_in_model(leaf, call)[1] or getattr(leaf, "name", "") or f"a leaf {list(leaf.shape)}"


def _is_by_scale(event: Event) -> bool:
    """Whether a backward that gave non-finite gradients gives finite ones at a loss scale of 1.

    A backward is linear in the gradient of its output, so that gradient is divided by the scale and the reference runs
    again; what it gives is rounded to the dtypes that were asked for.
    """
    if event.name == "scale_loss":
        return True
    if event.tag is None or event.tag.factor is None or (scale := float(event.tag.factor)) <= 1:
        return False
    if event.name in ("cast", "sum_over", "sum_of_two"):  # of a gradient: all are linear
        return all(is_finite(cast(cast(array, float64) / scale, event.output.dtype)) for array in event.inputs)
    dys = [None if dy is None else cast(cast(dy, float64) / scale, dy.dtype) for dy in event.operands]
    if event.op is None:  # a Function, whose backward has no use for the rest
        gradients: Any = event.node.op.vjp(event.node, dys, (), None)
        return all(map(is_finite, arrays_in(gradients)))
    needs = event.op.needs(event.node)
    gradients = run_backward(event, dys, needs, event.node.saved)
    pairs = zip(gradients, needs, strict=False)
    return all(is_finite(cast(g, need)) for g, need in pairs if hasattr(g, "dtype") and need is not None)


def run_backward(event: Event, dys: list[Any], needs: tuple[Any, ...], saved: Any) -> tuple[Any, ...]:
    """The gradients that the op of a backward's event gives for other gradients of its outputs, as it returns them.

    The reference computes them, or the backward of the kernel that saved what only itself can read.
    """
    op, node, dy = event.op, event.node, dys[0] if len(dys) == 1 else tuple(dys)
    params = dict(zip(op.signature.param_names, node.params, strict=True)) if node.params else {}
    kernel = node.kernel.own_backward or op.backward_primitive.reference
    found = dispatch.backward(op, kernel, dy, saved, needs, params, node.plan.compute)
    return found if isinstance(found, tuple) else (found,)


def arrays_in(value: Any) -> Iterator[Any]:
    """The arrays of floating-point numbers in an array, or in a tuple or list of arrays and None."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays_in(item)
    elif getattr(value, "dtype", None) in FLOATS:
        yield value


def _is_minus_inf(array: Any) -> bool:
    """Whether all that is not finite in an array is -inf."""
    with backends.device_guard(array):
        return bool((np.isfinite(array) | (array == -np.inf)).all())


def _has_nan(array: Any) -> bool:
    with backends.device_guard(array):
        return bool((array != array).any())


def _may_share_memory(one: Any, other: Any) -> bool:
    backend: Any = backends.backend_of(one)
    xp = np if isinstance(one, np.ndarray) else backend.xp
    return type(one) is type(other) and bool(xp.may_share_memory(one, other))
