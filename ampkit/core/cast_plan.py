"""Cast plans: the dtypes in which an op runs for one combination of input dtypes under one policy.

Made once per combination, and cached by the op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..base import dtypes
from ..base.dtypes import (
    FLOATS,
    LOW,
    NARROW,
    DType,
    accumulator,
    bool_,
    float32,
    float64,
    int64,
    name_of,
    promote,
    uint8,
)
from ..base.errors import DTypeError
from ..base.formats import CURE
from . import policy
from .arguments import type_name
from .policy import Cast, Policy


@dataclass(frozen=True, slots=True)
class CastPlan:
    """The dtypes of one call, and the kernels that may run it."""

    casts: tuple[DType | None, ...]  # per input, the dtype to round it to first, or None for as it comes
    compute: DType | None  # what a reference sees its Arrays in; None for as they are stored
    out: DType  # the dtype of floating-point outputs
    stored: tuple[DType | None, ...]  # per input, the dtype it is read in
    widens: bool  # whether some Array is stored in another dtype than `compute`
    narrows: bool  # whether what a reference returns has to be rounded
    backend: str
    kernels: list[Any]  # the faster ones that the backend has, also those registered later
    tapes: bool  # whether the gradient of some input is wanted
    drops: tuple[str, ...]  # what was saved for the gradient of other inputs alone
    quantized: Callable[[Any], Any] | None = None  # from the call's inputs, the kernel that a recipe asks for
    codes: DType | None = None  # the format below 16 bits whose bytes the op moves
    choose: Callable[[Any], Any] | None = None  # `quantized`, or what gives the kernel of a call on batched arrays
    by_output: dict[DType, CastPlan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def with_output(self, dtype: DType) -> CastPlan:
        """The plan of an op that reads arrays as they are stored and rounds its result to `dtype`, once."""
        found = self.by_output.get(dtype)
        if found is None:
            compute = accumulator(dtype)
            found = replace(self, out=dtype, compute=compute, widens=True, narrows=True, drops=())
            self.by_output[dtype] = found
        return found


# What a call shows of an input: a dtype, (dtype,) for a 0-d tensor, the type of a Python number, or None.
Entry = Any

_NUMBERS = (bool, int, float)
_RANK = {"b": 0, "i": 1, "u": 1}


def make_plan(
    op: Any, active: Policy | None, explicit: DType | None, key: list[Entry], wanted: list[bool], backend: str
) -> CastPlan:
    """The plan of `op` for the entries `key` under the policy `active` (None outside of a region).

    explicit: the `dtype` argument of the call. wanted: per input, whether its gradient is.
    Raises DTypeError for a banned op and for dtypes that do not meet.
    """
    if not NARROW.isdisjoint(map(_dtype, key)) or explicit in NARROW:
        return _plan_of_formats(op, explicit, key, wanted, backend)
    cast = op.cast if active is None else active.category(op.name)
    kinds = op.signature.kinds(len(key))
    _need_tensors(op, key)
    entries = [k for k, is_array in zip(key, kinds, strict=True) if is_array and k is not None]
    tensors = [_dtype(k) for k in entries if not isinstance(k, type)]
    deciding = _deciding(entries, tensors)
    if active is not None and cast is Cast.BANNED:
        cure = policy.cures.get(op.name, "run it in autocast(enabled=False)")
        raise DTypeError(f"{op.name} inside autocast", "a safer op", op.name, cure)
    widest = explicit or result_type(entries)
    if explicit is None:
        _need_to_meet(op, cast, active, deciding, entries)
        out = _output_dtype(op, cast, active, widest, tensors, deciding)
    else:
        out = _explicit_output(op, explicit)
    casts = _casts(op, cast, widest, explicit, out, key, kinds)
    quantized = _quantized(op, active, cast, out)
    if quantized is not None:  # which rounds the weight once, from what the optimizer updates
        casts = (casts[0], None, *casts[2:])
    floats = [d for d in deciding if d in FLOATS]
    compute = None if op.moves or out not in FLOATS else accumulator(promote(out, *floats))
    if out in FLOATS:
        casts = _round_numbers(op, out, compute, casts, key, kinds)
    read = tuple([_dtype(k) if c is None or isinstance(k, type) else c for k, c in zip(key, casts, strict=True)])
    casts = casts if any(c is not None and c != _dtype(k) for k, c in zip(key, casts, strict=True)) else ()
    widens = compute is not None and any(d in FLOATS and d != compute for d in read)
    # Moved values come as stored, but bfloat16 beside a Python number is float32 to NumPy, and an integer float64.
    strays = out in FLOATS and (out in LOW or any(d != out for d in tensors))
    narrows = widens or (strays if compute is None else compute != out) or (explicit is not None and out not in FLOATS)
    tapes = any(wanted) and op.backward_primitive is not None
    asked = {n for n, w in zip(op.signature.names, wanted, strict=False) if w}
    drops = tuple([k for k, users in op.saved_for.items() if not asked & set(users)])
    kernels = op.forward.kernels_of(backend)
    return CastPlan(
        casts, compute, out, read, widens, narrows, backend, kernels, tapes, drops, quantized, choose=quantized
    )


def asking_for(plan: CastPlan, absent: list[bool]) -> CastPlan:
    """`plan` for inputs of which some are Absent: those are asked for in the dtype that they are read in."""
    casts = plan.casts or (None,) * len(absent)
    asked = zip(absent, plan.stored, casts, strict=True)
    return replace(plan, casts=tuple([stored if is_absent else cast for is_absent, stored, cast in asked]))


def _quantized(op: Any, active: Policy | None, cast: Cast, out: DType) -> Any:
    recipe = None if active is None else active.recipe
    quantizes = recipe is not None and op.quantized is not None and cast is Cast.LOW and out in LOW
    return op.quantized(recipe) if quantizes else None


def _plan_of_formats(op: Any, explicit: DType | None, key: list[Entry], wanted: list[bool], backend: str) -> CastPlan:
    """The plan of a cast from or to a format below 16 bits, or of an op that moves its bytes, viewed as uint8.

    Raises DTypeError for every other op: there is no arithmetic in these formats, as in PyTorch.
    """
    kinds = op.signature.kinds(len(key))
    stored = tuple(map(_dtype, key))
    read = {d for d, is_array in zip(stored, kinds, strict=True) if is_array}
    found = next((d for d in stored if d in NARROW), explicit)
    moves = op.opaque and explicit is None and read == {found}
    if not (moves or (op.casts and explicit is not None)):
        got = ", ".join(name_of(d) if d is not None else "a number" for d in stored if d is not None or len(stored) > 1)
        raise DTypeError(op.name, "a dtype with arithmetic", name_of(explicit) if explicit in NARROW else got, CURE)
    casts = tuple([uint8 if d in NARROW else None for d in stored]) if moves else ()
    out: Any = uint8 if moves else explicit
    tapes = any(wanted) and op.backward_primitive is not None
    compute = float32 if moves else None  # of the backward
    return CastPlan(casts, compute, out, stored, False, True, backend, [], tapes, (), codes=found if moves else None)


def _need_tensors(op: Any, key: list[Entry]) -> None:
    for position, entry in enumerate(key):
        if entry is None and not op.signature.may_miss(position):
            raise DTypeError(op.name, f"a Tensor for `{op.signature.name_of(position)}`", "None")
        if isinstance(entry, type) and entry not in _NUMBERS:
            raise DTypeError(op.name, "Tensors and numbers", type_name(entry), _cure(entry))


def _cure(kind: type) -> str | None:
    if issubclass(kind, (complex, str, bytes)):
        return None
    if hasattr(kind, "__float__") and not hasattr(kind, "__array__"):
        return "convert it: float(...)"
    return "wrap arrays with ampkit.tensor(...)"


def _need_to_meet(op: Any, cast: Cast, active: Policy | None, stored: list[DType], entries: list[Entry]) -> None:
    # A product of mixed dtypes, or float64 among narrower floats in a listed op, is more often a mistake than intended.
    found = set(stored)
    floats = found & FLOATS
    product = op.cast is Cast.LOW and len(found) > 1 and (active is None or len(floats) < len(found))
    strict = not op.mixes and active is None and len({k for k in entries if not isinstance(k, (tuple, type))}) > 1
    if product or strict or (cast in (Cast.LOW, Cast.FP32) and float64 in floats and len(floats) > 1):
        names = ", ".join(d.name for d in stored)
        raise DTypeError(op.name, "operands of one dtype", names, f"cast one: x.to(ampkit.{stored[0].name})")


def _output_dtype(
    op: Any, cast: Cast, active: Policy | None, widest: DType, tensors: list[DType], deciding: list[DType]
) -> DType:
    # The dtype of floating-point outputs.
    if widest not in FLOATS:
        if op.integers == "refuse":
            raise DTypeError(op.name, "a floating-point tensor", widest.name, "cast it: x.float()")
        return dtypes.default() if op.integers == "float" else widest
    if cast is Cast.KEEP:
        return tensors[0] if tensors and tensors[0] in FLOATS else widest
    if active is None or cast is Cast.WIDEST or float64 in deciding or not FLOATS.intersection(tensors):
        return widest
    return active.low_dtype if cast is Cast.LOW else float32


def _explicit_output(op: Any, explicit: DType) -> DType:
    # An op whose result is a float for integers too, or that takes no integers, has no integer result.
    if explicit not in FLOATS and op.integers != "keep":
        raise DTypeError(op.name, "a floating-point dtype", f"dtype={explicit.name}")
    return explicit


def _casts(
    op: Any, cast: Cast, widest: DType, explicit: DType | None, out: DType, key: list[Entry], kinds: list[bool]
) -> tuple[DType | None, ...]:
    tensors = [is_array and k is not None and not isinstance(k, type) for k, is_array in zip(key, kinds, strict=True)]
    stored = [_dtype(k) for k, is_tensor in zip(key, tensors, strict=True) if is_tensor]
    target = None
    if explicit is not None or cast is Cast.WIDEST or widest not in FLOATS:
        target = widest
    if (cast is Cast.LOW and widest in FLOATS) or (out in FLOATS and any(d not in FLOATS for d in stored)):
        target = out
    # What only widens is left to the kernel, or to the reference, whose arrays come in one dtype anyway.
    widens = cast is Cast.WIDEST and explicit is None and not op.moves and FLOATS.issuperset(stored)
    if widens or (op.moves and len(stored) == 1):
        target = None
    return tuple([target if is_tensor else None for is_tensor in tensors])


def _round_numbers(
    op: Any, out: DType, compute: DType | None, casts: tuple[DType | None, ...], key: list[Entry], kinds: list[bool]
) -> tuple[DType | None, ...]:
    """`casts` with those of numbers and 0-d tensors beside tensors with axes, whose dtype they take.

    The op's `factors` keep float32 beside 16-bit tensors: their rounding would be one of every element.
    NumPy and kernels round a Python number to float32 themselves.
    """
    if all(isinstance(k, (tuple, type)) for k, counts in zip(key, kinds, strict=True) if counts and k is not None):
        return casts

    def of(position: int, entry: Entry, cast: DType | None) -> DType | None:
        is_factor = op.factors and compute is not None and op.signature.name_of(position) in op.factors
        target = compute if is_factor else out
        if type(entry) is tuple and entry[0] in FLOATS:
            return target if cast is None and promote(entry[0], target) != target else cast
        return target if entry in (int, float) and target in LOW else cast

    return tuple(
        [of(i, k, casts[i]) if counts else casts[i] for i, (k, counts) in enumerate(zip(key, kinds, strict=True))]
    )


def _deciding(entries: list[Entry], tensors: list[DType]) -> list[DType]:
    # The dtypes, of those of `tensors`, that decide on the dtype of floats: those of 0-d tensors only beside no others.
    axes = [k for k in entries if not isinstance(k, (tuple, type))]
    return axes if FLOATS.intersection(axes) else tensors


def result_type(entries: list[Entry]) -> DType:
    """The dtype that operands agree on.

    Tensors with axes decide; a 0-d tensor, then a Python number, counts only if it is of a higher kind (bool, int,
    float).
    """
    axes = [k for k in entries if not isinstance(k, (tuple, type))]
    zeros = [k[0] for k in entries if type(k) is tuple]
    weak = [dtypes.default() if k is float else bool_ if k is bool else int64 for k in entries if isinstance(k, type)]
    groups = [promote(*group) for group in (axes, zeros, weak) if group]
    found = groups[0]
    for other in groups[1:]:
        found = other if _rank(other) > _rank(found) else found
    return found


def _rank(dtype: DType) -> int:
    return _RANK.get(dtype.kind, 2)


def _dtype(entry: Entry) -> Any:
    # The dtype of a tensor's entry; None for a number or a missing input.
    if type(entry) is tuple:
        return entry[0]
    return None if isinstance(entry, type) else entry
