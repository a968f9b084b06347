"""Elementwise ops a block at a time, so that what their references compute in between stays in the cache.

Over a whole array, a reference of a dozen steps writes a dozen arrays to memory, and for 16-bit tensors float32 copies
of its inputs besides. In blocks it writes its result alone, already rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import backends
from ...core.dtypes import FLOATS, DType, accumulator

BLOCK = 1 << 14  # elements: 64 KiB of float32, so that several fit the second-level cache


def in_blocks(op: Any) -> None:
    """Give `op`, elementwise in its first input with the rest plain numbers, bodies that run its references in blocks.

    Picked for contiguous floating-point arrays of at least two blocks. The op saves its input, its output, or both.
    """
    name, forward, backward = op.signature.names[0], op.forward.reference.run, op.backward_primitive.reference.run

    def fits(input: Any, *params: Any) -> bool:
        return input.size >= 2 * BLOCK and _plain(input)

    def blocks(input: Any, *params: Any, dtype: DType) -> Any:
        out = np.empty(input.shape, dtype)
        saved: Any = None
        for part, result in _parts(input, out):
            value, saved = forward(_widened(part, accumulator(dtype)), *params)
            _store(value, result)
        whole = {name: input, "out": out}
        return out, type(saved)(**{key: whole[key] for key in vars(saved)})

    def back_fits(dy: Any, saved: Any, needs: Any, **params: Any) -> bool:
        kept = vars(saved).values()
        return dy.size >= 2 * BLOCK and _plain(dy) and all(_plain(array) for array in kept)

    def blocks_backward(dy: Any, saved: Any, needs: Any, **params: Any) -> Any:
        out, wide, names = np.empty(dy.shape, needs[0]), accumulator(needs[0]), tuple(vars(saved))
        for part, *kept, result in _parts(dy, *vars(saved).values(), out):
            items = {key: _widened(array, wide) for key, array in zip(names, kept, strict=True)}
            _store(backward(_widened(part, wide), type(saved)(**items), needs, **params), result)
        return out

    op.on("cpu", when=fits, least=2 * BLOCK)(blocks)
    op.backward_primitive.on("cpu", when=back_fits, least=2 * BLOCK)(blocks_backward)


def _plain(array: Any) -> bool:
    return bool(array.dtype in FLOATS and array.flags.c_contiguous)


def _parts(*arrays: Any) -> Iterator[list[Any]]:
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield [array[start : start + BLOCK] for array in flat]


def _widened(block: Any, wide: DType) -> Any:
    return block if block.dtype == wide else backends.of(block).cast(block, wide)


def _store(value: Any, result: Any) -> None:
    result[...] = value if value.dtype == result.dtype else backends.of(value).cast(value, result.dtype)
