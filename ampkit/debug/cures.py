"""Why an op's result is not finite, and what helps: tried out by running it again in float64, or told by its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import backends
from ..base.dtypes import FLOATS, LOW, DType, finfo, float16, float32, float64
from ..base.observe import FORWARD, STEP, Event
from ..core.casts import cast, widen
from ..core.policy import Cast, categories
from ..core.tensor import Tensor
from .finite import arrays_in, has_nan, is_finite, largest, share
from .origin import LINEAR, Origin, is_arithmetic, run_backward

_MOST_SAMPLES = 8  # that are named
_GROWN = 1e4  # weights start near 1 and below: beyond this, training has made them grow


def explained(origin: Origin) -> tuple[str, str]:
    """(cause, cure) of an origin, each a part of a line."""
    event, dtype = origin.event, origin.output.dtype
    if origin.outside:
        return _outside(origin)
    if event.name == "hook" or event.name == "BackwardHook_backward":
        return "a hook replaced a finite gradient by one that is not", "correct the hook"
    if event.phase == STEP and share(origin.output, "isinf"):
        return "the update is too large for the weights", "lower the learning rate, or clip gradients"
    if event.phase == STEP:
        return "the update divides 0 by 0", "give the optimizer an eps above 0"
    if not hasattr(event.op, "forward") and event.name not in LINEAR:
        return "it is code of its own, and was given finite values", "correct what it returns"
    if (constant := _constant_beyond(origin, dtype)) is not None:
        cause = f"the constant {constant:g} does not fit {dtype.name}, whose largest value is {finfo(dtype).max:g}"
        mask = f"use ampkit.finfo(ampkit.{dtype.name}).min, or float('-inf')"
        return cause, mask if constant < 0 else "use a smaller one, or cast the tensor first: x.float()"
    if origin.constant is not None and event.phase == FORWARD and is_arithmetic(event.op):
        return _with_constant(origin, origin.constant)
    if origin.parent is None and dtype != float64 and (reached := _reached(origin)) is not None:
        return _overflow(origin, reached)
    return _arithmetic(origin)


def is_overflow(origin: Origin) -> bool:
    """Whether the result is finite in float64, so that its dtype is at fault; or is beyond that of a wide one."""
    if origin.parent is not None or origin.outside or origin.output is None or origin.output.dtype == float64:
        return False
    return _reached(origin) is not None


def _reached(origin: Origin) -> float | None:
    """What the result reaches in float64, if it is finite there and larger than all that its dtype holds; else None."""
    wide, info = in_float64(origin), finfo(origin.output.dtype)
    size = largest(wide) or 0.0
    beyond = wide and all(map(is_finite, wide)) and size * (1 + float(info.eps)) > float(info.max)
    return size if beyond else None


def flushed(origin: Origin) -> tuple[str, str]:
    """(cause, cure) of a gradient that a dtype of 16 bits flushed to zero."""
    dtype, reached = origin.output.dtype, largest(in_float64(origin)) or 0.0
    smallest = float(finfo(dtype).smallest_normal) * float(finfo(dtype).eps)
    cause = f"the result, up to {reached:.3g}, is below {dtype.name}'s smallest positive number, {smallest:.3g}"
    scaled = origin.event.tag is not None
    cure = "start the GradScaler at a larger init_scale" if scaled else "scale the loss by a GradScaler"
    return cause, f"{cure}, or train in {'bfloat16' if dtype == float16 else 'float32'}"


def _outside(origin: Origin) -> tuple[str, str]:
    """(cause, cure) of values that no op has computed."""
    what, values = origin.outside, origin.output
    with backends.device_guard(values):
        count = int(np.logical_not(np.isfinite(values)).sum())
        infinite = bool(np.isinf(values).any())
    kind = ("NaN or infinite" if infinite else "NaN") if has_nan(values) else "infinite"
    cause = f"{count} of {values.size} values are {kind}{_in_samples(origin)}, and no op has made them"
    if what.startswith(("parameter", "buffer")):
        return cause, "load or initialize it again; the step that wrote it is the one to look at"
    if what.startswith("argument "):
        return cause, f"check each batch before the model: assert {what.removeprefix('argument ')}.isfinite().all()"
    if what.startswith("`target`"):
        return cause, "check each batch: assert target.isfinite().all()"
    return cause, "look at what wrote it before this line: an assignment into it, code on its array, or a batch"


def _in_samples(origin: Origin) -> str:
    """In which samples of a batch the values of an argument or a target are not finite, its axis 0; "" for others."""
    samples, total = samples_of(origin), len(origin.output) if origin.output.ndim else 0
    if not samples:
        return ""
    if len(samples) == total:
        return f", in all {total} samples of the batch"
    shown = [*map(str, samples[:_MOST_SAMPLES]), *(["..."] if len(samples) > _MOST_SAMPLES else [])]
    return f", in {len(samples)} of the batch's {total} samples ({', '.join(shown)})"


def samples_of(origin: Origin) -> list[int]:
    """The indices along axis 0 of an argument of a module, or of an input or a target, that are not all finite."""
    values, what = origin.output, origin.outside
    if not what.startswith(("argument ", "`input`", "`target`")) or values.ndim == 0 or len(values) < 2:
        return []
    with backends.device_guard(values):
        bad = np.logical_not(np.isfinite(values)).reshape(len(values), -1).any(1)
        return [int(i) for i in backends.backend_of(bad).to_numpy(np.flatnonzero(bad))]


def _constant_beyond(origin: Origin, dtype: DType) -> float | None:
    """The number that the call was given and its dtype cannot hold, such as a mask of -1e9; None if there is none."""
    event = origin.event
    for value in (*event.operands, *_numbers(event.params)):
        given = isinstance(value, Tensor) and value.numel() == 1 and event.phase == FORWARD
        given = given and id(value) not in origin.computed
        number = value.item() if given else value
        if isinstance(number, (int, float)) and float(finfo(dtype).max) < abs(number) < np.inf:
            return float(number)
    return None


def _with_constant(origin: Origin, constant: float) -> tuple[str, str]:
    """(cause, cure) of arithmetic with an infinite number or NaN."""
    place, values = _at_first(origin, nan=has_nan(origin.output))
    shown, result = ", ".join(f"{value:g}" for _, value in values), _at(origin.output, origin.output.shape, place)
    cause = f"it was given the number {constant:g}: {origin.event.name}({shown}) = {result:g}{_index(place)}"
    if constant == -np.inf and has_nan(origin.output):
        return cause, "mask by scores.masked_fill(mask, float('-inf')), which needs no product: 0 times infinity is NaN"
    return cause, "use a finite number"


def _numbers(params: Any) -> Iterator[float]:
    for value in params if isinstance(params, (tuple, list)) else ():
        if type(value) in (int, float):
            yield value


def in_float64(origin: Origin, of: Callable[[Any], Any] = lambda array: array) -> list[Any]:
    """The outputs of a call, computed by its reference from the same inputs in float64; none if it cannot be.

    of: a function that replaces the inputs of a forward.
    """
    event = origin.event
    if event.name in ("cast", "sum_over"):
        return [cast(array, float64) for array in event.inputs]
    if event.name == "sum_of_two":
        return [sum(cast(array, float64) for array in event.inputs)]
    if not hasattr(event.op, "forward"):
        return []
    try:
        if event.phase != FORWARD:
            needs = tuple([need and float64 for need in event.op.needs(event.node)])
            found: Any = run_backward(event, [widen(dy, float64) for dy in event.operands], needs, origin.saved)
        else:
            inputs = iter(event.inputs)
            read = [of(next(inputs)) if isinstance(item, Tensor) else item for item in event.operands]
            arrays = [widen(array, float64) for array in read]
            found = event.op.call(event.op.forward.reference.run, arrays, event.params)
            found = found[0] if isinstance(found, tuple) else found
    except Exception:  # not every reference takes float64 beside what was saved in another dtype
        return []
    return list(arrays_in(found if not isinstance(found, np.generic) else np.asarray(found)))


def _overflow(origin: Origin, reached: float) -> tuple[str, str]:
    dtype, event = origin.output.dtype, origin.event
    what = "an input" if event.name == "cast" and event.phase == FORWARD else "the result"
    cause = f"{what}, up to {reached:.3g}, does not fit {dtype.name}, whose largest value is {finfo(dtype).max:g}"
    weight = largest_weight(origin)
    cause += weight
    if "has grown" in weight:
        return cause, "lower the learning rate, warm it up, or clip gradients"
    if dtype not in LOW or reached > finfo(float32).max:
        return cause, "bound what goes in, by a norm, a clamp or a smaller learning rate"
    wider = "train in bfloat16" if dtype == float16 else "train in float32"
    if event.phase != FORWARD:
        return cause, f"take the mean of the loss, not its sum; or {_wider(origin)}{wider}"
    return cause, f"{_wider(origin)}{wider}"


def _wider(origin: Origin) -> str:
    """How to run what overflowed in float32, up to ", or ": by the policy in whose region it ran, or by a cast."""
    event, policy = origin.event, origin.policy
    name = event.name if event.op is not None or event.node is None else event.node.op.name
    name = origin.caster or name.removesuffix("_backward")
    if policy is None or name not in categories:
        return f"compute {name} in float32, x.float(), or " if event.phase == FORWARD else ""
    if policy.category(name) is Cast.LOW and "(" not in origin.path:
        return f'run it in float32, Policy("{policy.dtype.name}", modules={{"{origin.path}": "float32"}}), or '
    if name == "to":  # a cast that the program asks for
        return ""
    return f'run it in float32, Policy("{policy.dtype.name}", {name}="float32"), or '


def largest_weight(origin: Origin) -> str:
    """What is said of the model's largest weight, if it is large: that it has grown, or what speaks against that."""
    named = () if origin.model is None else origin.model.named_parameters()
    size, name, held = max(((largest(p.array) or 0.0, name, p) for name, p in named), default=(0.0, "", None))
    if size <= _GROWN:
        return ""
    against = _against_growth(held, size)
    return f"; {name} holds values up to {size:.3g}, {against}" if against else f"; {name} has grown to {size:.3g}"


