"""LAMB's kernel: all parameters of a span in three launches, 64 at a time, whose places travel with them.

Learning rate, betas, the count of steps and the flag of a real step are read by the kernels. float64 masters are left
to the reference. Not yet span on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.flat import BLOCK, grid_for, in_order, width_of
from ampkit.backends.cuda.nvrtc import launch, typed
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.optim.elementwise import Step
from ampkit.optim.lamb import LAMB, lamb_update

Array = Any  # a CuPy array
SEGMENTS = 64  # as in lamb.cu
PARTS = 512  # blocks of a parameter
_TABLE = np.dtype([(name, np.int64, SEGMENTS) for name in ("start", "stop")])


def _fits(
    master: Array, gradient: Array, mean: Array, square: Array, slices: list[slice], copies: list[Array], step: Step
) -> bool:
    return step.rule.scalars is LAMB.scalars and master.dtype == float32 and in_order(master, gradient, mean, square)


@lamb_update.on("cuda", when=_fits)
def lamb_update_cuda(
    master: Array, gradient: Array, mean: Array, square: Array, slices: list[slice], copies: list[Array], step: Step
) -> None:
    for first in range(0, len(slices), SEGMENTS):
        _update(master, gradient, mean, square, slices[first : first + SEGMENTS], copies, step)


def _update(
    master: Array, gradient: Array, mean: Array, square: Array, slices: list[slice], copies: list[Array], step: Step
) -> None:
    there, by_dtype = backends.backend_of(master), {copy.dtype: copy for copy in copies}
    grad_buffers, number = (by_dtype.get(float16), by_dtype.get(bfloat16)), len(slices)
    width = width_of(float32, master, gradient, mean, square, *grad_buffers)
    parts = grid_for(max(bounds.stop - bounds.start for bounds in slices), width, PARTS)
    table = np.zeros(1, _TABLE)
    table["start"][0, :number] = [bounds.start for bounds in slices]
    table["stop"][0, :number] = [bounds.stop for bounds in slices]
    sums, rates = there.empty((number * parts * 2,), float64), there.empty((number,), float32)
    common = table, step.steps, step.values["betas"], step.all_finite
    numbers = np.float32(step.options["eps"]), np.float32(step.options["weight_decay"])
    given, maximize = (master, gradient, mean, square, sums), np.bool_(step.options["maximize"])
    launch("optim/lamb", typed("lamb_moments", str(width)), (parts, number), BLOCK, *given, *common, *numbers, maximize)
    launch(
        "optim/lamb",
        "lamb_trust_ratio",
        number,
        BLOCK,
        sums,
        rates,
        step.values["lr"],
        step.all_finite,
        np.int32(parts),
    )
    held = master, mean, square, *grad_buffers, rates
    launch("optim/lamb", typed("lamb_update", str(width)), (parts, number), BLOCK, *held, *common, *numbers)
