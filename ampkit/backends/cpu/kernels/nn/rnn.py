"""CPU kernels of recurrent layers: matrix products by oneDNN, in 16 bits where the CPU multiplies these fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.backends.cpu.onednn import gemm
from ampkit.backends.cpu.onednn.library import has_fast_matmul
from ampkit.backends.cpu.onednn.primitive import HostArray
from ampkit.backends.cpu.onednn.reorder import FORMATS
from ampkit.backends.passthrough import runs_as_stored
from ampkit.base.dtypes import float32
from ampkit.ops.nn import rnn
from ampkit.ops.nn.rnn_cell import column_sums, matmul_by, matmul_into


def _fits(a: HostArray, b: HostArray, out: HostArray, *more: Any) -> bool:
    return gemm.is_profitable(a, b) and has_fast_matmul(a.dtype) and out.dtype in (a.dtype, float32)


@matmul_into.on("cpu", when=_fits)
def matmul_into_cpu(a: HostArray, b: HostArray, out: HostArray, bias: Any = None, accumulate: bool = False) -> None:
    if not gemm.matmul_into(a, b, out, bias, accumulate=accumulate):
        matmul_into.reference.run(a, b, out, bias, accumulate)


def _repeats(weight: HostArray, rows: int) -> bool:
    fit = weight.dtype in FORMATS and has_fast_matmul(weight.dtype)
    return fit and weight.size * rows >= gemm.MIN_MACS


@matmul_by.on("cpu", when=_repeats)
def matmul_by_cpu(weight: HostArray, rows: int) -> Callable[..., None]:
    packed = gemm.PackedWeight(weight)

    def times(a: HostArray, out: HostArray, bias: HostArray | None = None, accumulate: bool = False) -> None:
        if not packed(a, out, bias, accumulate):
            matmul_into.reference.run(a, weight, out, bias, accumulate)

    return times


@column_sums.on("cpu", when=lambda rows: rows.dtype in FORMATS)
def column_sums_cpu(rows: HostArray) -> Any:
    return gemm.column_sums(rows, float32)


def _worth(input: HostArray, *given: Any) -> bool:
    rows = max(array.shape[0] for array in given if array is not None and array.ndim == 2)
    return has_fast_matmul(input.dtype) and input.size * rows >= gemm.MIN_MACS


for _op in rnn.OPS:
    runs_as_stored(_op, "cpu", _worth)
