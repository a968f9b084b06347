"""CUDA kernels of rnn, lstm and gru: one launch per time step for all gates; matrix products by cublasLt.

16-bit tensors are multiplied in 16 bits, summed in float32. The host never synchronizes, so that CUDA graphs can
capture recurrent layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit.backends.cuda.libs import gemm
from ampkit.backends.cuda.nvrtc import MAX_ELEMENTS, STORED, blocks_for, launch, typed
from ampkit.base.dtypes import Array, accumulator, float32
from ampkit.kernels.shared.rnn import register_recurrent
from ampkit.ops.nn import rnn_cell

THREADS = 256
LANE = 8  # row lengths are multiples of this many 16-bit values


# matrix products


def _can_multiply(a: Array, b: Array, out: Array, *more: Any) -> bool:
    return gemm.fits(a, b) and a.size > 0 and b.size > 0 and gemm.output_dtype(a.dtype, out.dtype) == out.dtype


def _multiplied(a: Array, b: Array, out: Array, bias: Array | None, accumulate: bool) -> bool:
    return gemm.multiply(a, b, out, bias, out if accumulate else None)


def _summed(rows: Array) -> Array:
    return gemm.column_sums(rows, accumulator(rows.dtype))


# steps: all arrays are contiguous; `hidden`, `out` and the gradients of the gates have the dtype of the products


def _supports(states: Array, *arrays: Array | None) -> bool:
    """Whether the step kernels take these arrays: contiguous, stored dtypes, float32 `states`."""
    present = (states, *(array for array in arrays if array is not None))
    dense = all(array.flags.c_contiguous and array.dtype in STORED for array in present)
    return dense and states.dtype == float32 and 0 < states.size <= MAX_ELEMENTS


def _launch(name: str, out: Array, count: int, *args: Any) -> None:
    launch("nn/rnn", typed(name, out.dtype), blocks_for(count, THREADS), THREADS, *args)


@rnn_cell.rnn_step.on("cuda", when=lambda gates, hidden, out, relu: _supports(gates, hidden, out))
def rnn_step_cuda(gates: Array, hidden: Array, out: Array | None, relu: bool) -> None:
    _launch("rnn_forward", hidden, gates.size, gates, hidden, out, np.uint32(gates.size), np.bool_(relu))


def _supports_elman_backward(gates: Array, dy: Array, dh: Array, dgates: Array, relu: bool) -> bool:
    return dy.dtype == dgates.dtype and _supports(gates, dy, dh, dgates)


@rnn_cell.rnn_step_backward.on("cuda", when=_supports_elman_backward)
def rnn_step_backward_cuda(gates: Array, dy: Array, dh: Array, dgates: Array, relu: bool) -> None:
    _launch("rnn_backward", dgates, gates.size, gates, dy, dh, dgates, np.uint32(gates.size), np.bool_(relu))


# of each step: the places among its arrays of a state [n, H], of one in the products' dtype, of others that share it
_PLACES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "lstm_step": (1, 4, ()), "lstm_step_backward": (4, 5, (2,)),
    "gru_step": (2, 5, ()), "gru_step_backward": (4, 5, (2, 3)),
}  # fmt: skip


def _step_of(name: str, count: int) -> Callable[..., None]:
    state, stored, _ = _PLACES[name]
    entry = name.replace("_step", "" if name.endswith("backward") else "_forward")

    def step(*arrays: Any) -> None:
        given: Any = arrays[state]
        _launch(entry, arrays[stored], given.size, *arrays, np.uint32(given.size), np.uint32(given.shape[1]))

    return step


def _fits_of(name: str) -> Callable[..., bool]:
    _, stored, alike = _PLACES[name]

    def fits(*arrays: Any) -> bool:
        for i in alike:
            if arrays[i] is not None and arrays[i].dtype != arrays[stored].dtype:
                return False
        return _supports(*arrays)

    return fits if alike else _supports


def _is_profitable(input: Array, *others: Array | None) -> bool:
    """Whether to multiply in 16 bits: rows are multiples of LANE, as tensor cores need; else cast to float32."""
    sizes = [n for array in (input, *others) if array is not None and array.ndim == 2 for n in array.shape[1:]]
    return gemm.fits(input) and input.size > 0 and not any(n % LANE for n in sizes)


register_recurrent(
    "cuda", _multiplied, _can_multiply, _summed, lambda rows: gemm.fits(rows) and rows.size > 0, _step_of, _fits_of,
    _is_profitable,
)  # fmt: skip