def _against_growth(parameter: Any, size: float) -> str:
    """Why no optimizer can have made a parameter this large; "" if one can have."""
    segment = parameter._arena_segment
    owner = None if segment is None else segment.arena.owner()
    if owner is None:
        return "and no optimizer has it"
    steps = int(segment.arena.steps[segment.index])
    if steps == 0:  # of those that keep no count also the first one after a resume
        return "and its optimizer has taken no step since it was made or loaded"
    rate = max(float(group.get(key, 0.0)) for group in owner.param_groups for key in ("lr", "initial_lr", "max_lr"))
    decay = max(float(group.get("weight_decay", 0.0)) for group in owner.param_groups)
    # Adam's steps are a few times the learning rate at most, unless its decay overshoots 0 and grows from step to step.
    bounded = "exp_avg_sq" in segment.arena.moments and rate * decay <= 2
    return (
        f"which {steps} steps at a learning rate of {rate:g} cannot reach"
        if bounded and 100 * steps * rate < size
        else ""
    )


def _arithmetic(origin: Origin) -> tuple[str, str]:
    """(cause, cure) where the arithmetic itself has no finite result: by the values at the first one that is not."""
    event, output = origin.event, origin.output
    place, values = _at_first(origin)
    known = [value for _, value in values]
    shown, result = ", ".join(f"{value:g}" for value in known), _at(output, output.shape, place) or 0.0
    cause = (f"{event.name}({shown}) = {result:g}" if shown else f"it is {result:g}") + _index(place)
    if origin.parent is not None:
        rows = "leave one finite value in each row of the mask, or replace such rows' result"
        return f"{cause}, from a mask", rows if np.isnan(result) else "mask no value that the result depends on"
    if event.phase != FORWARD and known and known[0] == 0 and np.isnan(result):
        cause += "; the gradient that arrives is 0, as behind a `where`, and its derivative there is infinite"
        return cause, f"replace the input before the op, not its result after it: {_name_of(event)}(where(..., x, 1))"
    if any(value == 0 for value in known):
        zeros = [_share_of_zeros(item) for item, value in values if value == 0 and not isinstance(item, (int, float))]
        cause += f"; {max(zeros):.3g} % of its values are 0" if zeros else ""
        flushed = " (in float16 an eps below 6e-8 is 0)" if output.dtype in LOW else ""
        return cause, f"add an eps, or clamp the input away from 0{flushed}"
    if hasattr(event.op, "builtin") and not event.op.builtin:
        return cause, f"correct {event.name}, or bound what goes in"
    if np.isnan(result) and (found := _undefined(origin, known)):
        return cause + found[0], found[1]
    cure = "the values have grown too large: lower the learning rate, clip gradients, or add a norm before it"
    weight = largest_weight(origin)
    if "has grown" not in weight and (largest(origin.event.inputs) or 0.0) <= _GROWN:
        return cause + weight, f"keep the input of {_name_of(event)} away from where it, or its derivative, is infinite"
    return cause + weight, cure


