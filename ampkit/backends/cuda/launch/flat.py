"""Launch parameters of kernels over flat memory (see master_weights.cuh)."""

from __future__ import annotations

from typing import Any

from ampkit.base.dtypes import DType

from ..nvrtc import blocks_for

Array = Any  # a CuPy array
BLOCK = 256  # threads
BLOCKS = 4096  # of an update: several for each place that a GPU has, so that none is idle for long at the end


def in_order(*arrays: Array | None) -> bool:
    """Whether the elements of all arrays lie in memory in their order, without gaps."""
    return all(a is None or bool(a.flags.c_contiguous) for a in arrays)


def width_of(dtype: DType, *arrays: Array | None) -> int:
    """How many values of `dtype` are accessed at once: 16 bytes of them where all arrays begin on that many values."""
    count = 16 // dtype.itemsize
    return 1 if any(a is not None and a.data.ptr % (count * a.dtype.itemsize) for a in arrays) else count


def grid_for(count: int, width: int, most: int = BLOCKS) -> int:
    """Blocks for `count` values, `width` of them at once by each thread."""
    return min(blocks_for(count, BLOCK * width), most)
