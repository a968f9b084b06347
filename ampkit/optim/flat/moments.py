"""Moments as an arena stores them: in float32 (float64 for float64 parameters), in bfloat16, or in 8 bits by blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, DType, bfloat16, uint8
from ampkit.base.errors import ArgumentError, one_of

from .blockwise import BLOCK, Blockwise, code_of
from .memory import RandomBits, narrow, round_stochastically, select_into

StateDtype = Literal["float32", "bfloat16", "float8", "int8"]
STATE_DTYPES = ("float32", "bfloat16", "float8", "int8")
IN_8_BITS = ("float8", "int8")
Moment = Any  # a flat Array, or a Blockwise
SCALE = "_scale"  # behind the name of a moment, in a saved state: the scales of its codes


class Storage(NamedTuple):
    """What an optimizer's options say of flat memory.

    stochastic_rounding: whether 16-bit parameters have no wider master weights. state_dtype: of the moments.
    """

    stochastic_rounding: bool = False
    state_dtype: str = "float32"


def need_state_dtype(where: str, value: Any) -> None:
    """Raise ArgumentError unless `value` is one of STATE_DTYPES, a name."""
    if not isinstance(value, str) or value not in STATE_DTYPES:  # ampkit.bfloat16 equals its name
        raise ArgumentError(where, f"state_dtype {one_of(STATE_DTYPES)}", repr(value))


def storage_of(options: Mapping[str, Any]) -> Storage:
    """What the options of a parameter group say of its memory."""
    return Storage(options.get("stochastic_rounding", False), options.get("state_dtype", "float32"))


def stored_dtype(state_dtype: str, dtype: DType) -> DType:
    """The dtype of the array that holds a moment, if `dtype` is that of the gradients."""
    return uint8 if state_dtype in IN_8_BITS else bfloat16 if state_dtype == "bfloat16" else dtype


def part(moment: Moment, start: int, stop: int) -> Moment:
    """The elements from `start` to `stop` of a flat moment, as a view."""
    return moment.part(start, stop) if isinstance(moment, Blockwise) else moment[start:stop]


def values_of(moment: Moment, dtype: DType) -> Array:
    """The values of a flat moment in `dtype`, in memory of their own."""
    if isinstance(moment, Blockwise):
        return moment.decoded()
    return moment.copy() if moment.dtype == dtype else backends.backend_of(moment).cast(moment, dtype)


def store(moment: Moment, values: Array, random_bits: RandomBits | None = None, flag: Array | None = None) -> None:
    """Store flat `values` where `flag`, a 0-d bool array or None, is true.

    random_bits: for the stochastic rounding of what has fewer bits than the values; without, they round to nearest.
    """
    if isinstance(moment, Blockwise):
        made = moment if flag is None else moment.copy()
        made.encode(values, random_bits)
        if flag is not None:
            select_into(moment.codes, made.codes, flag)
            select_into(moment.scales, made.scales, flag)
    elif moment.dtype == values.dtype:
        select_into(moment, values, flag)
    else:
        kept = values if flag is None else np.where(flag, values, values_of(moment, values.dtype))
        if random_bits is None:
            narrow(kept, moment)
        else:
            round_stochastically(kept, moment, random_bits)


def copy_moment(to: Moment, moment: Moment, dtype: DType) -> None:
    """Copy a flat moment, bit for bit where both are stored alike, else rounded to nearest."""
    if isinstance(to, Blockwise) and isinstance(moment, Blockwise) and to.code is moment.code:
        to.codes[...], to.scales[...] = moment.codes, moment.scales
    else:
        store(to, values_of(moment, dtype))


def widened(entry: dict[str, Any], state_dtype: Any, non_negative: tuple[str, ...]) -> dict[str, Any]:
    """A saved state whose moments in 8 bits, of `state_dtype`, are decoded to float32 arrays of the host."""
    if state_dtype not in IN_8_BITS:
        return entry
    found = {name: value for name, value in entry.items() if not name.endswith(SCALE)}
    for name in found:
        if (scales := entry.get(name + SCALE)) is not None:
            codes, scales = np.asarray(found[name]), np.asarray(scales, np.float32)
            if codes.dtype == np.uint8 and scales.shape == scale_shape(codes.size):
                code = code_of(state_dtype, name in non_negative)
                found[name] = Blockwise(codes.reshape(-1), scales, code).decoded().reshape(codes.shape)
            else:
                found[name + SCALE] = scales  # which is refused by its shape
    return found


def scale_shape(count: int) -> tuple[int]:
    """The shape of the scales of so many codes."""
    return (-(-count // BLOCK),)
