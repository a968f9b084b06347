"""CUDA kernels of ctc_loss: a block per sequence keeps its states in shared memory and iterates over the frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends.cuda.array_layout import cast, contiguous, supports_array, to_float32, to_int64
from ampkit.backends.cuda.nvrtc import SHARED, STORED, launch, typed
from ampkit.base.dtypes import Array, DType, float32
from ampkit.core.autograd.saved import Saved
from ampkit.ops.loss.ctc import ctc_loss_, reduce_loss, unreduced_grad

MAX_THREADS = 512  # per block


def _supports(log_probs: Array, targets: Array) -> bool:
    states = 2 * targets.shape[1] + 1
    return supports_array(log_probs) and 5 * 4 * states <= SHARED


def _threads(states: int) -> int:
    return min(MAX_THREADS, -(-states // 32) * 32)


@ctc_loss_.on("cuda", when=lambda log_probs, targets, *rest, **params: _supports(log_probs, targets))
def ctc_loss_cuda(
    log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, blank: int, reduction: str,
    zero_infinity: bool, *, dtype: DType,
) -> Any:  # fmt: skip
    backend, x = backends.backend_of(log_probs), contiguous(log_probs)
    (frames, batch, classes), max_target = x.shape, targets.shape[1]
    states = 2 * max_target + 1
    alpha, loss = backend.empty((frames, batch, states), float32), backend.empty((batch,), float32)
    arrays = x, to_int64(targets), to_int64(input_lengths), to_int64(target_lengths), alpha, loss
    sizes = np.int64(max_target), np.int64(classes), np.int64(blank)
    entry = typed("ctc_loss_forward", x.dtype)
    launch("loss/ctc", entry, batch, _threads(states), *arrays, *sizes, shared=3 * 4 * states)
    saved = Saved(log_probs=log_probs, targets=targets, input_lengths=input_lengths, target_lengths=target_lengths)
    saved.alpha, saved.loss = alpha, loss
    out = reduce_loss(loss, target_lengths, reduction, zero_infinity)
    return cast(out, dtype), saved


def _supports_backward(dy: Array, saved: Saved, needs: Any, **params: Any) -> bool:
    x = saved.log_probs
    return needs[0] == x.dtype and dy.dtype in STORED and saved.alpha.dtype == float32 and _supports(x, saved.targets)


@ctc_loss_.on_backward("cuda", when=_supports_backward)
def ctc_loss_backward_cuda(
    dy: Array, saved: Saved, needs: Any, blank: int, reduction: str, zero_infinity: bool
) -> Array:
    x, labels, counts = contiguous(saved.log_probs), to_int64(saved.targets), to_int64(saved.target_lengths)
    states, dx = 2 * labels.shape[1] + 1, backends.backend_of(x).zeros(x.shape, x.dtype)
    grad = unreduced_grad(to_float32(dy), counts, reduction)
    arrays = grad, x, labels, to_int64(saved.input_lengths), counts, contiguous(saved.alpha), saved.loss, dx
    sizes = np.int64(labels.shape[1]), np.int64(x.shape[2]), np.int64(blank), np.bool_(zero_infinity)
    entry = typed("ctc_loss_backward", x.dtype)
    launch("loss/ctc", entry, x.shape[1], _threads(states), *arrays, *sizes, shared=5 * 4 * states)
    return dx
