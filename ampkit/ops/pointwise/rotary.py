"""Rotary position embedding: pairs of channels, turned by angles that grow with the position."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError
from ampkit.core.op import Array, Saved, op
from ampkit.core.policy import Cast

__all__ = ["rotary_embedding"]


@op(cast=Cast.KEEP, integers="refuse")
def rotary_embedding(input: Array, cos: Array, sin: Array, interleaved=False):
    """Queries or keys with each pair of channels turned by the angle of its position, in float32, rounded once.

    input [..., positions, width], cos and sin [..., positions, pairs], broadcast -> [..., positions, width] in input's
    dtype. Pair i has the channels i and pairs + i, or with interleaved 2 i and 2 i + 1: (a, b) becomes
    (a cos - b sin, b cos + a sin). Channels from 2 pairs on stay as they are.
    Raises ShapeError where there are more pairs than channels for them, or shapes do not broadcast.
    Su et al. 2021, arXiv:2104.09864, eq. 34.
    """
    return _turned(input, cos, sin, interleaved), Saved(input=input, cos=cos, sin=sin)


@rotary_embedding.check
def rotary_embedding_check(input, cos, sin, interleaved):
    fits = 1 <= cos.ndim <= input.ndim and cos.shape == sin.shape and 2 * cos.shape[-1] <= input.shape[-1]
    if not fits or any(n not in (1, m) for n, m in zip(cos.shape[-2::-1], input.shape[-2::-1], strict=False)):
        needs = "cos and sin [..., pairs] that broadcast to input [..., 2 pairs or more]"
        raise ShapeError("rotary_embedding", needs, f"{cos.shape} and {sin.shape} for {input.shape}")


@rotary_embedding.backward(input="cos sin")
def rotary_embedding_backward(dy, saved, needs, interleaved):
    dx = _turned(dy, saved.cos, -saved.sin, interleaved) if needs[0] is not None else None
    if needs[1] is None and needs[2] is None:
        return dx, None, None
    pairs = saved.cos.shape[-1]
    (da, db), (a, b) = _parts(dy, pairs, interleaved), _parts(saved.input, pairs, interleaved)
    return dx, da * a + db * b, db * a - da * b


def _parts(values: Any, pairs: int, interleaved: bool) -> tuple[Any, Any]:
    """The first and the second channels of the pairs."""
    if interleaved:
        return values[..., : 2 * pairs : 2], values[..., 1 : 2 * pairs : 2]
    return values[..., :pairs], values[..., pairs : 2 * pairs]


def _turned(values: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    pairs = cos.shape[-1]
    a, b = _parts(values, pairs, interleaved)
    turned: tuple[Any, ...] = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        turned = (np.stack(turned, -1).reshape(*values.shape[:-1], 2 * pairs),)
    return np.concatenate((*turned, values[..., 2 * pairs :]), -1)
