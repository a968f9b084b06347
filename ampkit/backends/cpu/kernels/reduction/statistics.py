"""CPU kernels of variance and standard deviation (reductions.cpp): the mean, then the squared deviations from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, supported
from ampkit.base.dtypes import DType, float32
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.saved import Saved
from ampkit.ops.reduction import statistics

from . import reductions as r


def _fits(input: HostArray, dim: Any, keepdim: bool, correction: float) -> bool:
    return r.fits(input) and r.count_over(input, r.axes_of(input, dim)) > correction


def _mean(x: HostArray, axes: tuple[int, ...]) -> Any:
    return r.reduced(r.SUM, x, axes, float32, 1 / r.count_over(x, axes))


def _register(op: Any, root: bool) -> None:
    def forward(input: HostArray, dim: Any, keepdim: bool, correction: float, *, dtype: DType) -> Any:
        axes = r.axes_of(input, dim)
        mean = _mean(input, axes)
        factor = 1 / (r.count_over(input, axes) - correction)
        found = r.reduced(r.SQUARE, input, axes, dtype, factor, root, mean)
        return r.as_result(found, axes, keepdim, input=input, mean=mean, **({"out": found} if root else {}))

    def backward_fits(dy: HostArray, saved: Saved, needs: Any, *args: Any, **params: Any) -> bool:
        known = supported(dy, saved.input) and saved.input.size >= MIN_ELEMENTS
        return known and _fits(saved.input, *args, **params)

    def backward(dy: HostArray, saved: Saved, needs: Any, dim: Any, keepdim: bool, correction: float) -> Any:
        x, axes = saved.input, r.axes_of(saved.input, dim)
        grad = r.keep_reduced(dy, x, axes)
        mean = getattr(saved, "mean", None)
        mean = _mean(x, axes) if mean is None else mean
        if root:  # the derivative of the root, 0 where it is 0
            out = 2 * r.keep_reduced(saved.out, x, axes)
            grad = np.divide(grad, out, out=np.zeros_like(out), where=out != 0)
            if not np.isfinite(grad).all():  # of subnormal deviations: the reference divides them first
                raise UnsupportedError
        grad = grad * np.float32(2 / (r.count_over(x, axes) - correction))
        return r.gradient(r.SQUARE, x, axes, grad, mean, needs[0])

    op.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)(forward)
    op.on_backward("cpu", when=backward_fits)(backward)


_register(statistics.var_, root=False)
_register(statistics.std_, root=True)
