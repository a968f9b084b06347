"""softmax and the norms: what they save and return; a backend gives the functions that compute rows and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.layer_norm import rms_norm
from ampkit.ops.nn.softmax import log_softmax, softmax

from .launcher import Launcher

Function = Callable[..., Any]
EPS = float(np.finfo(np.float32).eps)


def register_softmax(
    launcher: Launcher, normalized: Function, gradient: Function, fits: Function, readable: Function, dtypes: Any = None
) -> None:
    """Register softmax and log_softmax.

    normalized(input, dim, logarithm, dtype) -> softmax, or its logarithm. gradient(dy, out, dim, logarithm, dtype).
    """

    def register(op: Any, logarithm: bool) -> None:
        def forward(input: Array, dim: int, dtype: DType) -> Any:
            out = normalized(input, dim, logarithm, dtype)
            return out, Saved(out=out)

        def backward(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> Array:
            return gradient(dy, saved.out, dim, logarithm, needs[0])

        launcher.on(op, forward, fits, dtypes)
        launcher.on_backward(op, backward, readable)

    register(softmax, logarithm=False)
    register(log_softmax, logarithm=True)


def register_norm(
    launcher: Launcher, op: Any, normalized: Function, gradients: Function, fits: Function, readable: Function,
    dtypes: Any = None, wants_cache: bool = False,
) -> None:  # fmt: skip
    """Register layer_norm, rms_norm or group_norm. readable: the backward's predicate, where statistics are saved.

    normalized(input, normalized_shape or num_groups, weight, bias, eps, dtype) -> the norm, and the mean and the
    1 / deviation of each row or group, [rows, 1] float32. With a last argument False, for rms_norm, the mean is None.
    """

    def forward(input: Array, size: Any, weight: Array | None, bias: Array | None, eps: float, *, dtype: DType) -> Any:
        out, mean, rstd = normalized(input, size, weight, bias, eps, dtype)
        return out, Saved(input=input, weight=weight, mean=mean, rstd=rstd)

    def forward_of_rms(input: Array, size: Any, weight: Array | None, eps: float | None, *, dtype: DType) -> Any:
        out, _, rstd = normalized(input, size, weight, None, EPS if eps is None else eps, dtype, False)
        return out, Saved(input=input, weight=weight, rstd=rstd)

    def fits_backward(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
        rstd = getattr(saved, "rstd", None)  # not saved for the gradient of a bias alone
        return rstd is not None and rstd.dtype == float32 and readable(dy, saved, needs, **params)

    launcher.on(op, forward_of_rms if op is rms_norm else forward, fits, dtypes)
    launcher.on_backward(op, gradients, fits_backward, wants_cache)
