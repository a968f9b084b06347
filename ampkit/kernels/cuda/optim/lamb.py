"""CUDA kernels of LAMB: three launches update up to 64 parameters, whose bounds in flat memory are a kernel argument.

The kernels read learning rate, betas, step count and the flag `all_finite` on the device. float64 master weights are
left to the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.launch.flat import BLOCK, copies_16bit, grid_for, in_order, width_of
from ampkit.backends.cuda.nvrtc import launch, typed
from ampkit.base.dtypes import Array, float32, float64
from ampkit.kernels.shared.optim import register_whole
from ampkit.optim.elementwise import Step
from ampkit.optim.lamb import LAMB, lamb_update

SEGMENTS = 64  # parameters per launch, as in lamb.cu
PARTS = 512  # blocks per parameter, at most
_TABLE = np.dtype([(name, np.int64, SEGMENTS) for name in ("start", "stop")])


def _fits(master: Array, gradient: Array, mean: Array, square: Array, slices: Any, copies: Any, step: Step) -> bool:
    return step.rule.scalars is LAMB.scalars and master.dtype == float32 and in_order(master, gradient, mean, square)


def _updated(
    master: Array, gradient: Array, mean: Array, square: Array, slices: list[slice], copies: list[Array], step: Step
) -> None:
    backend, low_copies = backends.backend_of(master), copies_16bit(copies)
    width = width_of(float32, master, gradient, mean, square, *low_copies)
    options = np.float32(step.options["eps"]), np.float32(step.options["weight_decay"])
    maximize = np.bool_(step.options["maximize"])
    for first in range(0, len(slices), SEGMENTS):
        few = slices[first : first + SEGMENTS]
        number, parts = len(few), grid_for(max(bounds.stop - bounds.start for bounds in few), width, PARTS)
        table = np.zeros(1, _TABLE)
        table["start"][0, :number] = [bounds.start for bounds in few]
        table["stop"][0, :number] = [bounds.stop for bounds in few]
        sums, rates = backend.empty((number * parts * 2,), float64), backend.empty((number,), float32)
        common = table, step.steps, step.values["betas"], step.all_finite, *options
        args: tuple[Any, ...] = master, gradient, mean, square, sums, *common, maximize
        launch("optim/lamb", typed("lamb_moments", width), (parts, number), BLOCK, *args)
        args = sums, rates, step.values["lr"], step.all_finite, np.int32(parts)
        launch("optim/lamb", "lamb_trust_ratio", number, BLOCK, *args)
        args = master, mean, square, *low_copies, rates, *common
        launch("optim/lamb", typed("lamb_update", width), (parts, number), BLOCK, *args)


register_whole(lamb_update, "cuda", _updated, _fits)
