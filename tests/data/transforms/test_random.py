"""Random changes: which numbers they draw, how often, and that the same draw repeats them."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, ops
from ampkit.base.errors import ArgumentError, RangeError, ShapeError
from ampkit.data import transforms

IMAGE = np.random.RandomState(0).randint(0, 256, (3, 30, 40)).astype(np.uint8)
BATCH = np.random.RandomState(1).random_sample((5, 3, 8, 10)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1, 3])
pytestmark = pytest.mark.cpu


def draw(seed=0):
    return np.random.default_rng(seed)


def test_windows_have_the_area_and_the_ratio_that_were_asked_for():
    crop, numbers = transforms.RandomResizedCrop(8, (0.1, 0.4), (0.5, 2.0)), draw()
    windows = np.array([crop.window(400, 400, numbers) for _ in range(2000)])  # of which each fits
    height, width = windows[:, 3] - windows[:, 1], windows[:, 2] - windows[:, 0]
    assert (windows >= 0).all()
    assert (windows[:, 2:] <= 400).all()
    area, ratio = height * width / 160000, np.log2(width / height)
    np.testing.assert_allclose(np.quantile(area, [0, 0.25, 0.5, 0.75, 1]), [0.1, 0.175, 0.25, 0.325, 0.4], atol=0.02)
    np.testing.assert_allclose(np.quantile(ratio, [0, 0.25, 0.5, 0.75, 1]), [-1, -0.5, 0, 0.5, 1], atol=0.1)
    place = windows[:, 0] / (400 - width)
    np.testing.assert_allclose(np.quantile(place, [0, 0.25, 0.5, 0.75, 1]), [0, 0.25, 0.5, 0.75, 1], atol=0.04)


@pytest.mark.parametrize(("size", "window"), [((10, 500), (243, 0, 256, 10)), ((500, 10), (0, 243, 10, 256))])
def test_where_no_window_fits_it_is_torchvisions_in_the_middle(size, window):
    assert transforms.RandomResizedCrop(8, (1.0, 1.0)).window(*size, draw()) == window


def test_erased_rectangles_are_smaller_than_the_image_and_have_the_share_that_was_asked_for():
    erasing, numbers = transforms.RandomErasing(1.0, (0.1, 0.3), (0.5, 2.0), value=7.0), draw()
    shares = []
    for _ in range(300):
        erased = erasing.apply(np.zeros((2, 30, 40), np.float32), numbers)
        assert (erased[0] == erased[1]).all()
        rows, columns = np.nonzero(erased[0])
        assert (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1) == len(rows)
        assert set(np.unique(erased)) == {0, 7}
        shares.append(len(rows) / 1200)
    assert 0.09 < min(shares) < 0.12
    assert 0.28 < max(shares) < 0.32


def test_a_share_p_of_the_images_is_erased_and_none_is_written_to():
    image = np.ones((3, 8, 8), np.float32)
    erased = [(transforms.RandomErasing(0.25).apply(image, draw(i)) == 0).any() for i in range(400)]
    assert 60 < sum(erased) < 140
    assert (image == 1).all()


def test_half_of_the_images_are_mirrored():
    flipped = [transforms.RandomHorizontalFlip().apply(np.moveaxis(IMAGE, 0, 2), draw(i)) for i in range(200)]
    mirrored = [np.array_equal(each, np.moveaxis(IMAGE, 0, 2)[:, ::-1]) for each in flipped]
    assert 70 < sum(mirrored) < 130


def test_every_operation_comes_up_as_often_as_the_others():
    pytest.importorskip("PIL.Image", reason="operations are Pillow's")
    augment = transforms.TrivialAugmentWide()
    names = [augment._random_operation(numbers).name for numbers in [draw()] for _ in range(2800)]
    counts = [names.count(operation.name) for operation in augment.OPERATIONS]
    assert len(counts) == 14
    assert 140 < min(counts) <= max(counts) < 265  # 4.5 standard deviations around 200


@pytest.mark.parametrize(
    "transform",
    [
        transforms.RandAugment(),
        transforms.TrivialAugmentWide(),
        transforms.ColorJitter(0.5, 0.5, 0.5, 0.2),
        transforms.RandomResizedCrop(16),
        transforms.RandomErasing(1.0),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_seed_repeats_a_random_change(transform):
    pytest.importorskip("PIL.Image", reason="most of them are Pillow's")
    ampkit.manual_seed(3)
    first = [transform(Tensor(IMAGE)).numpy() for _ in range(6)]
    ampkit.manual_seed(3)
    assert all(np.array_equal(transform(IMAGE), each) for each in first)
    assert len({each.tobytes() for each in first}) > 3


def test_images_and_labels_are_mixed_with_those_before_by_the_same_share():
    images, labels = transforms.MixUp(alpha=0.4, num_classes=4).apply(BATCH, LABELS, draw(5))
    share = draw(5).beta(0.4, 0.4)
    np.testing.assert_allclose(images, share * BATCH + (1 - share) * BATCH[[4, 0, 1, 2, 3]], rtol=1e-5)
    one_hot = np.eye(4)[LABELS]
    np.testing.assert_allclose(labels, share * one_hot + (1 - share) * one_hot[[4, 0, 1, 2, 3]], rtol=1e-5)
    assert (images.dtype, labels.dtype) == (np.float32, np.float32)


def test_a_rectangle_of_the_image_before_is_cut_in_and_its_area_mixes_the_labels():
    before = BATCH[[4, 0, 1, 2, 3]]
    kept = []
    for seed in range(50):
        images, labels = transforms.CutMix(num_classes=4).apply(BATCH, LABELS, draw(seed))
        own, other = (images == BATCH).all((0, 1)), (images == before).all((0, 1))
        assert (own | other).all()
        rows, columns = np.nonzero(other)
        if len(rows):
            assert (np.ptp(rows) + 1) * (np.ptp(columns) + 1) == len(rows)
        share = own.mean()
        kept.append(share)
        np.testing.assert_allclose(labels, share * np.eye(4)[LABELS] + (1 - share) * np.eye(4)[LABELS[[4, 0, 1, 2, 3]]])
    assert max(kept) == 1
    assert min(kept) < 0.5


def test_mixed_labels_are_the_targets_of_a_loss():
    ampkit.manual_seed(0)
    images, labels = transforms.MixUp(num_classes=4)(Tensor(BATCH), Tensor(LABELS))
    logits = ops.zeros(5, 4)
    assert ops.cross_entropy(logits, labels).item() == pytest.approx(np.log(4))
    again = transforms.CutMix()(images, labels)[1].numpy()
    np.testing.assert_allclose(again.sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("error", "words", "images", "labels", "message"),
    [
        (ArgumentError, {}, BATCH, LABELS, r"MixUp: needs num_classes for labels \[b\]"),
        (RangeError, {"num_classes": 3}, BATCH, LABELS, "MixUp: needs labels from 0 to 2, got 0 to 3"),
        (ShapeError, {"num_classes": 4}, BATCH[0], LABELS, r"needs images \[b, c, h, w\] of a floating dtype"),
        (ShapeError, {"num_classes": 4}, BATCH, LABELS[1:], "and 4"),
        (ShapeError, {"num_classes": 4}, IMAGE[None], LABELS[:1], "got uint8"),
    ],
)
def test_a_batch_that_cannot_be_mixed_is_refused(error, words, images, labels, message):
    with pytest.raises(error, match=message):
        transforms.MixUp(**words)(images, labels)
