"""Body of the sums that undo a broadcast: products with ones, in float32, by all threads."""

from __future__ import annotations

from math import prod

import numpy as np

from ...core.adding import sum_over
from ...core.dtypes import float32
from . import eltwise
from .device import in_format
from .dnnl import multiplies
from .formats import flattened, memory_order
from .gemm import multiply
from .onednn import LONGEST, WORTH, HostArray, empty


def _fits(gradient: HostArray, axes: tuple[int, ...]) -> bool:
    parts = _parts(gradient, axes) if axes and eltwise.fits(gradient) else None
    return parts is not None and parts[1] <= LONGEST


def _parts(array: HostArray, axes: tuple[int, ...]) -> tuple[int, int, int] | None:
    """How many elements `array`, in the order of memory, has before, along and behind `axes`; None if other axes part
    them.
    """
    order = [i for i in memory_order(array) if array.shape[i] > 1]
    at = [place for place, i in enumerate(order) if i in axes]
    if not at or at[-1] - at[0] >= len(at):
        return None
    lengths = [array.shape[i] for i in order]
    return prod(lengths[: at[0]]), prod(lengths[at[0] : at[-1] + 1]), prod(lengths[at[-1] + 1 :])


@sum_over.on("cpu", when=_fits, least=WORTH)
def sum_over_cpu(gradient: HostArray, axes: tuple[int, ...]) -> HostArray:
    parts, flat = _parts(gradient, axes), flattened(gradient)
    assert parts is not None
    assert flat is not None
    before, along, behind = parts
    rows = flat.reshape(before, along, behind)
    rows = rows if multiplies(rows.dtype) else in_format(rows, float32)
    order = memory_order(gradient)
    out = empty([1 if i in axes else gradient.shape[i] for i in order], float32)
    ones = np.ones((along, 1) if behind == 1 else (before, 1, along), rows.dtype)
    a, b = (rows.reshape(before, along), ones) if behind == 1 else (ones, rows)
    if not multiply(a, b, out.reshape(*a.shape[:-1], b.shape[-1])):
        return sum_over.reference.run(gradient, axes)  # type: ignore[no-any-return]
    return out.transpose(np.argsort(order))
