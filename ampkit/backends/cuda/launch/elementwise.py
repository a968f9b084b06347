"""Maps: functions of elements by the kernels of `elementwise.cu`, for arrays of several dtypes and however they lie.

    forward("Silu", (x,), float16)                          one result, shaped as the operands broadcast
    backward("Mul", dy, (x, 2.0), (float32, None))          the gradients that are wanted

An operand is an array or a Python number. What a launch is told of its arrays is worked out once per combination of
shapes, strides and dtypes, and kept. Not yet run on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import DType, bfloat16, bool_, float16, float32

from ..nvrtc import MOST, blocks_for, launch

Array = Any
Operand = Any  # an array or a Python number
Lies = tuple[tuple[int, ...], tuple[int, ...], DType] | None  # shape, strides in bytes, dtype; None for a number

BLOCK, MANY = 256, 8  # threads of a block, elements of a thread; as in elementwise.cu
OPERANDS, OUTS, AXES = 4, 3, 6
KINDS: dict[DType, int] = {float32: 0, float16: 1, bfloat16: 2, bool_: 3}
LAYOUT = np.dtype(
    [
        ("count", np.uint32),
        ("run", np.int32),
        ("axes", np.int32),
        ("kind", np.int32, OPERANDS + OUTS),
        ("size", np.uint32, AXES),
        ("stride", np.int32, (OPERANDS + 1, AXES)),
    ]
)
_NONE = np.float32(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one combination of shapes, strides and dtypes takes.

    order: the axes of the outputs from the outermost in memory, or None for row-major ones. fast: the layout with
    accesses of up to 16 bytes; careful: element by element, where one of the operands `packed` is off its boundary.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    blocks: int
    fast: Any
    careful: Any
    packed: tuple[int, ...]

    def empty(self, like: Array, dtype: DType) -> Array:
        """Room for an output, on the device of `like`."""
        backend, order = backends.backend_of(like), self.order
        if order is None:
            return backend.empty(self.shape, dtype)
        made = backend.empty(tuple([self.shape[i] for i in order]), dtype)
        return made.transpose(tuple(np.argsort(order).tolist()))

    def layout(self, operands: Sequence[Operand]) -> Any:
        """The layout for the addresses of `operands`."""
        for i in self.packed:
            if operands[i].data.ptr % 16:
                return self.careful
        return self.fast


def forward(name: str, operands: Sequence[Operand], dtype: DType) -> Array:
    """`name`, of the table in elementwise.cu, of up to four operands, broadcast; in float32, rounded once to `dtype`.

    Lies as the first operand of the result's shape. NotImplemented for arrays that no kernel is for. Raises ValueError
    for shapes that do not broadcast.
    """
    lies, arrays, numbers = _told(operands, OPERANDS)
    if dtype not in KINDS or (plan := _plan(lies, (dtype,))) is None:
        return NotImplemented
    out = plan.empty(next(a for a in arrays if a is not None), dtype)
    if plan.blocks:
        entry, layout = f"map_forward<{name}>", plan.layout(operands)
        launch("pointwise/elementwise", entry, plan.blocks, BLOCK, out, layout, *arrays, *numbers)
    return out


def backward(name: str, dy: Array, operands: Sequence[Operand], dtypes: Sequence[DType | None]) -> Any:
    """The gradients of `name`, one for each of `dtypes`, None where that is None: of the shape that dy and the up to
    three operands broadcast to. As `forward`.
    """
    wanted = (*dtypes, None, None, None)[:OUTS]
    operands = (dy, *operands)
    lies, arrays, numbers = _told(operands, OPERANDS)
    if any(d is not None and d not in KINDS for d in wanted) or (plan := _plan(lies, wanted)) is None:
        return NotImplemented
    outs = [None if dtype is None else plan.empty(dy, dtype) for dtype in wanted]
    if plan.blocks:
        entry, layout = f"map_backward<{name}>", plan.layout(operands)
        launch("pointwise/elementwise", entry, plan.blocks, BLOCK, dy, layout, *arrays[1:], *numbers[1:], *outs)
    return tuple(outs[: len(dtypes)])


def _told(operands: Sequence[Operand], room: int) -> tuple[tuple[Lies, ...], list[Any], list[Any]]:
    # How the operands lie; the arrays, None for a number; and the numbers, 0 for an array.
    lies: list[Lies] = []
    arrays: list[Any] = [None] * room
    numbers: list[Any] = [_NONE] * room
    for i, operand in enumerate(operands):
        if hasattr(operand, "dtype"):
            lies.append((operand.shape, operand.strides, operand.dtype))
            arrays[i] = operand
        else:
            lies.append(None)
            numbers[i] = np.float32(operand)
    return tuple(lies), arrays, numbers


@lru_cache(4096)
def _plan(lies: tuple[Lies, ...], outs: tuple[DType | None, ...]) -> Plan | None:
    """How to launch for arrays that lie so; None where no kernel is for them."""
    arrays = [lie for lie in lies if lie is not None]
    if any(dtype not in KINDS for _, _, dtype in arrays):
        return None
    shape = np.broadcast_shapes(*(shape for shape, _, _ in arrays))
    count, order = math.prod(shape), _order(shape, arrays)
    if not count:
        return Plan(shape, order, 0, None, None, ())
    axes = merged(shape, order, lies)
    if len(axes) > AXES or count > MOST or any(_reach(axes, i) > MOST for i in range(len(lies))):
        return None
    dtypes = [dtype for _, _, dtype in arrays] + [dtype for dtype in outs if dtype is not None]
    run, packed = _run(axes, len(lies), max(dtype.itemsize for dtype in dtypes))
    kinds = [0 if lie is None else KINDS[lie[2]] for lie in lies] + [0] * (OPERANDS - len(lies))
    kinds += [0 if dtype is None else KINDS[dtype] for dtype in outs]
    fast, careful = (_layout(count, each, axes, kinds, len(lies)) for each in (run, 1))
    return Plan(shape, order, blocks_for(count, BLOCK * MANY), fast, careful, packed)


Axis = tuple[int, tuple[int, ...]]  # its size; the strides, in elements, of each operand and of the outputs


def _order(shape: tuple[int, ...], arrays: list[Any]) -> tuple[int, ...] | None:
    """The axes from the outermost in memory, as in the first array of the whole shape; None for row-major."""
    for mine, strides, _ in arrays:
        if mine == shape and all(s or n == 1 for s, n in zip(strides, shape, strict=True)):
            steps = [s if n > 1 else 0 for s, n in zip(strides, shape, strict=True)]
            long = iter(sorted((i for i, n in enumerate(shape) if n > 1), key=lambda i: -abs(steps[i])))
            found = tuple([next(long) if n > 1 else i for i, n in enumerate(shape)])  # axes of one element stay
            return None if found == tuple(range(len(shape))) else found
    return None


def merged(shape: tuple[int, ...], order: tuple[int, ...] | None, lies: tuple[Lies, ...]) -> list[Axis]:
    """The axes of more than one element, outermost first, those merged that lie as one in all operands."""
    steps: dict[int, int] = {}
    whole = 1
    for axis in reversed(order or range(len(shape))):
        steps[axis], whole = whole, whole * shape[axis]
    found: list[Axis] = []
    for axis in order or range(len(shape)):
        size, row = shape[axis], (*(_stride(lie, axis - len(shape)) for lie in lies), steps[axis])
        if size == 1:
            continue
        if found and all(outer == inner * size for outer, inner in zip(found[-1][1], row, strict=True)):
            found[-1] = (found[-1][0] * size, row)
        else:
            found.append((size, row))
    return found or [(1, (*(0 for _ in lies), 1))]


def _stride(lie: Lies, axis: int) -> int:
    # In elements, along an axis counted from the end; 0 where the operand is broadcast.
    if lie is None or -axis > len(lie[0]) or lie[0][axis] == 1:
        return 0
    return lie[1][axis] // lie[2].itemsize


def _reach(axes: list[Axis], operand: int) -> int:
    return sum((size - 1) * abs(strides[operand]) for size, strides in axes)


def _run(axes: list[Axis], operands: int, widest: int) -> tuple[int, tuple[int, ...]]:
    """How many elements side by side a thread may take, and the operands that must then be aligned to 16 bytes."""
    size, inner = axes[-1]
    packed = tuple([i for i in range(operands) if inner[i]])
    steps = [strides[i] for _, strides in axes[:-1] for i in packed]
    for run in (MANY, MANY // 2) if widest <= 2 else (MANY // 2,):
        whole = len(axes) == 1 or (size % run == 0 and not any(step % run for step in steps))
        if whole and all(inner[i] == 1 for i in packed):
            return run, packed
    return 1, ()


def _layout(count: int, run: int, axes: list[Axis], kinds: list[int], operands: int) -> Any:
    made = np.zeros(1, LAYOUT)
    made["count"], made["run"], made["axes"] = count, run, len(axes)
    made["kind"][0, : len(kinds)] = kinds
    for i, (size, strides) in enumerate(axes):
        made["size"][0, i] = size
        made["stride"][0, :operands, i] = strides[:operands]
        made["stride"][0, OPERANDS, i] = strides[-1]
    return made
