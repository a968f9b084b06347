"""Seeded data for benches: images and token sequences that a model can learn from, of any size."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from ..core import random
from ..core.errors import ArgumentError

_STEPS = 3  # token i+1 is token i plus 1, 2 or 3
LEAST_VOCABULARY = _STEPS + 1


def images(
    count: int, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Noise around one random picture per class.

    -> (images [count, *shape] float32, labels [count] int64 in 0..classes-1); both are standard normal.
    Raises ArgumentError for sizes below 1.
    """
    _need("synthetic.images", 1, count=count, classes=classes, shape=prod(shape))
    draw = random.generator(seed, 0)
    pictures = draw.standard_normal((classes, *shape), np.float32)
    labels = draw.integers(classes, size=count)
    values = draw.standard_normal((count, *shape), np.float32)
    values += pictures[labels]
    return values, labels


def tokens(
    count: int, context: int, vocabulary: int = 256, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random walks over the vocabulary: each token is the one before plus 1, 2 or 3, modulo `vocabulary`.

    -> (inputs [count, context] int64, targets [count, context] int64), targets one token ahead. The best
    cross-entropy in reach is ln 3 = 1.0986 nats per token.
    Raises ArgumentError for sizes below 1, or a vocabulary below 4.
    """
    _need("synthetic.tokens", 1, count=count, context=context)
    _need("synthetic.tokens", LEAST_VOCABULARY, vocabulary=vocabulary)
    draw = random.generator(seed, 0)
    steps = draw.integers(1, _STEPS + 1, size=(count, context + 1))
    steps[:, 0] = draw.integers(vocabulary, size=count)
    walk = steps.cumsum(axis=1) % vocabulary
    return walk[:, :-1], walk[:, 1:]


def _need(where: str, least: int, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < least:
            raise ArgumentError(where, f"{name} of at least {least}", str(size))
