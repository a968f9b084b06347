"""CPU kernel of clone, which `contiguous` is made of."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cpu.copies import copy
from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, empty
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise.conversion import clone


@clone.on("cpu", min_elements=MIN_ELEMENTS)
def clone_cpu(input: HostArray, *, dtype: DType) -> Any:
    out = empty(input.shape, input.dtype)
    copy(out, input)
    return out, Saved()
