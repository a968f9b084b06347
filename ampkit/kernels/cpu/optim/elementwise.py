"""CPU kernels of elementwise optimizers, weight averages, gradient norms and clipping (elementwise.cpp), one pass each.

On a CPU a skipped step returns early; the reference, which must not wait for a device, computes both outcomes. float64
masters, 16-bit masters with stochastic rounding and rules without a kernel are left to the reference.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import numpy as np

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import Function, HostArray, empty, supported
from ampkit.backends.cpu.native.library import library
from ampkit.base.dtypes import float32
from ampkit.kernels.shared.optim import register_flat, register_update, rule_of
from ampkit.optim.elementwise import Step, scalars_of
from ampkit.optim.flat.memory import RandomBits, read_scalar
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


def numbers_of(step: Step, weights: Any = None) -> HostArray:
    """The rule's scalars as eight float32, whose address kernels take."""
    found, numbers = scalars_of(step, float32), np.zeros(8, float32)
    numbers[: len(found)] = found
    return numbers


def two_copies(copies: list[HostArray]) -> tuple[HostArray | None, HostArray | None]:
    """The 16-bit copies that kernels write, or None."""
    first, second, *_ = *copies, None, None
    return first, second


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


def _updated(
    rule: str, weights: HostArray, flats: Any, copies: list[HostArray], numbers: HostArray, step: Step,
    scales: list[HostArray | None], codes: list[HostArray | None],
) -> None:  # fmt: skip
    args = _address_of(rule), weights, *flats, *two_copies(copies), address(numbers), step.l2
    maximize = bool(step.options.get("maximize"))
    if not scales:
        return _update(*args, maximize)
    assert step.random_bits is not None
    places = [_three(*[0 if each is None else address(each) for each in arrays]) for arrays in (scales, codes)]
    return _update_rounded(*args, maximize, *places, *step.random_bits)


register_update("cpu", _updated, numbers_of, _fits, is_skipped)


# flat memory


def _decoded(codes: HostArray, scales: HostArray, table: HostArray) -> HostArray:
    values = empty(codes.shape, float32)
    _decode(codes, scales, address(table), values)
    return values


def _encoded(values: HostArray, codes: HostArray, scales: HostArray, table: HostArray, bits: RandomBits | None) -> None:
    _encode(values, codes, scales, address(table), bits is None, *(bits or (0, 0, 0)))


def _coded(first: HostArray, second: HostArray, *rest: Any) -> bool:
    return library() is not None and first.flags.c_contiguous and second.flags.c_contiguous


def _narrowed(master: HostArray, rounded: HostArray) -> None:
    copy(rounded, master)


def _total(values: HostArray, order: float, scratch: HostArray) -> Any:
    return np.asarray(_power_sum(values, order == math.inf))


def _scaled(values: HostArray, factor: HostArray, all_finite: HostArray) -> None:
    if not read_scalar(all_finite):
        values[...] = 0
    elif (number := float(np.asarray(factor).astype(values.dtype))) != 1:
        _scale(values, number)


register_flat("cpu", _decoded, _encoded, _coded, _narrowed, _total, _scaled, on_host, orders=(2, math.inf))


@lerp.on(
    "cpu",
    when=lambda average, current, *rest: average.dtype == float32 == current.dtype and on_host(average, current),
)
def lerp_cpu(
    average: HostArray, current: HostArray, part: Any, fresh: HostArray | None, stepped: HostArray | None
) -> None:
    if not is_skipped(stepped):
        _lerp(average, current, float(part), fresh is not None and bool(read_scalar(fresh)))