def _undefined(origin: Origin, known: list[float]) -> tuple[str, str] | None:
    """(what to add to the cause, cure) where an op has no result for its inputs; None where they are too large for it.

    known: what it read for its first result that is NaN.
    """
    event = origin.event
    if any(value < 0 for value in known) and (wide := in_float64(origin, np.abs)) and all(map(is_finite, wide)):
        return ": the input is negative", "clamp the input to 0 and more"
    if (largest(event.inputs) or 0.0) > _GROWN:
        return None
    if known and event.phase == FORWARD:
        return ": the function is not defined there", f"clamp the input to where {_name_of(event)} is defined"
    if _family(event).startswith(("loss", "reduction")):
        few = "as of targets that are all ignored, weights of 0, or the deviation of one value"
        return f": it divides by 0, {few}", "leave out such batches, or divide by at least 1"
    return None


def _index(place: tuple[int, ...]) -> str:
    return f" at {list(place)}" if place else ""


def _at_first(origin: Origin, nan: bool = False) -> tuple[tuple[int, ...], list[tuple[Any, float]]]:
    """The index of the first result that is not finite (nan: that is NaN), and what was read for it with its value."""
    output = origin.output
    with backends.device_guard(output):
        bad = np.isnan(output) if nan else np.logical_not(np.isfinite(output))
        first = int(np.argmax(bad.reshape(-1)))
        place = tuple(int(i) for i in np.unravel_index(first, output.shape))
    return place, [(a, value) for a in _read(origin.event) if (value := _at(a, output.shape, place)) is not None]


