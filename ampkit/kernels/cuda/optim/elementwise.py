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
from ampkit.kernels.shared.optim import register_flat, register_update, rule_of, stored
from ampkit.optim.adam import Adam
from ampkit.optim.elementwise import Elementwise, Step, scalars_of, update
from ampkit.optim.flat.memory import RandomBits, round_stochastically
from ampkit.optim.flat.moments import Moment
from ampkit.optim.lr_scheduler.schedule import advance_schedule
from ampkit.optim.sgd import SGD

PARTS = 1024  # blocks of a sum, at most; one block adds up their results


def _random_arguments(backend: Any, random_bits: RandomBits | None) -> tuple[Any, ...]:
    """The kernel arguments seed, call, draws and start of stochastic rounding."""
    seed, call, start = random_bits or (0, 0, 0)
    return *drawn(backend, seed, call), np.int64(start)


def _launch_update(
    file: str, name: tuple[Any, ...], width: int, weights: Array, flats: Sequence[Array | None], copies: list[Array],
    step: Step, *scalars: Any,
) -> None:  # fmt: skip
    """Launch an update. name: of the kernel, and its template arguments. width: values per thread."""
    random = _random_arguments(backends.backend_of(weights), step.random_bits)
    last = np.bool_(step.options["maximize"]), np.int64(weights.size)
    blocks = grid_for(weights.size, width)
    launch(file, typed(*name), blocks, BLOCK, weights, *flats, *copies_16bit(copies), *random, *scalars, *last)


def _launch_of(
    name: str, weights: Array, gradient: Array, moments: Any, copies: list[Array], step: Step, *scalars: Any
) -> None:
    """Launch an update whose kernel computes the scalars."""
    width = width_of(float32, weights, gradient, *moments, *copies)
    flats = gradient, *moments
    _launch_update("optim/update", (name, weights.dtype, width), width, weights, flats, copies, step, *scalars)


def _is_rule(
    rule: type[Elementwise], weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array],
    step: Step,
) -> bool:  # fmt: skip
    """Whether the update is exactly that of the optimizer `rule`, not of a subclass that changes it, and supported."""
    if step.rule.update_elements is not rule.update_elements or step.rule.scalars is not rule.scalars:
        return False
    for moment in moments:
        if moment is not None and moment.dtype != float32:
            return False
    return _fits(weights, gradient, moments, copies, step)


def _fits(weights: Array, gradient: Array, moments: Sequence[Moment | None], copies: list[Array], step: Step) -> bool:
    """Whether a kernel takes these master weights: float32, or 16-bit ones that are aligned for wide accesses; and
    moments that are stored alike, in float32, bfloat16 or 8 bits.
    """
    alike = {moment.dtype for moment in moments if moment is not None} in (set(), {float32}, {bfloat16}, {uint8})
    if not alike or gradient.dtype != float32 or rule_of(step) is None:
        return False
    low = weights.dtype in LOW and width_of(float32, weights, gradient, *map(stored, moments), *copies) > 1
    return low or bool(weights.dtype == float32)


@update.on("cuda", when=partial(_is_rule, Adam))
def adam_update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    decoupled_decay = np.float64(0.0 if step.l2 else step.options["weight_decay"])
    arrays = step.steps, step.values["lr"], step.values["betas"], step.all_finite
    scalars = np.float32(step.options["eps"]), decoupled_decay, np.float32(step.l2)
    _launch_of("adam_update", weights, gradient, moments, copies, step, *arrays, *scalars)


@update.on("cuda", when=partial(_is_rule, SGD))
def sgd_update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    arrays = step.steps, step.values["lr"], step.values["momentum"], step.all_finite
    scalars = np.float64(step.options["dampening"]), np.float32(step.l2), np.bool_(step.options["nesterov"])
    _launch_of("sgd_update", weights, gradient, moments, copies, step, *arrays, *scalars)


def _numbers_of(step: Step, weights: Array) -> Array:
    """The rule's scalars as float32 on the device."""
    scalars = scalars_of(step, float32)
    numbers = backends.backend_of(weights).empty((len(scalars),), float32)
    for i, scalar in enumerate(scalars):
        numbers[i] = scalar
    return numbers


def _updated(
    rule: str, weights: Array, flats: Sequence[Array | None], copies: list[Array], numbers: Array, step: Step,
    scales: list[Array | None], codes: list[Array | None],
) -> None:  # fmt: skip
    """Update by the rule's scalars in one launch, which decodes, updates and rounds moments of fewer bits."""
    width, last = width_of(float32, weights, *flats, *copies), (numbers, step.all_finite, np.float32(step.l2))
    if not scales:
        plain = "update", rule, weights.dtype, width
        return _launch_update("optim/update", plain, width, weights, flats, copies, step, *last)
    kept = next(flat.dtype for flat in flats[1:] if flat is not None)
    name = "update_rounded", rule, weights.dtype, kept, width
    return _launch_update("optim/rounded_moments", name, 8, weights, flats, copies, step, *scales, *codes, *last)


register_update("cuda", _updated, _numbers_of, _fits)


# flat memory


def _encoded(values: Array, codes: Array, scales: Array, table: Array, random_bits: RandomBits | None) -> None:
    random = *_random_arguments(backends.backend_of(values), random_bits), np.bool_(random_bits is None)
    args = values, codes, scales, table, *random, np.int64(values.size)
    launch("optim/rounded_moments", "encode_blocks", grid_for(values.size, 8), BLOCK, *args)


def _decoded(codes: Array, scales: Array, table: Array) -> Array:
    values = backends.backend_of(codes).empty(codes.shape, float32)
    args = codes, scales, table, values, np.int64(codes.size)
    launch("optim/rounded_moments", "decode_blocks", grid_for(codes.size, 1), BLOCK, *args)
    return values


def _supports_narrow(master: Array, copy: Array) -> bool:
    return master.dtype == float32 and copy.dtype in LOW and in_order(master, copy)


def _narrowed(master: Array, copy: Array) -> None:
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


def _total(values: Array, order: float, scratch: Array) -> Array:
    kind = "0" if order == math.inf else "2" if order == 2 else "1"
    width, backend = width_of(values.dtype, values), backends.backend_of(values)
    blocks = grid_for(values.size, width, PARTS)
    parts, total = backend.empty((blocks,), float64), backend.empty((), float64)
    entry = typed("power_sum", values.dtype, width, kind)
    launch("optim/update", entry, blocks, BLOCK, values, parts, np.float64(order), np.int64(values.size))
    launch("optim/update", typed("power_sum_finish", kind), 1, BLOCK, parts, total, np.int64(blocks))
    return total


def _scaled(values: Array, factor: Array, all_finite: Array) -> None:
    width = width_of(values.dtype, values)
    entry, blocks = typed("scale_gradients", values.dtype, width), grid_for(values.size, width)
    launch("optim/update", entry, blocks, BLOCK, values, factor, all_finite, np.int64(values.size))


def _coded(first: Array, second: Array, *rest: Any) -> bool:
    return in_order(first, second)


def _is_flat(values: Array) -> bool:
    return values.dtype in STORED and in_order(values)


register_flat("cuda", _decoded, _encoded, _coded, _narrowed, _total, _scaled, _is_flat, _supports_narrow)


# schedules


@advance_schedule.on("cuda")
def advance_schedule_cuda(count: Array, seen: Array, steps: Array, table: Array, row: Array) -> None:
    rows, width = table.shape
    launch("optim/update", "advance_schedule", 1, 32, count, seen, steps, table, row, np.int64(rows), np.int64(width))
