"""CUDA kernels of the optimizers: an update, with its moments and 16-bit copies, in one pass over flat memory; norms
and clipping; schedules.

The kernels read learning rates, betas, momentum, the step count and the flag `all_finite` on the device. float64 master
weights are left to the references.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.flat import BLOCK, copies_16bit, grid_for, in_order, width_of
from ampkit.backends.cuda.nvrtc import STORED, drawn, launch, typed
from ampkit.base.dtypes import LOW, Array, bfloat16, float32, float64, uint8
from ampkit.kernels.shared.optim import rule_of
from ampkit.optim.adam import Adam
from ampkit.optim.clip import power_sum, scale_gradients
from ampkit.optim.elementwise import Elementwise, Step, scalars_of, update
from ampkit.optim.flat.blockwise import Blockwise, Code, decode, encode
from ampkit.optim.flat.memory import RandomBits, narrow, round_stochastically
from ampkit.optim.flat.moments import Moment
from ampkit.optim.lr_scheduler.schedule import advance_schedule
from ampkit.optim.sgd import SGD

PARTS = 1024  # blocks of a sum, at most; one block adds up their results


def _random_arguments(backend: Any, random_bits: RandomBits | None) -> tuple[Any, ...]:
    """The kernel arguments seed, call, draws and start of stochastic rounding."""
    seed, call, start = random_bits or (0, 0, 0)
    return *drawn(backend, seed, call), np.int64(start)


def _launch_update(
    name: tuple[str, ...], weights: Array, arrays: Sequence[Array | None], copies: list[Array], step: Step,
    *scalars: Any,
) -> None:  # fmt: skip
    """Launch an update. name: of the kernel, and its first template arguments. arrays: the gradient and the moments."""
    low_copies = copies_16bit(copies)
    width = width_of(float32, weights, *arrays, *low_copies)
    entry, blocks = typed(*name, weights.dtype, width), grid_for(weights.size, width)
    random = _random_arguments(backends.backend_of(weights), step.random_bits)
    last = np.bool_(step.options["maximize"]), np.int64(weights.size)
    launch("optim/update", entry, blocks, BLOCK, weights, *arrays, *low_copies, *random, *scalars, *last)


def _is_rule(
    rule: type[Elementwise], weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array],
    step: Step,
) -> bool:  # fmt: skip
    """Whether the update is exactly that of the optimizer `rule`, not of a subclass that changes it, and supported."""
    same = step.rule.update_elements is rule.update_elements and step.rule.scalars is rule.scalars
    return same and _supports(weights, gradient, moments, copies)


def _supports(weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array]) -> bool:
    """Whether a kernel takes these master weights: float32, or 16-bit ones that are aligned for wide accesses."""
    if any(moment is not None and moment.dtype != float32 for moment in moments):
        return False
    low = weights.dtype in LOW and width_of(float32, weights, gradient, *moments, *copies) > 1
    return gradient.dtype == float32 and (weights.dtype == float32 or low)


@update.on("cuda", when=partial(_is_rule, Adam))
def adam_update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    decoupled_decay = np.float64(0.0 if step.l2 else step.options["weight_decay"])
    arrays = step.steps, step.values["lr"], step.values["betas"], step.all_finite
    scalars = np.float32(step.options["eps"]), decoupled_decay, np.float32(step.l2)
    _launch_update(("adam_update",), weights, (gradient, *moments), copies, step, *arrays, *scalars)


@update.on("cuda", when=partial(_is_rule, SGD))
def sgd_update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    arrays = step.steps, step.values["lr"], step.values["momentum"], step.all_finite
    scalars = np.float64(step.options["dampening"]), np.float32(step.l2), np.bool_(step.options["nesterov"])
    _launch_update(("sgd_update",), weights, (gradient, *moments), copies, step, *arrays, *scalars)


def _has_rule(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> bool:
    return rule_of(step) is not None and _supports(weights, gradient, moments, copies)


def _numbers_of(step: Step, backend: Any) -> Array:
    """The rule's scalars as float32 on the device."""
    scalars = scalars_of(step, float32)
    numbers = backend.empty((len(scalars),), float32)
    for i, scalar in enumerate(scalars):
        numbers[i] = scalar
    return numbers


@update.on("cuda", when=_has_rule)
def update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    """Compute the rule's scalars on the device, then update in one launch."""
    numbers = _numbers_of(step, backends.backend_of(weights))
    rule, arrays = rule_of(step), (gradient, *moments, *[None] * (3 - len(moments)))
    assert rule is not None
    _launch_update(("update", rule), weights, arrays, copies, step, numbers, step.all_finite, np.float32(step.l2))


def _takes_rounded(
    weights: Array, gradient: Array, moments: Sequence[Moment | None], copies: list[Array], step: Step
) -> bool:
    """Whether a kernel takes an update whose moments are all stored in bfloat16, or all in 8 bits."""
    kinds = {moment.dtype for moment in moments if moment is not None}
    flats = weights, gradient, *map(_flat_of, moments), *copies
    low = weights.dtype in LOW and width_of(float32, *flats) > 1
    plain = gradient.dtype == float32 and (weights.dtype == float32 or low)
    return rule_of(step) is not None and plain and kinds in ({bfloat16}, {uint8})


