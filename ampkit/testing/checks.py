"""The checks of a Case; each raises AssertionError."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..base import public_dtypes
from ..base.dtypes import DType, bfloat16, float16, float32, is_float
from ..core.autograd.grad_mode import no_grad
from ..core.op import ops as registry
from ..core.policy import Cast, autocast
from ..core.tensor import Tensor
from .cases import Case, placed
from .closeness import GRADIENT_TOLERANCE, Array, assert_close, values_of
from .differences import floats_of, gradcheck, gradgradcheck, gradients_of


def check_gradients(case: Case) -> None:
    """Check gradients in float64 against finite differences; if the case is smooth, second derivatives as well.

    For a smooth case, gradients with create_graph=True are also compared with those without.
    """
    gradcheck(case, case.tensors())
    if case.smooth:
        gradgradcheck(case, case.tensors())


def check_precision(case: Case, dtype: DType) -> None:
    """Check values and gradients in `dtype` against float64 results from the same inputs, rounded to `dtype`."""
    low = case.tensors(dtype)
    high = case.tensors(arrays=[values_of(t).astype(np.float64) if t.requires_grad else values_of(t) for t in low])
    outs, wants = case(*low), case(*high)
    for got, want in zip(outs, wants, strict=True):
        assert_close(got, want)
    seeds = [np.random.default_rng(2).normal(size=w.shape).astype(dtype) for w in floats_of(wants)]
    found = gradients_of(
        floats_of(outs), low, [placed(s.astype(o.array.dtype)) for s, o in zip(seeds, floats_of(outs), strict=True)]
    )
    truth = gradients_of(floats_of(wants), high, [placed(s.astype(np.float64)) for s in seeds])
    for gradient, exact in zip(found, truth, strict=True):
        assert (gradient is None) == (exact is None), "a gradient is missing"
        if gradient is not None:
            assert gradient.array.dtype == dtype, f"a gradient in {gradient.dtype}, expected {dtype}"
            assert_close(gradient, exact, GRADIENT_TOLERANCE[dtype], "gradient")


def check_strides(case: Case) -> None:
    """Check that inputs with negative, non-contiguous strides give the same values."""
    tensors = case.tensors()
    strided = [Tensor(_strided(values_of(t)), t.requires_grad) for t in tensors]
    for got, want in zip(case(*strided), case(*tensors), strict=True):
        assert_close(got, want)


def _strided(array: Array) -> Any:
    # A read-only view of the same values with stride -2 along the last axis.
    backend = backends.get()
    if not array.ndim:
        return backend.asarray(array)
    wide = backend.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view = wide[..., ::-2]
    with backends.device_guard(view):
        view[...] = backend.asarray(array)
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def check_dtypes(case: Case) -> None:
    """Check that the output's dtype follows the op's cast category, inside and outside of autocast."""
    op = registry.get(case.name)
    explicit = "dtype" in case.params or any(isinstance(item, (np.dtype, public_dtypes.dtype)) for item in case.inputs)
    if op is None or explicit:
        return
    for dtype in (float32, float16, bfloat16):
        tensors = case.tensors(dtype)
        if not any(t.requires_grad for t in tensors):
            continue
        with no_grad():
            out = case(*tensors)[0]
            assert out.array.dtype == dtype or not is_float(out.array.dtype), f"{out.dtype} out of {dtype}"
            if not is_float(out.array.dtype) or op.cast is Cast.BANNED:
                continue
            with autocast(dtype=float16):
                inside = case(*tensors)[0].dtype
        wanted = {Cast.LOW: float16, Cast.FP32: float32}.get(op.cast, dtype)
        assert inside == wanted, f"{inside} out of {dtype} in autocast, expected {wanted}"


def check(case: Case) -> None:
    """Run every check of a case. Raises AssertionError."""
    check_gradients(case)
    for dtype in (float32, float16, bfloat16):
        check_precision(case, dtype)
    check_strides(case)
    check_dtypes(case)
