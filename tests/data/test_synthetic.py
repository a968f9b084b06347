"""Synthetic data: sizes, seeds, and that there is something to learn."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit.core.errors import ArgumentError
from ampkit.data import synthetic


def test_images_have_their_shape_and_dtypes():
    images, labels = synthetic.images(12, (1, 4, 5), classes=3)
    assert (images.shape, images.dtype) == ((12, 1, 4, 5), np.float32)
    assert (labels.shape, labels.dtype) == ((12,), np.int64)
    assert set(labels) <= {0, 1, 2}


def test_images_of_a_class_share_a_picture():
    images, labels = synthetic.images(2000, (1, 6, 6), classes=2)
    means = [images[labels == label].mean(0) for label in (0, 1)]
    held_out, wanted = synthetic.images(2000, (1, 6, 6), classes=2)
    distances = np.stack([((held_out - mean) ** 2).sum((1, 2, 3)) for mean in means])
    assert (distances.argmin(0) == wanted).mean() > 0.95


@pytest.mark.parametrize(
    "make", [lambda seed: synthetic.images(4, seed=seed), lambda seed: synthetic.tokens(4, 8, seed=seed)]
)
def test_the_seed_fixes_the_data(make):
    assert np.array_equal(make(1)[0], make(1)[0])
    assert not np.array_equal(make(1)[0], make(2)[0])


def test_each_token_follows_from_the_one_before_by_1_2_or_3():
    inputs, targets = synthetic.tokens(50, 40, vocabulary=7)
    assert inputs.shape == targets.shape == (50, 40)
    assert inputs.dtype == targets.dtype == np.int64
    assert set(((targets - inputs) % 7).ravel()) == {1, 2, 3}
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert set(inputs.ravel()) == set(range(7))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: synthetic.images(0), "count of at least 1, got 0"),
        (lambda: synthetic.images(1, (3, 0, 2)), "shape of at least 1, got 0"),
        (lambda: synthetic.tokens(1, 0), "context of at least 1, got 0"),
        (lambda: synthetic.tokens(1, 1, vocabulary=3), "vocabulary of at least 4, got 3"),
    ],
)
def test_sizes_below_the_least_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
