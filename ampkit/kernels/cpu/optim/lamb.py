"""CPU kernel of LAMB (lamb.cpp): one call per parameter.

On a CPU a skipped step returns early; the reference, which must not wait for a device, computes both outcomes.
"""

from __future__ import annotations

from ampkit.backends.cpu.caching_allocator import address
from ampkit.backends.cpu.native.arrays import Function, HostArray
from ampkit.base.dtypes import float32
from ampkit.optim.elementwise import Step
from ampkit.optim.flat.memory import read_scalar
from ampkit.optim.lamb import LAMB, lamb_update

from .elementwise import is_skipped, numbers_of, on_host, only_copies, two_copies

_update = Function("lamb_update", "aaaaaapdi")


def _fits(
    master: HostArray, gradient: HostArray, mean: HostArray, square: HostArray, slices: list[slice],
    copies: list[HostArray], step: Step,
) -> bool:  # fmt: skip
    return step.rule.scalars is LAMB.scalars and master.dtype == float32 and on_host(master)


@lamb_update.on("cpu", when=_fits)
def lamb_update_cpu(
    master: HostArray, gradient: HostArray, mean: HostArray, square: HostArray, slices: list[slice],
    copies: list[HostArray], step: Step,
) -> None:  # fmt: skip
    if is_skipped(step.all_finite):
        return only_copies(master, copies)
    numbers, lr = numbers_of(step), float(read_scalar(step.values["lr"]))
    for part in slices:
        own = [copy[part] for copy in copies]
        flats = [flat[part] for flat in (master, gradient, mean, square)]
        _update(*flats, *two_copies(own), address(numbers), lr, step.options["maximize"])
    return None
