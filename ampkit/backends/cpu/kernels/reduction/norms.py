"""CPU kernel of vector norms (reductions.cpp)."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, supported
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction.norms import norm_

from . import reductions as r

_TERMS = {
    None: r.SQUARE,
    "fro": r.SQUARE,
    2: r.SQUARE,
    1: r.ABSOLUTE,
    inf: r.LARGEST_ABSOLUTE,
    -inf: r.SMALLEST_ABSOLUTE,
}


def _fits(input: HostArray, p: Any, *args: Any, **params: Any) -> bool:
    return p in _TERMS and r.fits(input)


@norm_.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)
def norm_cpu(input: HostArray, p: Any, dim: Any, keepdim: bool, *, dtype: DType) -> Any:
    axes = r.axes_of(input, dim)
    found = r.reduced(_TERMS[p], input, axes, dtype, root=_TERMS[p] == r.SQUARE)
    return r.as_result(found, axes, keepdim, input=input, out=found)


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, p: Any, *args: Any, **params: Any) -> bool:
    known = _TERMS.get(p) == r.SQUARE and 0 < saved.input.size >= MIN_ELEMENTS
    return known and supported(dy, saved.input, saved.out)


@norm_.on_backward("cpu", when=_backward_fits)
def norm_backward_cpu(
    dy: HostArray, saved: Saved, needs: Any, p: Any, dim: Any, keepdim: bool, dtype: Any
) -> Any:  # dy * x / norm, 0 where the norm is 0
    x, axes = saved.input, r.axes_of(saved.input, dim)
    out, grad = (r.keep_reduced(each, x, axes) for each in (saved.out, dy))
    return r.gradient(r.SQUARE, x, axes, np.divide(grad, out, out=np.zeros_like(out), where=out != 0), None, needs[0])
