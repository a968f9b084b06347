"""Launch parameters of kernels over flat memory (see master_weights.cuh)."""

from __future__ import annotations

from ampkit.base.dtypes import Array, DType, bfloat16, float16

from ..nvrtc import blocks_for

BLOCK = 256  # threads
BLOCKS = 4096  # per update: several waves of blocks, so that few multiprocessors idle at the end


def in_order(*arrays: Array | None) -> bool:
    """Whether all arrays are C-contiguous; None counts as contiguous."""
    return all(a is None or bool(a.flags.c_contiguous) for a in arrays)


def width_of(dtype: DType, *arrays: Array | None) -> int:
    """Values of `dtype` per access: 16 bytes of them if all arrays are aligned for it, else 1."""
    count = 16 // dtype.itemsize
    return 1 if any(a is not None and a.data.ptr % (count * a.dtype.itemsize) for a in arrays) else count


def grid_for(count: int, width: int, limit: int = BLOCKS) -> int:
    """Blocks for `count` values with `width` values per thread, at most `limit`."""
    return min(blocks_for(count, BLOCK * width), limit)


def copies_16bit(copies: list[Array]) -> tuple[Array | None, Array | None]:
    """The float16 and the bfloat16 copy of master weights, None for one that is not among `copies`."""
    by_dtype = {copy.dtype: copy for copy in copies}
    return by_dtype.get(float16), by_dtype.get(bfloat16)
