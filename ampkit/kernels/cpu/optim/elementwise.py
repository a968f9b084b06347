"""CPU kernels of elementwise optimizers, weight averages, gradient norms and clipping (elementwise.cpp), one pass each.

On a CPU a skipped step returns early; the reference, which must not wait for a device, computes both outcomes. float64
masters, 16-bit masters with stochastic rounding and rules without a kernel are left to the reference.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import Function, HostArray, empty, supported
from ampkit.backends.cpu.native.library import library
from ampkit.base.dtypes import float32
from ampkit.kernels.shared.optim import rule_of
from ampkit.optim.clip import power_sum, scale_gradients
from ampkit.optim.elementwise import Step, scalars_of, update
from ampkit.optim.flat.blockwise import Blockwise, Code, decode, encode
from ampkit.optim.flat.memory import RandomBits, narrow, read_scalar
from ampkit.optim.swa_utils import lerp

_update, _lerp = Function("optimizer_update", "paaaaaaapfi"), Function("lerp", "aafi")
_update_rounded = Function("optimizer_update_rounded", "paaaaaaapfippuui")
_decode, _encode = Function("decode", "aapa"), Function("encode", "aaapiuui")
_three = ctypes.c_void_p * 3
_power_sum, _scale = Function("power_sum", "ai", ctypes.c_double), Function("scale_gradients", "af")


@cache
def _address_of(rule: str) -> int:
    """The address of the library's `optimizer_<rule>`, which updates a block."""
    return ctypes.addressof(ctypes.c_void_p.in_dll(library(), f"optimizer_{rule}"))


def numbers_of(step: Step) -> HostArray:
    """The rule's scalars as eight float32, whose address kernels take."""
    found, numbers = scalars_of(step, float32), np.zeros(8, float32)
    numbers[: len(found)] = found
    return numbers


def two_copies(copies: list[HostArray]) -> tuple[HostArray | None, HostArray | None]:
    """The 16-bit copies that kernels write, or None."""
    first, second, *_ = *copies, None, None
    return first, second


def only_copies(weights: HostArray, copies: list[HostArray]) -> None:
    """What is left of a skipped step: after it copies count as fresh, and one that was just made is not filled yet."""
    for each in copies:
        narrow(weights, each)


def is_skipped(all_finite: HostArray | None) -> bool:
    """Whether the gradients of a step are not all finite."""
    return all_finite is not None and not read_scalar(all_finite)


def on_host(*flats: HostArray) -> bool:
    """Whether kernels take these arrays: contiguous floats of at most 32 bits, whose values the host may read."""
    for flat in flats:
        if type(flat) is not np.ndarray or not flat.flags.c_contiguous:
            return False
    return supported(*flats)


def _fits(weights: HostArray, gradient: HostArray, moments: Any, copies: list[HostArray], step: Step) -> bool:
    return rule_of(step) is not None and weights.dtype == float32 and on_host(weights, gradient)


@update.on("cpu", when=_fits)
def update_cpu(
    weights: HostArray, gradient: HostArray, moments: Sequence[HostArray | None], copies: list[HostArray], step: Step
) -> None:
    if is_skipped(step.all_finite):
        return only_copies(weights, copies)
    held, numbers = (*moments, None, None)[:3], numbers_of(step)
    rule, maximize = rule_of(step), bool(step.options.get("maximize"))
    assert rule is not None
    flats = [moment.codes if isinstance(moment, Blockwise) else moment for moment in held]
    args = _address_of(rule), weights, gradient, *flats, *two_copies(copies), address(numbers), step.l2, maximize
    if all(moment is None or moment.dtype == float32 for moment in held):
        _update(*args)
    else:
        assert step.random_bits is not None
        in_8_bits = [moment if isinstance(moment, Blockwise) else None for moment in held]
        scales = [0 if moment is None else address(moment.scales) for moment in in_8_bits]
        codes = [0 if moment is None else address(moment.code.beside(weights)) for moment in in_8_bits]
        _update_rounded(*args, _three(*scales), _three(*codes), *step.random_bits)
    return None


@decode.on("cpu", when=lambda codes, scales, code: library() is not None and codes.flags.c_contiguous)
def decode_cpu(codes: HostArray, scales: HostArray, code: Code) -> HostArray:
    values = empty(codes.shape, float32)
    _decode(codes, scales, address(code.beside(codes)), values)
    return values


@encode.on("cpu", when=lambda values, codes, *rest: on_host(values) and codes.flags.c_contiguous)
def encode_cpu(
    values: HostArray, codes: HostArray, scales: HostArray, code: Code, random_bits: RandomBits | None
) -> None:
    _encode(values, codes, scales, address(code.beside(codes)), random_bits is None, *(random_bits or (0, 0, 0)))


@narrow.on("cpu")
def narrow_cpu(master: HostArray, rounded: HostArray) -> None:
    copy(rounded, master)


@lerp.on(
    "cpu",
    when=lambda average, current, *rest: average.dtype == float32 == current.dtype and on_host(average, current),
)
def lerp_cpu(
    average: HostArray, current: HostArray, part: Any, fresh: HostArray | None, stepped: HostArray | None
) -> None:
    if not is_skipped(stepped):
        _lerp(average, current, float(part), fresh is not None and bool(read_scalar(fresh)))


# norms


@power_sum.on("cpu", when=lambda values, order, scratch: order in (2, math.inf) and on_host(values))
def power_sum_cpu(values: HostArray, order: float, scratch: HostArray) -> Any:
    return np.asarray(_power_sum(values, order == math.inf))


@scale_gradients.on("cpu", when=lambda values, factor, all_finite: on_host(values))
def scale_gradients_cpu(values: HostArray, factor: HostArray, all_finite: HostArray) -> None:
    if not read_scalar(all_finite):
        values[...] = 0
    elif (number := float(np.asarray(factor).astype(values.dtype))) != 1:
        _scale(values, number)
