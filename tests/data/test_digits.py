"""The handwritten digits: their numbers, their split."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ampkit.base.errors import ArgumentError
from ampkit.data import digits


def test_the_parts_have_their_sizes_shapes_and_dtypes():
    for split, count in (("train", 1437), ("test", 360)):
        images, labels = digits.load(split)
        assert images.shape == (count, 1, 8, 8)
        assert labels.shape == (count,)
        assert images.dtype == np.float32
        assert labels.dtype == np.int64


def test_pixels_are_sixteenths_from_0_to_1():
    images, _ = digits.load("train")
    assert set(np.unique(images * 16)) == set(range(17))


def test_the_split_is_stratified():
    _, train = digits.load("train")
    _, test = digits.load("test")
    counts = np.bincount(train, minlength=10) + np.bincount(test, minlength=10)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.abs(np.bincount(test, minlength=10) - counts / 5).max() < 1


def test_both_parts_together_are_the_published_numbers():
    # The sum of all pixels of UCI's file, and every image exactly once.
    images = np.concatenate([digits.load("train")[0], digits.load("test")[0]])
    assert (images * 16).sum(dtype=np.float64) == 561718
    assert len(images) == 1797


def test_the_split_never_changes():
    _, labels = digits.load("test")
    assert hashlib.sha256(labels.astype(np.uint8).tobytes()).hexdigest()[:16] == "096730062b689af3"


def test_no_test_image_is_trained_on():
    train = {image.tobytes() for image in digits.load("train")[0]}
    assert not any(image.tobytes() in train for image in digits.load("test")[0])


def test_an_unknown_part_is_refused():
    with pytest.raises(ArgumentError, match="split 'train' or 'test', got 'valid'"):
        digits.load("valid")