def _name_of(event: Event) -> str:
    return str(event.name.removesuffix("_backward"))


def _family(event: Event) -> str:
    return event.op.forward.module if hasattr(event.op, "forward") else ""


def _read(event: Event) -> list[Any]:
    """The arrays and numbers that an op computed with; none for a product, each of whose results is of many values."""
    if _family(event).startswith("linalg."):
        return []
    tensors = sum(isinstance(item, Tensor) for item in event.operands)
    if event.phase != FORWARD or tensors != len(event.inputs):
        return list(arrays_in(event.inputs))
    arrays = iter(event.inputs)
    read = [next(arrays) if isinstance(item, Tensor) else item for item in event.operands]
    return [item for item in read if type(item) in (int, float) or getattr(item, "dtype", None) in FLOATS]


def _at(array: Any, shape: tuple[int, ...], place: tuple[int, ...]) -> float | None:
    """The value of an array that broadcasts to `shape` at `place`, or a number; None for other shapes."""
    if isinstance(array, (int, float)):
        return float(array)
    lead = len(shape) - array.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(array.shape, shape[lead:], strict=True)):
        return None
    index = tuple([0 if n == 1 else i for n, i in zip(array.shape, place[lead:], strict=True)])
    return float(backends.backend_of(array).to_numpy(array[index]))


def _share_of_zeros(array: Any) -> float:
    with backends.device_guard(array):
        return 100 * float((array == 0).mean(dtype=float64))
