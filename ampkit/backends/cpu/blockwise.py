"""Elementwise references run blockwise, so that their intermediate results stay in the cache.

Over a whole array, a reference of a dozen steps writes a dozen arrays to memory, and for 16-bit tensors float32 copies
of its inputs, too. Blockwise it writes its result only, already rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import FLOATS, DType, accumulator, float16

BLOCK = 1 << 14  # elements: 64 KiB of float32, so that several fit the second-level cache


def in_blocks(op: Any) -> None:
    """Give `op`, elementwise in its first input with the rest plain numbers, kernels that run its references in blocks.

    Picked for contiguous floating-point arrays of at least two blocks. The op saves its input, its output, or both.
    The numbers of an op that moves values are rounded to float16 beside it, as NumPy does where it compares them.
    """
    name, forward, backward = op.signature.names[0], op.forward.reference.run, op.backward_primitive.reference.run

    def near(array: Any, params: dict[Any, Any]) -> dict[Any, Any]:
        rounds = op.moves and array.dtype == float16
        return {key: float(array.dtype.type(value)) for key, value in params.items()} if rounds else params

    def fits(input: Any, *params: Any) -> bool:
        return input.size >= 2 * BLOCK and plain(input)

    def blocks(input: Any, *params: Any, dtype: DType) -> Any:
        out = np.empty(input.shape, dtype)
        saved: Any = None
        params = tuple(near(input, dict(enumerate(params))).values())
        for part, result in _parts(input, out):
            value, saved = forward(widened(part, accumulator(dtype)), *params)
            store(value, result)
        whole = {name: input, "out": out}
        return out, type(saved)(**{key: whole[key] for key in vars(saved)})

    def back_fits(dy: Any, saved: Any, needs: Any, **params: Any) -> bool:
        arrays = vars(saved).values()
        return dy.size >= 2 * BLOCK and plain(dy) and all(plain(array) for array in arrays)

    def blocks_backward(dy: Any, saved: Any, needs: Any, **params: Any) -> Any:
        out, wide, names = np.empty(dy.shape, needs[0]), accumulator(needs[0]), tuple(vars(saved))
        params = near(dy, params)
        for part, *saved_parts, result in _parts(dy, *vars(saved).values(), out):
            items = {key: widened(array, wide) for key, array in zip(names, saved_parts, strict=True)}
            store(backward(widened(part, wide), type(saved)(**items), needs, **params), result)
        return out

    op.on("cpu", when=fits, min_elements=2 * BLOCK)(blocks)
    op.on_backward("cpu", when=back_fits, min_elements=2 * BLOCK)(blocks_backward)


def plain(array: Any) -> bool:
    """Whether `array` is of a floating-point format and is C-contiguous."""
    return bool(array.dtype in FLOATS and array.flags.c_contiguous)


def _parts(*arrays: Any) -> Iterator[list[Any]]:
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield [array[start : start + BLOCK] for array in flat]


def pieces(before: int, behind: int) -> Iterator[tuple[slice, slice]]:
    """Slices of blocks in [rows, columns]: of whole rows, or of parts of one row where rows are longer."""
    rows, columns = max(1, BLOCK // max(1, behind)), min(BLOCK, behind)
    for row in range(0, before, rows):
        for column in range(0, behind, max(1, columns)):
            yield slice(row, min(row + rows, before)), slice(column, min(column + columns, behind))


def widened(block: Any, wide: DType) -> Any:
    """`block` in `wide`."""
    return block if block.dtype == wide else backends.backend_of(block).cast(block, wide)


def store(value: Any, result: Any) -> None:
    """Write `value` to `result`, rounded."""
    result[...] = value if value.dtype == result.dtype else backends.backend_of(value).cast(value, result.dtype)
