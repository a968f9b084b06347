"""CPU kernel of unscaling (found_inf.cpp): gradients are multiplied and checked for inf and NaN in one pass."""

from __future__ import annotations

from ctypes import c_int64
from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import Function, HostArray, supported
from ampkit.base.dtypes import float32
from ampkit.kernels.shared.amp import register_unscale

_unscale = Function("unscale", "afi", c_int64)


def _fits(gradient: HostArray, inverse: HostArray | None, scratch: Any) -> bool:
    flat = type(gradient) is np.ndarray and gradient.ndim == 1 and gradient.flags.c_contiguous
    return flat and gradient.dtype == float32 and supported(gradient)


def _unscaled(gradient: HostArray, inverse: HostArray | None, scratch: Any) -> Any:
    return np.asarray(_unscale(gradient, 1.0 if inverse is None else float(inverse), inverse is not None), np.int64)


register_unscale("cpu", _unscaled, _fits)
