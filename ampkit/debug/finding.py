"""Finding: what is known of a value that is not finite, in words, and its cure, tried out where that is possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import LOW, DType, finfo, float64
from ..base.observe import BACKWARD, FORWARD, Event
from ..core.autograd.saved import cast, widen
from ..core.fp_errors import ignore_fp_errors
from ..core.tensor import Tensor
from .nonfinite import Origin, arrays_in, is_finite, run_backward


@dataclass(frozen=True)
class Finding:
    """Where infinity or NaN came from.

    path: of the module, "(model)" for the outermost and "(outside modules)" for none. op: its name, or what else made
    the value. phase: "forward" or "backward". dtype: of the output. inf, nan: the shares of the output that are
    infinite and NaN. largest: the largest finite magnitude among the inputs, None if there is none. reached: what
    became non-finite by it: the loss, or the gradient of a parameter. cause: why. cure: what helps. mask: for NaN that
    was made of a mask's infinity, where that came from.
    """

    path: str
    op: str
    phase: str
    dtype: str
    inf: float
    nan: float
    largest: float | None
    reached: str
    cause: str
    cure: str
    mask: str = ""

    def __str__(self) -> str:
        return f"{self.account}\n  cure: {self.cure}"

    @property
    def account(self) -> str:
        """All but the cure, in two lines."""
        mask = f"; the infinity came from {self.mask}" if self.mask else ""
        what = f"{self.reached} is not finite: {self.op} in {self.path}, {self.phase}, gave {self._shares()}"
        return f"{what}\n  cause: {self.cause}{mask}"

    def _shares(self) -> str:
        shares = [f"{100 * share:.3g} % {what}" for share, what in ((self.inf, "inf"), (self.nan, "NaN")) if share]
        largest = "" if self.largest is None else f", from inputs up to {self.largest:.3g}"
        return f"{' and '.join(shares)} of {self.dtype}{largest}"


def finding_of(origin: Origin, reached: str) -> Finding:
    """The finding for an origin that reached `reached`. Reads the device."""
    event = origin.event
    inputs = [array for array in arrays_in(event.inputs) if array.size]
    finite = [largest for array in inputs if (largest := _largest(array)) is not None]
    with ignore_fp_errors():
        cause, cure = _outside(origin) if origin.outside else _explained(origin)
    return Finding(
        path=origin.path,
        op=origin.outside or _name(event),
        phase="backward" if event.phase != FORWARD else "forward",
        dtype=origin.output.dtype.name,
        inf=_share(origin.output, "isinf"),
        nan=_share(origin.output, "isnan"),
        largest=max(finite, default=None),
        reached=reached,
        cause=cause,
        cure=cure,
        mask="" if (mask := origin.parent) is None else mask.outside or f"{_name(mask.event)} in {mask.path}",
    )


def _name(event: Event) -> str:
    names = {"hook": "a hook on the gradient", "sum_of_two": "a sum of two gradients"}
    names |= {"cast": f"a cast to {_dtype(event)}", "sum_over": "a sum over broadcast axes"}
    of = f" of {event.node.op.name}'s gradient" if event.name in ("cast", "sum_over") and event.node is not None else ""
    return names.get(event.name, event.name) + of


def _dtype(event: Event) -> str:
    return next((array.dtype.name for array in arrays_in(event.output)), "")


def _share(array: Any, kind: str) -> float:
    with backends.device_guard(array):
        return float(getattr(np, kind)(array).mean(dtype=float64)) if array.size else 0.0


def _largest(array: Any) -> float | None:
    """The largest finite magnitude in an array; None if there is none."""
    with backends.device_guard(array):
        size = np.abs(cast(array, float64))
        return float(np.where(np.isfinite(size), size, -1).max()) if bool(np.isfinite(size).any()) else None


def _outside(origin: Origin) -> tuple[str, str]:
    """(cause, cure) of values that no op has computed."""
    what = origin.outside
    if what.startswith(("parameter", "buffer")):
        return f"{what} is not finite", "load or initialize it again; the step that wrote it is the one to look at"
    return f"{what} is not finite", "check the batch before the model: assert x.isfinite().all()"


def _explained(origin: Origin) -> tuple[str, str]:
    event = origin.event
    if event.phase not in (FORWARD, BACKWARD):
        return "a hook replaced a finite gradient by one that is not", "correct the hook"
    dtype = origin.output.dtype
    if constant := _constant_beyond(event, dtype):
        return constant, f"use ampkit.finfo(ampkit.{dtype.name}).min, or float('-inf')"
    if dtype in LOW or event.name in ("cast", "sum_over", "sum_of_two"):
        wide = _in_float64(origin)
        if wide and all(map(is_finite, wide)):
            return _overflow(origin, max(filter(None, map(_largest, wide)), default=0.0))
    return _arithmetic(origin)


def _constant_beyond(event: Event, dtype: DType) -> str:
    """What is wrong if the call was given a number that its dtype cannot hold, such as a mask of -1e9; else nothing."""
    for value in (*event.operands, *_numbers(event.params)):
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 and event.phase == FORWARD else value
        if isinstance(number, (int, float)) and np.isfinite(number) and abs(number) > float(finfo(dtype).max):
            return f"the constant {number:g} does not fit {dtype.name}, whose largest value is {finfo(dtype).max:g}"
    return ""


def _numbers(params: Any) -> Iterator[float]:
    for value in params if isinstance(params, (tuple, list)) else ():
        if type(value) in (int, float):
            yield value


def _in_float64(origin: Origin) -> list[Any]:
    """The outputs of a call, computed by its reference from the same inputs in float64; none if it cannot be."""
    event = origin.event
    if event.name in ("cast", "sum_over"):
        return [cast(array, float64) for array in event.inputs]
    if event.name == "sum_of_two":
        return [sum(cast(array, float64) for array in event.inputs)]
    if event.op is None:
        return []
    try:
        if event.phase == BACKWARD:
            needs = tuple([need and float64 for need in event.op.needs(event.node)])
            found: Any = run_backward(event, [widen(dy, float64) for dy in event.operands], needs, origin.saved)
        else:
            inputs = iter(event.inputs)
            arrays = [next(inputs) if isinstance(item, Tensor) else item for item in event.operands]
            found = event.op.call(event.op.forward.reference.run, [widen(a, float64) for a in arrays], event.params)
            found = found[0] if isinstance(found, tuple) else found
    except Exception:  # not every reference takes float64 beside what was saved in another dtype
        return []
    return list(arrays_in(found))


def _overflow(origin: Origin, largest: float) -> tuple[str, str]:
    dtype, event = origin.output.dtype, origin.event
    name = event.name if event.op is not None or event.node is None else event.node.op.name
    name = name.removesuffix("_backward")
    cause = f"the result, up to {largest:.3g}, does not fit {dtype.name}, whose largest value is {finfo(dtype).max:g}"
    where = f'modules={{"{origin.path}": "float32"}}' if "(" not in origin.path else f'{name}="float32"'
    if origin.event.phase == BACKWARD:
        return cause, f'take the mean of the loss, not its sum; train in bfloat16; or Policy("{dtype.name}", {where})'
    return cause, f'run it in float32, Policy("{dtype.name}", {where}), or train in bfloat16'


def _arithmetic(origin: Origin) -> tuple[str, str]:
    """(cause, cure) where the arithmetic itself has no finite result: by the values at the first one that is not."""
    event, output = origin.event, origin.output
    with backends.device_guard(output):
        first = int(np.argmax(np.logical_not(np.isfinite(output)).reshape(-1)))
        place = tuple(int(i) for i in np.unravel_index(first, output.shape))
    products = event.op is not None and event.op.forward.module.startswith("linalg.")  # of many values each
    inputs = () if products else event.inputs
    values = [(a, value) for a in arrays_in(inputs) if (value := _at(a, output.shape, place)) is not None]
    known = [value for _, value in values]
    shown, result = ", ".join(f"{value:g}" for value in known), _at(output, output.shape, place) or 0.0
    cause = f"{event.name}({shown}) = {result:g} at {list(place)}" if shown else f"it is {result:g} at {list(place)}"
    if origin.parent is not None:
        return f"{cause}, from a mask", "leave one finite value in each row of the mask, or replace such rows' result"
    if any(value == 0 for value in known):
        zeros = max(_share_of_zeros(array) for array, value in values if value == 0)
        return f"{cause}; {zeros:.3g} % of that input are 0", "add an eps, or clamp the input away from 0"
    if any(value < 0 for value in known) and np.isnan(result):
        return f"{cause}: the input is negative", "clamp the input to 0 and more"
    return cause, "the values have grown too large: lower the learning rate, clip gradients, or add a norm before it"


def _at(array: Any, shape: tuple[int, ...], place: tuple[int, ...]) -> float | None:
    """The value of an array that broadcasts to `shape` at `place`; None for other shapes."""
    lead = len(shape) - array.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(array.shape, shape[lead:], strict=True)):
        return None
    index = tuple([0 if n == 1 else i for n, i in zip(array.shape, place[lead:], strict=True)])
    return float(backends.backend_of(array).to_numpy(array[index]))


def _share_of_zeros(array: Any) -> float:
    with backends.device_guard(array):
        return 100 * float((array == 0).mean(dtype=float64))
