"""CPU kernels of softmax and log_softmax: oneDNN's, along the last axis of C-contiguous arrays.

In oneDNN, a NaN or +inf affects its own element only and the rest of the row becomes 0 or -inf; these kernels return
NaN for the whole row, as the reference does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cpu.device import in_format
from ampkit.backends.cpu.onednn.eltwise import computed, computes
from ampkit.backends.cpu.onednn.gemm import as_rows
from ampkit.backends.cpu.onednn.primitive import MAX_SUMMED_ROW, MIN_ELEMENTS, HostArray
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.backends.cpu.onednn.softmax import row_gradients, rows_of
from ampkit.base.dtypes import DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.softmax import log_softmax, softmax


def _fits(input: HostArray, dim: int) -> bool:
    last = dim in (-1, input.ndim - 1) and input.ndim > 0
    known = input.dtype in FORMATS and computes(float32)
    return (
        last
        and known
        and input.size >= MIN_ELEMENTS
        and input.shape[-1] <= MAX_SUMMED_ROW
        and bool(input.flags.c_contiguous)
    )


def _register(op: Any, function: str) -> None:
    def forward(input: HostArray, dim: int, dtype: DType) -> Any:
        out = rows_of(as_rows(computed(input)), function, float32)
        if out is None or dtype not in FORMATS:
            return NotImplemented
        spoiled = ~np.isfinite(out.max(1, initial=-np.inf))
        if spoiled.any():
            out[spoiled] = np.nan
        out = in_format(out.reshape(input.shape), dtype)
        return out, Saved(out=out)

    def back_fits(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> bool:
        return needs[0] in FORMATS and _fits(saved.out, dim) and _fits(dy, dim)

    def backward(dy: HostArray, saved: Saved, needs: Any, dim: int, dtype: Any) -> Any:
        grad, out = (in_format(as_rows(array), float32) for array in (dy, saved.out))
        dx = row_gradients(grad, out, function, float32)
        return NotImplemented if dx is None else in_format(dx, needs[0]).reshape(dy.shape)

    op.on("cpu", when=lambda input, dim, dtype: _fits(input, dim))(forward)
    op.on_backward("cpu", when=back_fits)(backward)


_register(softmax, "softmax")
_register(log_softmax, "log_softmax")
