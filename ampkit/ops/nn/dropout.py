"""Dropout: elements zeroed at random, from the counter-based stream of `core/random.py`."""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core import random
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast
from ampkit.core.primitive import Primitive
from ampkit.core.tensor import Tensor
from ampkit.core.torch_compat import CompatArg

__all__ = ["dropout", "dropout1d", "dropout2d", "dropout3d"]


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: CompatArg = False) -> Tensor:
    """Zero each element with probability `p`, and multiply the others by 1 / (1 - p).

    input [...] -> [...]; the input itself if not `training`. A draw of the default stream decides, with `p` rounded to
    a multiple of 2^-16. `inplace=True` writes the answer into input.
    Raises ArgumentError for a probability outside [0, 1].
    Srivastava et al. 2014, JMLR 15.
    """
    if not 0 <= p <= 1:
        raise ArgumentError("dropout", "a probability p from 0 to 1", f"{p}")
    if not training or p == 0:
        return input
    seed, call = random.default.take()
    return dropout_(input, p, seed, call)


def _whole(name: str, axes: tuple[int, ...], sizes: str) -> Any:
    def drop(input: Tensor, p: float = 0.5, training: bool = True, inplace: CompatArg = False) -> Tensor:
        if not 0 <= p <= 1:
            raise ArgumentError(name, "a probability p from 0 to 1", f"{p}")
        if input.ndim not in axes:
            raise ShapeError(name, f"input {sizes}", f"shape {tuple(input.shape)}")
        if not training or p == 0:
            return input
        kept = input.ndim - (axes[-1] - 2)
        return dropout_(input, p, *random.default.take(), (*input.shape[:kept], *(1,) * (input.ndim - kept)))

    drop.__name__ = drop.__qualname__ = name
    drop.__doc__ = f"""`dropout` of whole channels: input {sizes} -> the same.

    Raises ArgumentError for a probability outside [0, 1], ShapeError for other shapes.
    Tompson et al. 2014, arXiv:1411.4280, sec. 3.2.
    """
    return drop


dropout1d = _whole("dropout1d", (2, 3), "[N, C, L] or [C, L]")
dropout2d = _whole("dropout2d", (3, 4), "[N, C, H, W] or [C, H, W]")
dropout3d = _whole("dropout3d", (4, 5), "[N, C, D, H, W] or [C, D, H, W]")


def _mask(like: Array, p: float, seed: int, call: int, shape: tuple[int, ...]) -> Array:
    """What dropout keeps, as booleans where `like` lies: the same for the same draw (seed, call) on every device."""
    return backends.backend_of(like).asarray(random.keep_mask(seed, call, p, shape))


mask = Primitive("dropout_mask", "nn.dropout", _mask)


@op(cast=Cast.KEEP, integers="refuse")
def dropout_(input: Array, p, seed, call, shape=None):
    """`dropout` with the draw named by (seed, call): the same elements every time; shape: of the mask, input's own."""
    keep = mask(input, p, seed, call, shape or input.shape)
    return apply_mask(input, keep, p), Saved(keep=keep)


@dropout_.backward
def dropout_backward(dy, saved, needs, p, seed, call, shape):
    return apply_mask(dy, saved.keep, p)


def apply_mask(values: Any, keep: Any, p: float) -> Any:
    """What dropout with probability p makes of `values`, given what it keeps."""
    # A product, so that NaN stays NaN.
    out = values * keep
    out *= dropout_scale(p)
    return out


def dropout_scale(p: float) -> float:
    """By how much what dropout keeps is multiplied."""
    return 0.0 if p == 1 else 1 / (1 - p)
