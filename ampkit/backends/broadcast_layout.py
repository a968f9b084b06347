"""Broadcast operands of an elementwise kernel, as few axes as possible with a stride for each operand."""

from __future__ import annotations

from ampkit.base.dtypes import DType

ArrayLayout = tuple[tuple[int, ...], tuple[int, ...], DType] | None  # shape, strides in bytes, dtype; None: a number
Axis = tuple[int, tuple[int, ...]]  # size; strides in elements, of each operand and then of the outputs


def memory_order(shape: tuple[int, ...], layouts: tuple[ArrayLayout, ...]) -> tuple[int, ...] | None:
    """The axes from the outermost in memory, as in the first array of that shape; None for row-major."""
    for layout in layouts:
        if layout is not None and layout[0] == shape:
            strides = layout[1]
            if all(s or n == 1 for s, n in zip(strides, shape, strict=True)):
                steps = [s if n > 1 else 0 for s, n in zip(strides, shape, strict=True)]
                large = iter(sorted((i for i, n in enumerate(shape) if n > 1), key=lambda i: -abs(steps[i])))
                found = tuple([next(large) if n > 1 else i for i, n in enumerate(shape)])  # of size 1: stay in place
                return None if found == tuple(range(len(shape))) else found
    return None


def merged(shape: tuple[int, ...], order: tuple[int, ...] | None, layouts: tuple[ArrayLayout, ...]) -> list[Axis]:
    """The axes longer than 1, outermost first; neighbours that are contiguous in all operands are merged."""
    steps: dict[int, int] = {}
    step = 1
    for axis in reversed(order or range(len(shape))):
        steps[axis], step = step, step * shape[axis]
    found: list[Axis] = []
    for axis in order or range(len(shape)):
        size, row = shape[axis], (*(_stride(layout, axis - len(shape)) for layout in layouts), steps[axis])
        if size == 1:
            continue
        if found and all(outer == inner * size for outer, inner in zip(found[-1][1], row, strict=True)):
            found[-1] = (found[-1][0] * size, row)
        else:
            found.append((size, row))
    return found or [(1, (*(0 for _ in layouts), 1))]


def _stride(layout: ArrayLayout, axis: int) -> int:
    """The stride in elements along a negative axis; 0 where the operand is broadcast."""
    if layout is None or -axis > len(layout[0]) or layout[0][axis] == 1:
        return 0
    return layout[1][axis] // layout[2].itemsize
