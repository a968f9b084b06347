"""CPU kernels of recurrent layers: products by oneDNN, in 16 bits where these are fast; gates by rnn.cpp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit.backends.cpu.native.arrays import FLOATS, MIN_ELEMENTS, Function, HostArray, supported
from ampkit.backends.cpu.onednn import gemm
from ampkit.backends.cpu.onednn.library import has_fast_matmul
from ampkit.base.dtypes import float32
from ampkit.kernels.shared.rnn import register_recurrent
from ampkit.ops.nn.rnn_cell import matmul_by, matmul_into

from ..reduction import reductions


def _fits(a: HostArray, b: HostArray, out: HostArray, *more: Any) -> bool:
    return gemm.is_profitable(a, b) and has_fast_matmul(a.dtype) and out.dtype in (a.dtype, float32)


def _repeats(weight: HostArray, rows: int) -> bool:
    fit = weight.dtype in FLOATS and has_fast_matmul(weight.dtype)
    return fit and weight.size * rows >= gemm.MIN_MACS


@matmul_by.on("cpu", when=_repeats)
def matmul_by_cpu(weight: HostArray, rows: int) -> Callable[..., None]:
    packed = gemm.PackedWeight(weight)

    def times(a: HostArray, out: HostArray, bias: HostArray | None = None, accumulate: bool = False) -> None:
        if not packed(a, out, bias, accumulate):
            matmul_into.reference.run(a, weight, out, bias, accumulate)

    return times


def _summed(rows: HostArray) -> Any:
    return reductions.reduced("Add", rows, (0,), float32).reshape(-1)


def _gates_fit(gates: HostArray, *arrays: HostArray | None) -> bool:
    return bool(gates.dtype == float32) and supported(*arrays)


def _worth(input: HostArray, *given: Any) -> bool:
    rows = max(array.shape[0] for array in given if array is not None and array.ndim == 2)
    return has_fast_matmul(input.dtype) and input.size * rows >= gemm.MIN_MACS


register_recurrent(
    "cpu", gemm.matmul_into, _fits, _summed, reductions.fits,
    lambda name, count: Function(name, "a" * count), lambda name: _gates_fit, _worth, MIN_ELEMENTS,
)  # fmt: skip
