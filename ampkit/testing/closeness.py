"""Tolerances by dtype, used by all tests, and `assert_close`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.dtypes import DType, bfloat16, float16, float32, float64
from ..core.tensor import Tensor

Array = np.ndarray[Any, Any]

# Per dtype: the error allowed against a float64 reference, as (a share of the value, a share of the largest value).
# Twice the unit roundoff (2^-11, 2^-8) for the one rounding of a 16-bit result; more for sums in float32 and float64.
TOLERANCE: dict[DType, tuple[float, float]] = {
    float64: (1e-12, 1e-12),
    float32: (1e-5, 2e-6),
    float16: (1e-3, 1e-4),
    bfloat16: (8e-3, 1e-3),
}
# The same for gradients, which may be computed from an output that was rounded to 16 bits.
GRADIENT_TOLERANCE: dict[DType, tuple[float, float]] = {
    float64: (1e-11, 1e-11),
    float32: (1e-4, 1e-5),
    float16: (4e-3, 4e-3),
    bfloat16: (3e-2, 3e-2),
}


def assert_close(got: Any, want: Any, tolerance: tuple[float, float] | None = None, what: str = "value") -> None:
    """Raise AssertionError unless `got` equals `want` within the tolerance of its dtype; integers and shapes exactly.

    got, want: tensors or arrays. tolerance: (relative to the value, relative to the largest finite value). NaN and
    infinities must be equal. what: how the error names the values.
    """
    got, want = values_of(got), values_of(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if got.dtype not in TOLERANCE:
        assert np.array_equal(got, want), f"{what}: {got}, expected {want}"
        return
    relative, absolute = tolerance or TOLERANCE[got.dtype]
    wide, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    allowed = relative * np.abs(want) + absolute * np.max(np.abs(want[finite]), initial=0.1)
    with np.errstate(invalid="ignore"):
        off = np.where(finite, ~(np.abs(wide - want) <= allowed), ~((wide == want) | (np.isnan(wide) & np.isnan(want))))
    assert not off.any(), (
        f"{what}: {wide[off][:4]}, expected {want[off][:4]} ({got.dtype.name}, {off.sum()} of {off.size})"
    )


def values_of(value: Any) -> Array:
    """The values of a tensor, or of anything NumPy converts, as a NumPy array on the host."""
    return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
