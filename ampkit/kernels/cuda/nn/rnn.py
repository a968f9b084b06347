"""CUDA kernels of rnn, lstm and gru: one launch per time step for all gates; matrix products by cublasLt.

16-bit tensors are multiplied in 16 bits, summed in float32. The host never synchronizes, so that CUDA graphs can
capture recurrent layers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.cuda.libs import gemm
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed
from ampkit.backends.passthrough import runs_as_stored
from ampkit.base.dtypes import Array, accumulator, float32
from ampkit.ops.nn import rnn, rnn_cell

THREADS = 256
LANE = 8  # row lengths are multiples of this many 16-bit values


# matrix products


def _can_multiply(a: Array, b: Array, out: Array, *more: Any) -> bool:
    return gemm.fits(a, b) and a.size > 0 and b.size > 0 and gemm.output_dtype(a.dtype, out.dtype) == out.dtype


@rnn_cell.matmul_into.on("cuda", when=_can_multiply)
def matmul_into_cuda(a: Array, b: Array, out: Array, bias: Array | None = None, accumulate: bool = False) -> None:
    if not gemm.multiply(a, b, out, bias, out if accumulate else None):
        rnn_cell.matmul_into.reference.run(a, b, out, bias, accumulate)


@rnn_cell.column_sums.on("cuda", when=lambda rows: gemm.fits(rows) and rows.size > 0)
def column_sums_cuda(rows: Array) -> Array:
    return gemm.column_sums(rows, accumulator(rows.dtype))


# steps: all arrays are contiguous; `hidden`, `out` and the gradients of the gates have the dtype of the products


def _supports(states: Array, *arrays: Array | None) -> bool:
    """Whether the step kernels take these arrays: contiguous, stored dtypes, float32 `states`."""
    present = (states, *(array for array in arrays if array is not None))
    dense = all(array.flags.c_contiguous and array.dtype in STORED for array in present)
    return dense and states.dtype == float32 and 0 < states.size <= MAX_ELEMENTS


def _launch(name: str, out: Array, count: int, *args: Any) -> None:
    launch("nn/rnn", typed(name, out.dtype), blocks_for(count, THREADS), THREADS, *args)


def _sizes(state: Array) -> tuple[Any, Any]:
    return np.uint32(state.size), np.uint32(state.shape[1])


@rnn_cell.rnn_step.on("cuda", when=lambda gates, hidden, out, relu: _supports(gates, hidden, out))
def rnn_step_cuda(gates: Array, hidden: Array, out: Array | None, relu: bool) -> None:
    _launch("rnn_forward", hidden, gates.size, gates, hidden, out, np.uint32(gates.size), np.bool_(relu))


@rnn_cell.rnn_step_backward.on("cuda", when=lambda gates, dy, dh, dgates, relu: _supports_grad(gates, dgates, dy, dh))
def rnn_step_backward_cuda(gates: Array, dy: Array, dh: Array, dgates: Array, relu: bool) -> None:
    _launch("rnn_backward", dgates, gates.size, gates, dy, dh, dgates, np.uint32(gates.size), np.bool_(relu))


@rnn_cell.lstm_step.on("cuda", when=_supports)
def lstm_step_cuda(gates: Array, cell: Array, previous_cell: Array, hidden: Array | None, out: Array) -> None:
    _launch("lstm_forward", out, cell.size, gates, cell, previous_cell, hidden, out, *_sizes(cell))


@rnn_cell.lstm_step_backward.on(
    "cuda",
    when=lambda gates, previous_cell, dy, dh, dc, dgates: _supports_grad(gates, dgates, dy, previous_cell, dh, dc),
)
def lstm_step_backward_cuda(
    gates: Array, previous_cell: Array, dy: Array | None, dh: Array, dc: Array, dgates: Array
) -> None:
    _launch("lstm_backward", dgates, dc.size, gates, previous_cell, dy, dh, dc, dgates, *_sizes(dc))


@rnn_cell.gru_step.on("cuda", when=_supports)
def gru_step_cuda(
    gates: Array, hidden_gates: Array, state: Array, hidden_n: Array, hidden: Array | None, out: Array
) -> None:
    _launch("gru_forward", out, state.size, gates, hidden_gates, state, hidden_n, hidden, out, *_sizes(state))


@rnn_cell.gru_step_backward.on(
    "cuda",
    when=lambda gates, hidden_n, previous, dy, dh, dx_gates, dh_gates: (
        previous.dtype == dx_gates.dtype and _supports_grad(gates, dx_gates, dy, hidden_n, previous, dh, dh_gates)
    ),
)
def gru_step_backward_cuda(
    gates: Array, hidden_n: Array, previous: Array, dy: Array, dh: Array, dx_gates: Array, dh_gates: Array
) -> None:
    _launch("gru_backward", dx_gates, dh.size, gates, hidden_n, previous, dy, dh, dx_gates, dh_gates, *_sizes(dh))


def _supports_grad(gates: Array, dgates: Array, dy: Array | None, *others: Array) -> bool:
    """As `_supports`, and dy, if there is one, has the dtype of the gradients of the gates."""
    return (dy is None or dy.dtype == dgates.dtype) and _supports(gates, dgates, dy, *others)


def _is_profitable(input: Array, *others: Array | None) -> bool:
    """Whether to multiply in 16 bits: rows are multiples of LANE, as tensor cores need; else cast to float32."""
    sizes = [n for array in (input, *others) if array is not None and array.ndim == 2 for n in array.shape[1:]]
    return gemm.fits(input) and input.size > 0 and not any(n % LANE for n in sizes)


for _op in rnn.OPS:
    runs_as_stored(_op, "cuda", _is_profitable)
