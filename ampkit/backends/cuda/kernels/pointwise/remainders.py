"""Kernels of sums of exponentials, remainders and numbers in place of NaN: maps, see elementwise.cu."""

from __future__ import annotations

from typing import Any

from ampkit.backends.cuda.launch import elementwise as maps
from ampkit.base.dtypes import DType, finfo
from ampkit.core.autograd.saved import Saved
from ampkit.ops.pointwise import remainders as ops

from .registration import backwards, fits, forwards, mapped

Array = Any

mapped(ops.logaddexp, "LogAddExp", "input", "other")
mapped(ops.logaddexp2, "LogAddExp2", "input", "other")
forwards(ops.fmod, "FMod", "input", "other")
backwards(ops.fmod, "FMod", "input", "other", passes=(0,))


@ops.nan_to_num.on("cuda", when=fits)
def nan_to_num_cuda(input: Array, nan: Any, posinf: Any, neginf: Any, *, dtype: DType) -> Any:
    limits, kind = finfo(input.dtype), input.dtype.type
    given = nan or 0.0, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    out = maps.forward("NanToNum", (input, *[float(kind(number)) for number in given]), dtype)
    return out if out is NotImplemented else (out, Saved(input=input))


backwards(ops.nan_to_num, lambda nan, posinf, neginf: ("NanToNum", ()), "input")
