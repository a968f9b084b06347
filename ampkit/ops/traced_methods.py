"""The ops that NumPy's functions and methods stand for on traced arrays, where the arguments differ.

An op with NumPy's arguments registers itself by `@op(numpy=...)`. Double backward runs plain array code on these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.core.autograd.traced_array import stands_for
from ampkit.core.tensor import Tensor

from .creation.constants import full_like, ones_like, zeros_like
from .indexing.gather_scatter import gather
from .indexing.getitem import getitem
from .indexing.index_select import index_select
from .pointwise.arithmetic import add, div_, mul, sub
from .pointwise.comparison import eq, ge, gt, le, lt, ne
from .pointwise.conversion import clone, to
from .pointwise.powers_and_logs import pow
from .pointwise.selection import clamp
from .pointwise.sign_and_rounding import abs, neg
from .reduction.cumulative import cumprod, cumsum
from .reduction.reductions import amax, amin, mean, prod, sum
from .shape.join_split import cat, stack
from .shape.repeat_and_flip import flip, roll, tile
from .shape.view import broadcast_to, movedim, permute, reshape, squeeze, transpose, unsqueeze


def _reduction(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Tensor, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
        return reduce(x, axis, keepdims)

    return reduced


def _transposed(x: Tensor, *axes: Any) -> Tensor:
    order = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple)) else axes
    return permute(x, tuple(order) if order else tuple(range(x.ndim))[::-1])


def _squeezed(x: Tensor, axis: Any = None) -> Tensor:
    return squeeze(x, axis)


def _along(x: Tensor, indices: Any, axis: int) -> Tensor:
    return gather(x, axis, indices if isinstance(indices, Tensor) else Tensor(np.asarray(indices)))


def _filled(make: Callable[..., Any]) -> Callable[..., Any]:
    def filled(x: Tensor, *value: Any, dtype: Any = None) -> Any:
        return make(x, *value, dtype=dtype)

    return filled


stands_for.update(
    {
        # operators and methods of arrays
        "add": add, "sub": sub, "mul": mul, "truediv": div_, "pow": pow, "neg": neg, "abs": abs,
        "eq": eq, "ne": ne, "lt": lt, "le": le, "gt": gt, "ge": ge,
        "getitem": getitem, "sum": _reduction(sum), "mean": _reduction(mean), "max": _reduction(amax),
        "min": _reduction(amin),
        "reshape": reshape, "transpose": _transposed, "swapaxes": transpose,
        "astype": lambda x, dtype, copy=True: to(x, dtype=dtype),
        "squeeze": _squeezed, "copy": clone,
        # functions
        np.sum: _reduction(sum), np.mean: _reduction(mean), np.max: _reduction(amax),
        np.min: _reduction(amin), np.prod: _reduction(prod),
        np.cumsum: cumsum, np.cumprod: cumprod, np.clip: clamp,
        np.reshape: reshape, np.transpose: _transposed, np.swapaxes: transpose, np.moveaxis: movedim,
        np.squeeze: _squeezed, np.expand_dims: unsqueeze, np.broadcast_to: broadcast_to,
        np.concatenate: cat, np.stack: stack, np.flip: flip, np.roll: roll, np.tile: tile,
        np.take_along_axis: _along, np.copy: clone,
        np.take: lambda x, indices, axis=None: index_select(x, axis, indices),
        np.zeros_like: _filled(zeros_like), np.ones_like: _filled(ones_like), np.full_like: _filled(full_like),
    }
)  # fmt: skip
