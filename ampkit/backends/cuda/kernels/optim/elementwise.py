"""Kernels of the optimizers: an update, with its moments and 16-bit copies, in one pass over flat memory; norms and
clipping; schedules.

Learning rates, betas, momentum, the count of steps and the flag of a real step are read by the kernels. float64 masters
are left to the references. Not yet span on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.flat import BLOCK, grid_for, in_order, width_of
from ampkit.backends.cuda.nvrtc import STORED, drawn, launch, typed
from ampkit.base.dtypes import LOW, bfloat16, float16, float32, float64
from ampkit.optim.adadelta import Adadelta
from ampkit.optim.adagrad import Adagrad
from ampkit.optim.adam import Adam
from ampkit.optim.adamax import Adamax
from ampkit.optim.asgd import ASGD
from ampkit.optim.clip import power_sum, scale_gradients
from ampkit.optim.elementwise import Elementwise, Step, scalars_of, update
from ampkit.optim.flat.memory import RandomBits, narrow, round_stochastically
from ampkit.optim.lion import Lion
from ampkit.optim.lr_scheduler.schedule import advance_schedule
from ampkit.optim.nadam import NAdam
from ampkit.optim.radam import RAdam
from ampkit.optim.rmsprop import RMSprop
from ampkit.optim.rprop import Rprop
from ampkit.optim.sgd import SGD

Array = Any  # a CuPy array
PARTS = 1024  # blocks of a sum, which the threads of one block then add up


def _draw(there: Any, random_bits: RandomBits | None) -> tuple[Any, ...]:
    seed, call, start = random_bits or (0, 0, 0)
    return *drawn(there, seed, call), np.int64(start)


def _run(
    name: tuple[str, ...], weights: Array, flats: Sequence[Array | None], copies: list[Array], step: Step, *numbers: Any
) -> None:
    """Launch an update, in the kernel's order: weights, flats, copies, the random_bits, numbers, maximize, count.

    name: of the kernel, and its first template arguments.
    """
    by_dtype = {copy.dtype: copy for copy in copies}
    grad_buffers = by_dtype.get(float16), by_dtype.get(bfloat16)
    wide, last = (
        width_of(float32, weights, *flats, *grad_buffers),
        (np.bool_(step.options["maximize"]), np.int64(weights.size)),
    )
    entry, grid = typed(*name, weights.dtype, str(wide)), grid_for(weights.size, wide)
    random_bits = _draw(backends.backend_of(weights), step.random_bits)
    launch("optim/update", entry, grid, BLOCK, weights, *flats, *grad_buffers, *random_bits, *numbers, *last)


def _is(rule: type[Elementwise], weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array],
        step: Step) -> bool:  # fmt: skip
    """Whether the update is that of just this optimizer, in float32, of masters that there is a kernel for."""
    ours = step.rule.update_elements is rule.update_elements and step.rule.scalars is rule.scalars
    return ours and _known(weights, gradient, moments, copies)


def _known(weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array]) -> bool:
    low = weights.dtype in LOW and width_of(float32, weights, gradient, *moments, *copies) > 1
    return gradient.dtype == float32 and (weights.dtype == float32 or low)


@update.on("cuda", when=partial(_is, Adam))
def adam_update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    decay, lr, betas = step.options["weight_decay"], step.values["lr"], step.values["betas"]
    decoupled = np.float64(0.0 if step.l2 else decay)
    numbers = (
        step.steps,
        lr,
        betas,
        step.all_finite,
        np.float32(step.options["eps"]),
        decoupled,
        np.float32(step.l2),
    )
    _run(("adam_update",), weights, (gradient, *moments), copies, step, *numbers)


@update.on("cuda", when=partial(_is, SGD))
def sgd_update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    lr, momentum, nesterov = step.values["lr"], step.values["momentum"], np.bool_(step.options["nesterov"])
    numbers = step.steps, lr, momentum, step.all_finite, np.float64(step.options["dampening"]), np.float32(step.l2)
    _run(("sgd_update",), weights, (gradient, *moments), copies, step, *numbers, nesterov)


_RULES = {
    kind.update_elements: kind.__name__
    for kind in (Adadelta, Adagrad, Adamax, ASGD, Lion, NAdam, RAdam, RMSprop, Rprop)
}


@update.on("cuda", when=lambda weights, gradient, moments, copies, step: (
    step.rule.update_elements in _RULES and _known(weights, gradient, moments, copies)))  # fmt: skip
def update_cuda(
    weights: Array, gradient: Array, moments: Sequence[Array | None], copies: list[Array], step: Step
) -> None:
    """The rule's numbers, worked out on the device; then one pass."""
    found = scalars_of(step, float32)
    row = backends.backend_of(weights).empty((len(found),), float32)
    for place, number in enumerate(found):
        row[place] = number
    flats = (gradient, *moments, *[None] * (3 - len(moments)))
    _run(
        ("update", _RULES[step.rule.update_elements]),
        weights,
        flats,
        copies,
        step,
        row,
        step.all_finite,
        np.float32(step.l2),
    )


def _narrows(master: Array, copy: Array) -> bool:
    return master.dtype == float32 and copy.dtype in (float16, bfloat16) and in_order(master, copy)


@narrow.on("cuda", when=_narrows)
def narrow_cuda(master: Array, copy: Array) -> None:
    wide = width_of(float32, master, copy)
    entry = typed("cast_copy", copy.dtype, str(wide))
    launch("optim/update", entry, grid_for(master.size, wide), BLOCK, master, copy, np.int64(master.size))


@round_stochastically.on(
    "cuda", when=lambda values, weights, random_bits: weights.dtype in LOW and in_order(values, weights)
)
def round_stochastically_cuda(values: Array, weights: Array, random_bits: RandomBits) -> None:
    wide = width_of(float32, values, weights)
    entry, grid = typed("round_stochastically", weights.dtype, str(wide)), grid_for(values.size, wide)
    launch(
        "optim/update",
        entry,
        grid,
        BLOCK,
        values,
        weights,
        *_draw(backends.backend_of(weights), random_bits),
        np.int64(values.size),
    )


# norms


@power_sum.on("cuda", when=lambda values, order, scratch: values.dtype in STORED and in_order(values))
def power_sum_cuda(values: Array, order: float, scratch: Array) -> Array:
    kind = "0" if order == math.inf else "2" if order == 2 else "1"
    wide, weights = width_of(values.dtype, values), backends.backend_of(values)
    blocks = grid_for(values.size, wide, PARTS)
    parts, total = weights.empty((blocks,), float64), weights.empty((), float64)
    entry = typed("power_sum", values.dtype, str(wide), kind)
    launch("optim/update", entry, blocks, BLOCK, values, parts, np.float64(order), np.int64(values.size))
    launch("optim/update", typed("power_sum_finish", kind), 1, BLOCK, parts, total, np.int64(blocks))
    return total


@scale_gradients.on("cuda", when=lambda values, factor, all_finite: values.dtype in STORED and in_order(values))
def scale_gradients_cuda(values: Array, factor: Array, all_finite: Array) -> None:
    wide = width_of(values.dtype, values)
    entry = typed("scale_gradients", values.dtype, str(wide))
    launch("optim/update", entry, grid_for(values.size, wide), BLOCK, values, factor, all_finite, np.int64(values.size))


# schedules


@advance_schedule.on("cuda")
def advance_schedule_cuda(count: Array, seen: Array, steps: Array, table: Array, row: Array) -> None:
    rows, width = table.shape
    launch("optim/update", "advance_schedule", 1, 32, count, seen, steps, table, row, np.int64(rows), np.int64(width))
