"""`torch.distributions.utils`: what subclasses of distributions are written with."""

from __future__ import annotations

from typing import Any

import ampkit
from ampkit.distributions.discrete import within as clamp_probs
from ampkit.distributions.distribution import lazy_property, parameters
from ampkit.distributions.distribution import sum_rightmost as _sum_rightmost

__all__ = [
    "_standard_normal", "_sum_rightmost", "broadcast_all", "clamp_probs", "euler_constant", "lazy_property",
    "logits_to_probs", "probs_to_logits", "tril_matrix_to_vec", "vec_to_tril_matrix",
]  # fmt: skip

euler_constant = 0.57721566490153286


def broadcast_all(*values: Any) -> tuple[Any, ...]:
    """Numbers and tensors as tensors of one shape."""
    return parameters(*values)


def logits_to_probs(logits: Any, is_binary: bool = False) -> Any:
    """sigmoid(logits), or softmax over the last axis."""
    return ampkit.sigmoid(logits) if is_binary else ampkit.softmax(logits, -1)


def probs_to_logits(probs: Any, is_binary: bool = False) -> Any:
    """The logits of probabilities, which are kept away from 0 and 1."""
    kept = clamp_probs(probs)
    return kept.log() - ampkit.log1p(-kept) if is_binary else kept.log()


def tril_matrix_to_vec(mat: Any, diag: int = 0) -> Any:
    """The lower triangle, row by row, up to a diagonal: [.., n, n] -> [.., k]."""
    rows, columns = ampkit.tril_indices(mat.shape[-1], mat.shape[-1], diag)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Any, diag: int = 0) -> Any:
    """The lower triangular matrix of `tril_matrix_to_vec`."""
    n = 0
    while len(ampkit.tril_indices(n, n, diag)[0]) < vec.shape[-1]:
        n += 1
    rows, columns = ampkit.tril_indices(n, n, diag)
    if len(rows) != vec.shape[-1]:
        raise ampkit.ShapeError("vec_to_tril_matrix", "as many numbers as a triangle has", f"{vec.shape[-1]}")
    place = ampkit.zeros(n, n, dtype=ampkit.int64, device=vec.device)
    place[rows, columns] = ampkit.arange(1, len(rows) + 1, device=vec.device)
    return ampkit.ops.pad(vec, (1, 0))[..., place]


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Any:
    return ampkit.randn(tuple(shape), dtype=dtype, device=device)
