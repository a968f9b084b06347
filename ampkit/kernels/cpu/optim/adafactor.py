"""CPU kernel of Adafactor (adafactor.cpp)."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

from ampkit.backends.cpu.native.arrays import Function, HostArray, reshape_view
from ampkit.base.dtypes import float32
from ampkit.kernels.shared.optim import register_whole
from ampkit.optim.adafactor import adafactor_update, floor_of
from ampkit.optim.flat.memory import read_scalar

from .elementwise import is_skipped, on_host, two_copies

_update = Function("adafactor_update", "aaaaaafffdddfi")


def _fits(master: HostArray, *others: Any, **options: Any) -> bool:
    return bool(master.dtype == float32) and on_host(master)


def _updated(
    master: HostArray, gradient: HostArray, rows: HostArray, columns: HostArray | None, steps: HostArray,
    lr: HostArray, all_finite: HostArray | None, copies: list[HostArray], beta2_decay: float, least: float,
    least_scale: float, limit: float, weight_decay: float, maximize: bool,
) -> None:  # fmt: skip
    count, rate = read_scalar(steps) + 1.0, float(read_scalar(lr))
    shape = (1, 1, master.size) if columns is None else (prod(master.shape[:-2]), *master.shape[-2:])
    arrays: list[Any] = [reshape_view(master, shape), gradient.reshape(shape)]
    if columns is None:
        arrays += [reshape_view(rows, shape), None]
    else:
        arrays += [reshape_view(rows, (*shape[:2], 1)), reshape_view(columns, (shape[0], 1, shape[2]))]
    sizes = count**beta2_decay, least, floor_of(least, float32), least_scale, min(rate, 1 / sqrt(count)), limit
    _update(*arrays, *two_copies(copies), *sizes, 1 - rate * weight_decay, maximize)


register_whole(adafactor_update, "cpu", _updated, _fits, is_skipped)
