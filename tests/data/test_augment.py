"""Augmentation: what it does to an image, and that (seed, epoch, index) alone decides it."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit.base.errors import ShapeError
from ampkit.data import augment
from ampkit.data.augment import AugmentedImages
from ampkit.utils.data import DataLoader, Subset

IMAGES = np.random.RandomState(0).randint(1, 256, (40, 3, 6, 5)).astype(np.uint8)
LABELS = np.arange(40)


def by_hand(draws):
    """Draws as integers of Python."""
    return [[int(word) for word in row] for row in draws]


def test_draws_belong_to_an_index_whatever_stands_around_it():
    whole = augment.draws(3, 5, range(40))
    some = [31, 2, 2, 39, 0]
    np.testing.assert_array_equal(augment.draws(3, 5, some), whole[some])
    assert whole.shape == (40, 4)
    assert len(np.unique(whole)) == 160


@pytest.mark.parametrize(("seed", "epoch"), [(4, 5), (3, 6), (2**63, 5)])
def test_another_seed_or_epoch_draws_other_words(seed, epoch):
    assert not np.isin(augment.draws(seed, epoch, range(9)), augment.draws(3, 5, range(9))).any()


def test_a_crop_is_the_window_that_the_words_say():
    draws = augment.draws(0, 0, range(40))
    cropped = augment.crop(IMAGES, draws, 2)
    for image, found, words in zip(IMAGES, cropped, by_hand(draws), strict=True):
        row, column = (words[0] & 0xFFFFFFFF) % 5, (words[0] >> 32) % 5
        padded = np.zeros((3, 10, 9), np.uint8)
        padded[:, 2:8, 2:7] = image
        np.testing.assert_array_equal(found, padded[:, row : row + 6, column : column + 5])


def test_every_place_of_a_crop_comes_up_about_equally_often():
    image = np.zeros((2500, 1, 5, 5), np.uint8)
    image[:, 0, 2, 2] = 1
    places = augment.crop(image, augment.draws(1, 0, range(2500)), 2).sum(0)[0]
    assert places.sum() == 2500
    assert (abs(places.astype(int) - 100) < 45).all()  # 4.6 standard deviations of a binomial share of 1/25


def test_half_of_the_images_are_mirrored_left_for_right():
    flipped = augment.flip(IMAGES, augment.draws(0, 0, range(40)))
    mirrored = [(found == image[..., ::-1]).all() for image, found in zip(IMAGES, flipped, strict=True)]
    for image, found, turned in zip(IMAGES, flipped, mirrored, strict=True):
        assert turned or (found == image).all()
    assert 10 < sum(mirrored) < 30


@pytest.mark.parametrize("size", [1, 2, 3])
def test_cutout_sets_a_square_around_the_drawn_pixel_to_zero(size):
    draws = augment.draws(0, 0, range(40))
    found = augment.cutout(IMAGES.astype(np.float32), draws, size)
    assert found.dtype == np.float32
    for image, cut, words in zip(IMAGES, found, by_hand(draws), strict=True):
        top, left = words[2] % 6 - size // 2, words[3] % 5 - size // 2
        expected = image.astype(np.float32)
        expected[:, max(top, 0) : top + size, max(left, 0) : left + size] = 0
        np.testing.assert_array_equal(cut, expected)


def test_normalize_is_its_formula_in_float32():
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.3, 0.4)
    found = augment.normalize(IMAGES, mean, std)
    exact = (IMAGES / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, atol=1e-6)
    one = augment.normalize(IMAGES, (0.5,), (0.25,))
    np.testing.assert_allclose(one, (IMAGES / 255 - 0.5) / 0.25, atol=1e-6)


def pictures(**words):
    return AugmentedImages(IMAGES, LABELS, (0.5,), (0.25,), seed=7, **{"crop": 2, "flip": True, "cutout": 3, **words})


def by_label(loader):
    return {int(y): x.tobytes() for batch in loader for x, y in zip(batch[0].numpy(), batch[1].numpy(), strict=True)}


def test_an_image_is_changed_alike_in_any_batch_and_on_any_thread():
    loaders = [
        DataLoader(pictures(), 7, shuffle=True),
        DataLoader(pictures(), 3),
        DataLoader(pictures(), 16, num_workers=3),
        DataLoader(Subset(pictures(), list(range(40))), 8),
    ]
    first, *others = map(by_label, loaders)
    assert all(other == first for other in others)
    assert pictures()[11][0].numpy().tobytes() == first[11]


def test_each_epoch_changes_the_images_anew_and_a_resumed_one_as_the_first_time():
    loader = DataLoader(pictures(), 8, num_workers=2)
    epochs = [by_label(loader) for _ in range(3)]
    assert epochs[0][5] != epochs[1][5] != epochs[2][5]
    resumed = DataLoader(pictures(), 8)
    resumed.load_state_dict({"draw": None, "epoch": 2, "position": 0, "batches": 5})
    assert by_label(resumed) == epochs[2]


def test_without_a_change_pictures_are_normalized_and_no_more():
    images, labels = pictures(crop=0, flip=False, cutout=0).batch([3, 1])
    np.testing.assert_allclose(images.numpy(), (IMAGES[[3, 1]] / 255 - 0.5) / 0.25, atol=1e-6)
    assert labels.numpy().tolist() == [3, 1]
    assert labels.dtype == np.int64


def test_an_item_is_a_picture_and_its_label():
    image, label = pictures()[-1]
    assert (tuple(image.shape), label.item(), len(pictures())) == ((3, 6, 5), 39, 40)
    with pytest.raises(IndexError):
        pictures()[40]


def test_pictures_need_a_label_each():
    with pytest.raises(ShapeError, match="AugmentedImages: needs a label for each of 40 images, got 39"):
        AugmentedImages(IMAGES, LABELS[1:])
