"""CPU kernel of gradient accumulation: the sum of two arrays of one layout."""

from __future__ import annotations

from ampkit.backends.cpu.onednn import binary
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.core.autograd.accumulate import sum_of_two


@sum_of_two.on("cpu", when=lambda first, second: binary.fits(first, second))
def sum_of_two_cpu(first: HostArray, second: HostArray) -> HostArray:
    total = binary.both("add", first, second)
    assert total is not None
    return total
