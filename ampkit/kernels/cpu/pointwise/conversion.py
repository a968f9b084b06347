"""CPU kernel of clone, which `contiguous` is made of."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, empty
from ampkit.base.dtypes import DType
from ampkit.base.memory_format import inverse, stored_order
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise.conversion import clone


@clone.on("cpu", min_elements=MIN_ELEMENTS)
def clone_cpu(input: HostArray, memory_format: str | None, *, dtype: DType) -> Any:
    order = stored_order(input, memory_format)
    out = empty([input.shape[axis] for axis in order], input.dtype).transpose(inverse(order))
    copy(out, input)
    return out, Saved()
