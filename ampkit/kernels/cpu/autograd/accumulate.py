"""CPU kernel of gradient accumulation: the sum of two arrays, in the dtype of the first."""

from __future__ import annotations

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, supported
from ampkit.core.autograd.accumulate import sum_of_two

from ..pointwise import elementwise


@sum_of_two.on("cpu", when=lambda held, gradient: supported(held, gradient), min_elements=MIN_ELEMENTS)
def sum_of_two_cpu(held: HostArray, gradient: HostArray) -> HostArray:
    return elementwise.forward("Add", (held, gradient, 1.0), held.dtype)