def _flat_of(moment: Moment | None) -> Array | None:
    return moment.codes if isinstance(moment, Blockwise) else moment


@update.on("cuda", when=_takes_rounded)
def update_rounded_cuda(
    weights: Array, gradient: Array, moments: Sequence[Moment | None], copies: list[Array], step: Step
) -> None:
    """Compute the rule's scalars on the device, then decode, update and round in one launch."""
    backend, rule = backends.backend_of(weights), rule_of(step)
    assert rule is not None
    held, low_copies = (*moments, *[None] * (3 - len(moments))), copies_16bit(copies)
    in_8_bits = [moment if isinstance(moment, Blockwise) else None for moment in held]
    scales = [None if moment is None else moment.scales for moment in in_8_bits]
    codes = [None if moment is None else moment.code.beside(weights) for moment in in_8_bits]
    flats = gradient, *map(_flat_of, held)
    width = width_of(float32, weights, *flats, *low_copies)
    stored = next(moment.dtype for moment in held if moment is not None)
    entry, blocks = typed("update_rounded", rule, weights.dtype, stored, width), grid_for(weights.size, 8)
    last = np.float32(step.l2), np.bool_(step.options["maximize"]), np.int64(weights.size)
    random = _random_arguments(backend, step.random_bits)
    arrays = *flats, *low_copies, *random, *scales, *codes, _numbers_of(step, backend), step.all_finite
    launch("optim/rounded_moments", entry, blocks, BLOCK, weights, *arrays, *last)


@encode.on("cuda", when=lambda values, codes, *rest: values.dtype == float32 and in_order(values, codes))
def encode_cuda(values: Array, codes: Array, scales: Array, code: Code, random_bits: RandomBits | None) -> None:
    backend = backends.backend_of(values)
    random = *_random_arguments(backend, random_bits), np.bool_(random_bits is None), np.int64(values.size)
    arrays = values, codes, scales, code.beside(values)
    launch("optim/rounded_moments", "encode_blocks", grid_for(values.size, 8), BLOCK, *arrays, *random)


@decode.on("cuda", when=lambda codes, scales, code: in_order(codes, scales))
def decode_cuda(codes: Array, scales: Array, code: Code) -> Array:
    backend = backends.backend_of(codes)
    values = backend.empty(codes.shape, float32)
    arrays = codes, scales, code.beside(codes), values
    launch("optim/rounded_moments", "decode_blocks", grid_for(codes.size, 1), BLOCK, *arrays, np.int64(codes.size))
    return values


def _supports_narrow(master: Array, copy: Array) -> bool:
    return master.dtype == float32 and copy.dtype in LOW and in_order(master, copy)


@narrow.on("cuda", when=_supports_narrow)
def narrow_cuda(master: Array, copy: Array) -> None:
    width = width_of(float32, master, copy)
    entry, blocks = typed("cast_copy", copy.dtype, width), grid_for(master.size, width)
    launch("optim/update", entry, blocks, BLOCK, master, copy, np.int64(master.size))


def _supports_rounding(values: Array, weights: Array, random_bits: RandomBits) -> bool:
    return weights.dtype in LOW and in_order(values, weights)


@round_stochastically.on("cuda", when=_supports_rounding)
def round_stochastically_cuda(values: Array, weights: Array, random_bits: RandomBits) -> None:
    width = width_of(float32, values, weights)
    entry, blocks = typed("round_stochastically", weights.dtype, width), grid_for(values.size, width)
    random = _random_arguments(backends.backend_of(weights), random_bits)
    launch("optim/update", entry, blocks, BLOCK, values, weights, *random, np.int64(values.size))


# norms


@power_sum.on("cuda", when=lambda values, order, scratch: values.dtype in STORED and in_order(values))
def power_sum_cuda(values: Array, order: float, scratch: Array) -> Array:
    kind = "0" if order == math.inf else "2" if order == 2 else "1"
    width, backend = width_of(values.dtype, values), backends.backend_of(values)
    blocks = grid_for(values.size, width, PARTS)
    parts, total = backend.empty((blocks,), float64), backend.empty((), float64)
    entry = typed("power_sum", values.dtype, width, kind)
    launch("optim/update", entry, blocks, BLOCK, values, parts, np.float64(order), np.int64(values.size))
    launch("optim/update", typed("power_sum_finish", kind), 1, BLOCK, parts, total, np.int64(blocks))
    return total


@scale_gradients.on("cuda", when=lambda values, factor, all_finite: values.dtype in STORED and in_order(values))
def scale_gradients_cuda(values: Array, factor: Array, all_finite: Array) -> None:
    width = width_of(values.dtype, values)
    entry, blocks = typed("scale_gradients", values.dtype, width), grid_for(values.size, width)
    launch("optim/update", entry, blocks, BLOCK, values, factor, all_finite, np.int64(values.size))


# schedules


@advance_schedule.on("cuda")
def advance_schedule_cuda(count: Array, seen: Array, steps: Array, table: Array, row: Array) -> None:
    rows, width = table.shape
    launch("optim/update", "advance_schedule", 1, 32, count, seen, steps, table, row, np.int64(rows), np.int64(width))
