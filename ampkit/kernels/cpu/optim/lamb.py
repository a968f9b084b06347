"""CPU kernel of LAMB (lamb.cpp): one call per parameter."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import Function, HostArray
from ampkit.base.dtypes import float32
from ampkit.kernels.shared.optim import register_whole
from ampkit.optim.elementwise import Step
from ampkit.optim.flat.memory import read_scalar
from ampkit.optim.lamb import LAMB, lamb_update

from .elementwise import is_skipped, numbers_of, on_host, two_copies

_update = Function("lamb_update", "aaaaaapdi")


def _fits(master: HostArray, *others: Any) -> bool:
    return others[-1].rule.scalars is LAMB.scalars and master.dtype == float32 and on_host(master)


def _updated(
    master: HostArray, gradient: HostArray, mean: HostArray, square: HostArray, slices: list[slice],
    copies: list[HostArray], step: Step,
) -> None:  # fmt: skip
    numbers, lr = numbers_of(step), float(read_scalar(step.values["lr"]))
    for part in slices:
        own = [copy[part] for copy in copies]
        flats = [flat[part] for flat in (master, gradient, mean, square)]
        _update(*flats, *two_copies(own), address(numbers), lr, step.options["maximize"])


register_whole(lamb_update, "cpu", _updated, _fits, is_skipped)
