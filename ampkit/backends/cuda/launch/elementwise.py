"""Launches the elementwise kernels of `elementwise.cu` for arrays of mixed dtypes, any strides, broadcast.

    forward("Silu", (x,), float16)                          one result, shaped as the operands broadcast
    backward("Mul", dy, (x, 2.0), (float32, None))          the gradients that are wanted

An operand is an array or a Python number. The launch parameters are computed once per combination of shapes, strides
and dtypes, and cached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.broadcast_layout import ArrayLayout, Axis, memory_order, merged
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array, DType, bfloat16, bool_, float16, float32
from ampkit.base.errors import UnsupportedError

from ..nvrtc import MAX_ELEMENTS, blocks_for, launch

Operand = Any  # an array or a Python number

SOURCE = "pointwise/elementwise"
BLOCK, PER_THREAD = 256, 8  # threads per block, elements per thread; as in elementwise.cuh
OPERANDS, OUTPUTS, AXES = 4, 3, 6
KINDS: dict[DType, int] = {float32: 0, float16: 1, bfloat16: 2, bool_: 3}
LAYOUT = np.dtype(
    [
        ("count", np.uint32),
        ("vector", np.int32),
        ("axes", np.int32),
        ("kind", np.int32, OPERANDS + OUTPUTS),
        ("size", np.uint32, AXES),
        ("stride", np.int32, (OPERANDS + 1, AXES)),
    ]
)
_NONE = np.float32(0)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launch parameters for one combination of shapes, strides and dtypes.

    order: the axes of the outputs from the outermost in memory; None is row-major. vectorized: the layout for accesses
    of up to 16 bytes; scalar: the one for single elements, where an operand in `aligned` is not 16-byte aligned.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    blocks: int
    vectorized: Any
    scalar: Any
    aligned: tuple[int, ...]

    def empty(self, like: Array, dtype: DType) -> Array:
        """Allocate an output on the device of `like`."""
        backend, order = backends.backend_of(like), self.order
        if order is None:
            return backend.empty(self.shape, dtype)
        made = backend.empty(tuple([self.shape[i] for i in order]), dtype)
        return made.transpose(tuple(np.argsort(order).tolist()))

    def layout(self, operands: Sequence[Operand]) -> Any:
        """The layout for the addresses of `operands`."""
        for i in self.aligned:
            if operands[i].data.ptr % 16:
                return self.scalar
        return self.vectorized


def forward(name: str, operands: Sequence[Operand], dtype: DType) -> Array:
    """Apply the function `name` of elementwise.cu to up to four operands, in float32, rounded once to `dtype`.

    The result has the memory layout of the first operand of its shape. Raises UnsupportedError for dtypes and layouts
    that the kernel does not take, ValueError for shapes that do not broadcast.
    """
    layouts, arrays, _ = _split_operands(operands, OPERANDS)
    plan = _plan(layouts, (dtype,))
    if queue.opened and queue.opens("cuda") and (outs := queue.held.add(name, False, plan, operands, (dtype,))):
        return outs[0]
    out = plan.empty(next(a for a in arrays if a is not None), dtype)
    if plan.blocks:
        run(name, False, plan, operands, (out,))
    return out


def backward(name: str, dy: Array, operands: Sequence[Operand], dtypes: Sequence[DType | None]) -> Any:
    """Compute the gradients of `name`, one per entry of `dtypes`, None where that is None; otherwise as `forward`.

    Each has the shape that dy and the operands, up to three, broadcast to.
    """
    wanted = (*dtypes, None, None, None)[:OUTPUTS]
    operands = (dy, *operands)
    layouts, _, _ = _split_operands(operands, OPERANDS)
    plan = _plan(layouts, wanted)
    if queue.opened and queue.opens("cuda") and (held := queue.held.add(name, True, plan, operands, wanted)):
        return held[: len(dtypes)]
    outs = [None if dtype is None else plan.empty(dy, dtype) for dtype in wanted]
    if plan.blocks:
        run(name, True, plan, operands, outs)
    return tuple(outs[: len(dtypes)])


def run(name: str, backward: bool, plan: LaunchPlan, operands: Sequence[Operand], outs: Sequence[Any]) -> None:
    """Launch what `forward` or `backward` would, into `outs`."""
    _, arrays, numbers = _split_operands(operands, OPERANDS)
    outs, layout = (*outs, None, None)[:OUTPUTS], plan.layout(operands)
    if backward:
        entry = f"elementwise_backward<{name}>"
        launch(SOURCE, entry, plan.blocks, BLOCK, arrays[0], layout, *arrays[1:], *numbers[1:], *outs)
    else:
        launch(SOURCE, f"elementwise_forward<{name}>", plan.blocks, BLOCK, outs[0], layout, *arrays, *numbers)


def _split_operands(operands: Sequence[Operand], count: int) -> tuple[tuple[ArrayLayout, ...], list[Any], list[Any]]:
    """The layouts of the operands; the arrays, None for a number; the numbers, 0 for an array."""
    layouts: list[ArrayLayout] = []
    arrays: list[Any] = [None] * count
    numbers: list[Any] = [_NONE] * count
    for i, operand in enumerate(operands):
        if hasattr(operand, "dtype"):
            layouts.append((operand.shape, operand.strides, operand.dtype))
            arrays[i] = operand
        else:
            layouts.append(None)
            numbers[i] = np.float32(operand)
    return tuple(layouts), arrays, numbers


@lru_cache(4096)
def _plan(layouts: tuple[ArrayLayout, ...], outs: tuple[DType | None, ...]) -> LaunchPlan:
    """The launch parameters for arrays of these layouts and results of these dtypes."""
    arrays = [layout for layout in layouts if layout is not None]
    dtypes = [dtype for _, _, dtype in arrays] + [dtype for dtype in outs if dtype is not None]
    if not KINDS.keys() >= set(dtypes):
        raise UnsupportedError
    shape = np.broadcast_shapes(*(shape for shape, _, _ in arrays))
    count, order = math.prod(shape), memory_order(shape, layouts)
    if not count:
        return LaunchPlan(shape, order, 0, None, None, ())
    axes = merged(shape, order, layouts)
    if len(axes) > AXES or count > MAX_ELEMENTS or any(_span(axes, i) > MAX_ELEMENTS for i in range(len(layouts))):
        raise UnsupportedError
    vector, aligned = _vector_width(axes, len(layouts), max(dtype.itemsize for dtype in dtypes))
    kinds = [0 if layout is None else KINDS[layout[2]] for layout in layouts] + [0] * (OPERANDS - len(layouts))
    kinds += [0 if dtype is None else KINDS[dtype] for dtype in outs]
    vectorized, scalar = (_layout(count, each, axes, kinds, len(layouts)) for each in (vector, 1))
    return LaunchPlan(shape, order, blocks_for(count, BLOCK * PER_THREAD), vectorized, scalar, aligned)


def _span(axes: list[Axis], operand: int) -> int:
    return sum((size - 1) * abs(strides[operand]) for size, strides in axes)


def _vector_width(axes: list[Axis], operands: int, widest: int) -> tuple[int, tuple[int, ...]]:
    """Elements per access, and the operands that must be 16-byte aligned for it."""
    size, inner = axes[-1]
    aligned = tuple([i for i in range(operands) if inner[i]])
    steps = [strides[i] for _, strides in axes[:-1] for i in aligned]
    for vector in (PER_THREAD, PER_THREAD // 2) if widest <= 2 else (PER_THREAD // 2,):
        in_rows = len(axes) == 1 or (size % vector == 0 and not any(step % vector for step in steps))
        if in_rows and all(inner[i] == 1 for i in aligned):
            return vector, aligned
    return 1, ()


def _layout(count: int, vector: int, axes: list[Axis], kinds: list[int], operands: int) -> Any:
    made = np.zeros(1, LAYOUT)
    made["count"], made["vector"], made["axes"] = count, vector, len(axes)
    made["kind"][0, : len(kinds)] = kinds
    for i, (size, strides) in enumerate(axes):
        made["size"][0, i] = size
        made["stride"][0, :operands, i] = strides[:operands]
        made["stride"][0, OPERANDS, i] = strides[-1]
    return made
