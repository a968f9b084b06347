"""The orthogonal factor of a matrix, about: a Newton-Schulz iteration of odd polynomials of degree 5."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import Array, DType, float64
from ampkit.core.dispatch import run_op
from ampkit.ops.linalg.matmul import addmm, mm

from ..clip import power_sum
from ..flat.memory import CHUNK


def newton_schulz(g: Array, coefficients: Sequence[float], steps: int, eps: float, dtype: DType) -> Array:
    """U V^T, about, of the matrix g [m, n] = U S V^T: x <- a x + (b A + c A A) x with A = x x^T, from x = g / |g|.

    coefficients: a, b, c. With (3.4445, -4.7750, 2.0315) the singular values end between 0.7 and 1.2, from 5 steps on
    and for those of g above some hundredths of |g|. eps: the least |g|, which is worked out in float64. dtype: of the
    iteration: what is stored between products, whose sums are float32 (float64 in float64).
    -> [m, n] in the dtype of g. Jordan et al. 2024, "Muon", https://kellerjordan.github.io/posts/muon.
    """
    a, b, c = coefficients
    backend = backends.backend_of(g)
    norm = np.sqrt(power_sum(g.reshape(-1), 2.0, backend.empty((min(CHUNK, g.size),), float64)))
    tall, x = g.shape[0] > g.shape[1], g / np.maximum(norm, eps).astype(g.dtype)
    x = backend.cast(x.T.copy() if tall else x, dtype)
    product, add = partial(run_op, mm, dtype=dtype), partial(run_op, addmm, dtype=dtype)
    for _ in range(steps):
        gram = product([x, x.T])
        x = add([x, add([gram, gram, gram], b, c), x], a, 1.0)
    x = backend.cast(x, g.dtype)
    return x.T if tall else x
