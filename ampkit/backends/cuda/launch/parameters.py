"""The parameters of a generated kernel and the arguments that it is launched with, in one order.

Outputs y0, y1, ...; inputs x0, x1, ...; those with one value for each row z0, z1, ...; the ChainLayout; what a kernel
has of its own; and the numbers s0, s1, ....
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ampkit.base.dtypes import DType

from ..nvrtc import C_NAMES


def parameters(
    outputs: Iterable[DType],
    inputs: Iterable[DType],
    of_rows: Iterable[DType],
    strides: int,
    numbers: int,
    own: str = "",
) -> str:
    """The declarations. strides: rows of the layout; own: the declarations of what the kernel has of its own."""
    declared = [f"{C_NAMES[dtype]}* __restrict__ y{j}" for j, dtype in enumerate(outputs)]
    declared += [f"const {C_NAMES[dtype]}* __restrict__ x{i}" for i, dtype in enumerate(inputs)]
    declared += [f"const {C_NAMES[dtype]}* __restrict__ z{i}" for i, dtype in enumerate(of_rows)]
    declared += [f"const __grid_constant__ ChainLayout<{strides}> layout", *([own] if own else [])]
    return ", ".join([*declared, *[f"float s{i}" for i in range(numbers)]])


def arguments(
    outputs: Iterable[Any],
    inputs: Iterable[Any],
    of_rows: Iterable[Any],
    layout: Any,
    numbers: Sequence[Any],
    own: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """What the kernel is launched with, of values (see waiting.py). layout: see waiting.layout_record."""
    return *[one.array for one in (*outputs, *inputs, *of_rows)], layout, *own, *numbers
