"""Dropout: elements zeroed at random, from the counter-based stream of `core/random.py`."""

from __future__ import annotations

from typing import Any

from .. import backends
from ..core import random
from ..core.errors import ArgumentError
from ..core.op import Array, Saved, op
from ..core.policy import Cast
from ..core.tensor import Tensor
from ..core.words import Word

__all__ = ["dropout"]


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: Word = False) -> Tensor:
    """Zero each element with probability `p`, and multiply the others by 1 / (1 - p).

    input [...] -> [...]; the input itself if not `training`. A draw of the default stream decides, with `p` rounded to
    a multiple of 2^-16. `inplace` is taken for PyTorch's sake: the answer is new memory all the same.
    Raises ArgumentError for a probability outside [0, 1].
    Srivastava et al. 2014, JMLR 15.
    """
    if not 0 <= p <= 1:
        raise ArgumentError("dropout", "a probability p from 0 to 1", f"{p}")
    if not training or p == 0:
        return input
    seed, call = random.default.take()
    return dropout_(input, p, seed, call)  # type: ignore[no-any-return]


@op(cast=Cast.KEEP)
def dropout_(input: Array, p, seed, call):
    """`dropout` with the draw named by (seed, call): the same elements every time."""
    keep = backends.of(input).asarray(random.keep_mask(seed, call, p, input.shape))
    return _masked(input, keep, p), Saved(keep=keep)


@dropout_.backward
def dropout_backward(dy, saved, needs, p, seed, call):
    return _masked(dy, saved.keep, p)


def _masked(values: Any, keep: Any, p: float) -> Any:
    # A product, so that NaN stays NaN.
    out = values * keep
    out *= 0.0 if p == 1 else 1 / (1 - p)
    return out
