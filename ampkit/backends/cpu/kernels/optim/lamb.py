"""CPU kernel of LAMB: chunks of flat memory on several threads, in two passes.

On a CPU a skipped step returns early; the reference, which must not wait for a device, computes both outcomes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.backends.cpu.parallel_map import parallel_map
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.optim.clip import power_sum
from ampkit.optim.elementwise import Step, scalars_of
from ampkit.optim.flat.memory import CHUNK, chunks, narrow, read_scalar
from ampkit.optim.lamb import lamb_update, learn, move


class _Part(NamedTuple):
    """A piece of the bounds with this number."""

    number: int
    place: slice


@lamb_update.on("cpu", when=lambda master, *rest: type(master) is np.ndarray)
def lamb_update_cpu(
    master: HostArray, gradient: HostArray, mean: HostArray, square: HostArray, slices: list[slice],
    copies: list[HostArray], step: Step,
) -> None:  # fmt: skip
    """The reference's arithmetic; norms are added up in the order of the pieces, whoever came first."""
    parts = [
        _Part(number, slice(bounds.start + part.start, bounds.start + part.stop))
        for number, bounds in enumerate(slices)
        for part in chunks(bounds.stop - bounds.start)
    ]
    real, step = step.all_finite is None or read_scalar(step.all_finite), step._replace(all_finite=None)
    numbers = scalars_of(step, master.dtype)

    @ignore_fp_errors()
    def squares(part: _Part) -> tuple[float, float]:
        p, m, v = (flat[part.place] for flat in (master, mean, square))
        learn(gradient[part.place], m, v, numbers, step)
        wide = np.empty((min(CHUNK, p.size),))
        return float(power_sum(p, 2.0, wide)), float(power_sum(move(p, m, v, numbers), 2.0, wide))

    @ignore_fp_errors()
    def settled(part: _Part) -> None:
        p = master[part.place]
        if real:
            p -= move(p, mean[part.place], square[part.place], numbers) * rates[part.number]
        for copy in copies:
            narrow(p, copy[part.place])

    if real:
        rates = _rates(len(slices), parts, parallel_map(squares, parts), step, master.dtype)
    parallel_map(settled, parts)


def _rates(count: int, parts: list[_Part], squares: list[tuple[float, float]], step: Step, kind: np.dtype) -> HostArray:
    """lr times the trust ratio, of each bounds."""
    length, moved = np.zeros(count), np.zeros(count)
    for (number, _), (weights, directions) in zip(parts, squares, strict=True):
        length[number] += weights
        moved[number] += directions
    both = (length > 0) & (moved > 0)
    trust = np.where(both, np.sqrt(length / np.where(both, moved, 1.0)), 1.0)
    rates: HostArray = (read_scalar(step.values["lr"]) * trust).astype(kind)
    return rates
