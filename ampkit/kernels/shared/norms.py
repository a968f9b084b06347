"""softmax and the norms: what they save and return; a backend gives the functions that compute rows and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.batch_norm import batch_norm_, update_running_statistics
from ampkit.ops.nn.layer_norm import rms_norm
from ampkit.ops.nn.residual_norm import add_layer_norm_, results
from ampkit.ops.nn.softmax import log_softmax, softmax

from .launcher import Launcher
from .registration import on

Function = Callable[..., Any]
EPS = float(np.finfo(np.float32).eps)


def register_softmax(
    launcher: Launcher, normalized: Function, gradient: Function, fits: Function, readable: Function,
    dtypes: Any = None, launches: bool = False,
) -> None:  # fmt: skip
    """Register softmax and log_softmax. launches: see Kernel.

    normalized(input, dim, logarithm, dtype) -> softmax, or its logarithm. gradient(dy, out, dim, logarithm, dtype).
    """

    def register(op: Any, logarithm: bool) -> None:
        def forward(input: Array, dim: int, dtype: DType) -> Any:
            out = normalized(input, dim, logarithm, dtype)
            return out, Saved(out=out)

        def backward(dy: Array, saved: Saved, needs: Any, dim: int, dtype: Any) -> Array:
            return gradient(dy, saved.out, dim, logarithm, needs[0])

        launcher.on(op, forward, fits, dtypes, launches)
        launcher.on_backward(op, backward, readable, launches=launches)

    register(softmax, logarithm=False)
    register(log_softmax, logarithm=True)


def register_norm(
    launcher: Launcher, op: Any, normalized: Function, gradients: Function, fits: Function, readable: Function,
    dtypes: Any = None, wants_cache: bool = False, launches: bool = False,
) -> None:  # fmt: skip
    """Register layer_norm, rms_norm or group_norm. launches: see Kernel.

    readable: the backward's predicate, where statistics are saved.
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

    launcher.on(op, forward_of_rms if op is rms_norm else forward, fits, dtypes, launches)
    launcher.on_backward(op, gradients, fits_backward, wants_cache, launches)


def register_residual_norm(
    backend: str, normalized: Function, gradients: Function, fits: Function, readable: Function,
    wants_cache: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Register residual + dropout(branch) followed by layer_norm.

    normalized(residual, branch, weight, bias, normalized_shape, eps, p, draw, dtype of the norm, of the sum) -> sum,
    norm, mean, rstd, mask of dropout. gradients(dnorm, dsum, saved, needs, normalized_shape, p); dsum may be None.
    """

    def forward(
        residual: Array, branch: Array, weight: Array | None, bias: Array | None, normalized_shape: Any, eps: float,
        dropout_p: float, draw: Any, normed: DType | None, *, dtype: DType,
    ) -> Any:  # fmt: skip
        given = residual, branch, weight, bias, normalized_shape, eps, dropout_p, draw
        total, norm, mean, rstd, keep = normalized(*given, normed or dtype, dtype)
        return results(total, norm, normed, keep, Saved(input=total, weight=weight, mean=mean, rstd=rstd))

    def backward(
        dy: Any, saved: Saved, needs: Any, normalized_shape: Any, eps: float, dropout_p: float, draw: Any, normed: Any,
        **cache: Any,
    ) -> Any:  # fmt: skip
        dsum, dnorm = (None, dy) if normed is None else dy
        return gradients(dnorm, dsum, saved, needs, normalized_shape, dropout_p, **cache)

    def fits_backward(dy: Any, saved: Saved, needs: Any, **params: Any) -> bool:
        grads = dy if type(dy) is tuple else (dy,)
        return bool(saved.rstd.dtype == float32) and readable(grads, saved, needs)

    on(add_layer_norm_, backend, forward, fits, **options)
    on(add_layer_norm_.backward_primitive, backend, backward, fits_backward, wants_cache=wants_cache)


def register_batch_norm(
    backend: str, normalized: Function, gradients: Function, fits: Function, readable: Function, updated: Function,
    updates: Function, wants_cache: bool = False, launches: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Register batch_norm, with a residual and ReLU, and the update of running statistics, which `updated` is.
    launches: of the backward, see Kernel.

    normalized(input, weight, bias, running (mean, variance) or None, residual, eps, relu, dtype) -> out, mean,
    variance, rstd [C], and what else is saved by name. gradients(dy, dmean, dvar, saved, needs, relu) -> one for each
    input; dmean and dvar are None with running statistics. readable(gradients, saved, needs).
    """

    def forward(
        input: Array, weight: Array | None, bias: Array | None, running_mean: Array | None, running_var: Array | None,
        residual: Array | None, eps: float, relu: bool, *, dtype: DType,
    ) -> Any:  # fmt: skip
        running = None if running_mean is None else (running_mean, running_var)
        out, mean, variance, rstd, more = normalized(input, weight, bias, running, residual, eps, relu, dtype)
        saved = Saved(input=input, weight=weight, running_mean=running_mean, running_var=running_var, mean=mean)
        saved.__dict__.update(more, rstd=rstd.reshape(-1, 1))
        if residual is not None:
            saved.out = out
        elif relu:
            saved.bias = bias
        return (out, mean, variance, saved) if running is None else (out, saved)

    def backward(dy: Any, saved: Saved, needs: Any, eps: float, relu: bool, **cache: Any) -> Any:
        grads = dy if saved.running_mean is None else (dy, None, None)
        return gradients(*grads, saved, needs, relu, **cache)

    def fits_backward(dy: Any, saved: Saved, needs: Any, eps: float, relu: bool) -> bool:
        return readable(dy if saved.running_mean is None else (dy,), saved, needs)

    on(batch_norm_, backend, forward, fits, **options)
    more = {"wants_cache": wants_cache, "launches": launches}
    on(batch_norm_.backward_primitive, backend, backward, fits_backward, **more)
    on(update_running_statistics, backend, updated, updates)
