"""Synthetic data: sizes, seeds, and that there is something to learn."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit.base.errors import ArgumentError
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
    "make",
    [
        lambda seed: synthetic.images(4, seed=seed),
        lambda seed: synthetic.tokens(4, 8, seed=seed),
        lambda seed: synthetic.masked_tokens(4, 8, seed=seed),
        lambda seed: synthetic.maps(4, seed=seed),
        lambda seed: synthetic.speech(4, 1, 160, 10, seed=seed),
    ],
)
def test_the_seed_fixes_the_data(make):
    assert np.array_equal(make(1)[0], make(1)[0])
    assert not np.array_equal(make(1)[0], make(2)[0])


def test_each_token_follows_from_the_one_before_by_1_2_or_3():
    inputs, targets = synthetic.tokens(50, 40, vocab_size=7)
    assert inputs.shape == targets.shape == (50, 40)
    assert inputs.dtype == targets.dtype == np.int64
    assert set(((targets - inputs) % 7).ravel()) == {1, 2, 3}
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert set(inputs.ravel()) == set(range(7))


def test_hidden_tokens_are_a_share_of_each_sequence_and_the_others_are_a_walk():
    inputs, labels = synthetic.masked_tokens(400, 40, vocab_size=12)
    assert inputs.shape == labels.shape == (400, 40)
    assert inputs.dtype == labels.dtype == np.int64
    hidden = labels != synthetic.IGNORED
    assert set(hidden.sum(1)) == {6}  # 15 % of 40
    walk = np.where(hidden, labels, inputs)
    assert set((np.diff(walk - 2, axis=1) % 10).ravel()) == {1, 2, 3}
    assert set(walk.ravel()) == set(range(2, 12))
    masked, kept = (inputs == synthetic.MASK)[hidden], (inputs == labels)[hidden]
    assert not (inputs == synthetic.MASK)[~hidden].any()
    assert 0.77 < masked.mean() < 0.83
    assert 0.09 < kept.mean() < 0.13  # a tenth stay, and a tenth of another tenth happen to


def test_a_sequence_of_one_token_has_one_to_guess():
    assert (synthetic.masked_tokens(5, 1)[1] != synthetic.IGNORED).all()


def test_pixels_of_a_class_share_a_color_and_every_class_occurs():
    images, labels = synthetic.maps(60, (3, 16, 20), classes=5)
    assert (images.shape, images.dtype) == ((60, 3, 16, 20), np.float32)
    assert (labels.shape, labels.dtype) == ((60, 16, 20), np.int64)
    assert set(labels.ravel()) == set(range(5))
    pixels = np.moveaxis(images, 1, 3)
    spread = [pixels[labels == label].std(0) for label in range(5)]
    np.testing.assert_allclose(spread, 0.5, rtol=0.05)
    assert (labels.reshape(60, -1) == 0).any(1).mean() > 0.5  # a background in most of them


def test_each_letter_has_a_spectrum_of_its_own_and_silence_before_it():
    sounds, lengths, letters, counts = synthetic.speech(60, 8, 96, 3, classes=4)
    assert (sounds.shape, sounds.dtype) == ((60, 8, 96), np.float32)
    assert letters.dtype == counts.dtype == lengths.dtype == np.int64
    assert letters.shape == (60, counts.max())
    assert np.array_equal(letters > 0, np.arange(counts.max()) < counts[:, None])
    assert set(letters.ravel()) == set(range(4))
    assert (6 * counts <= lengths).all()
    assert (lengths <= 12 * counts).all()
    assert lengths.min() < 60 < lengths.max() <= 96
    inside = np.arange(96) < lengths[:, None]
    assert not np.moveaxis(sounds, 1, 2)[~inside].any()
    first = np.moveaxis(sounds, 1, 2)[:, :3], np.moveaxis(sounds, 1, 2)[:, 3:6]
    np.testing.assert_allclose((first[0].mean(), first[0].std()), (0, 0.5), atol=0.05)
    spread = [first[1][letters[:, 0] == letter].std((0, 1)) for letter in (1, 2, 3)]
    np.testing.assert_allclose(np.mean(spread, 1), 0.5, rtol=0.1)


def test_letters_of_a_waveform_are_tones():
    sounds, _, letters, _ = synthetic.speech(4, 1, 6400, 400, classes=3)
    assert sounds.shape == (4, 1, 6400)
    for number, letter in enumerate(letters[:, 0]):
        tone = np.abs(np.fft.rfft(sounds[number, 0, 400:800])).argmax()
        assert tone == pytest.approx(400 / 16 * letter / 3, abs=1)


def test_letters_of_a_sound_are_those_of_its_steps_of_time_in_order():
    spectra, said = np.zeros((5, 6)), []
    sounds, lengths, letters, counts = synthetic.speech(200, 6, 32, 1, classes=5)
    for letter in range(1, 5):  # a letter's mean where it comes first, after its silence
        spectra[letter] = sounds[letters[:, 0] == letter, :, 1].mean(0)
    distances = ((sounds[:, None] - spectra[None, :, :, None]) ** 2).sum(2)
    for row, length in zip(distances.argmin(1), lengths, strict=True):
        said.append([a for a, b in zip(row[:length], [0, *row[: length - 1]], strict=True) if a and a != b])
    right = [list(row[:count]) == found for row, count, found in zip(letters, counts, said, strict=True)]
    assert np.mean(right) > 0.3  # noise exchanges some steps


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: synthetic.masked_tokens(1, 4, vocab_size=5), "vocab_size of at least 6, got 5"),
        (lambda: synthetic.masked_tokens(1, 0), "length of at least 1, got 0"),
        (lambda: synthetic.maps(1, (3, 0, 2)), "shape of at least 1, got 0"),
        (lambda: synthetic.speech(1, 1, 10, 0), "step of at least 1, got 0"),
        (lambda: synthetic.speech(1, 1, 15, 2), "length of at least 16, got 15"),
        (lambda: synthetic.speech(1, 1, 32, 2, 1), "classes of at least 2, got 1"),
        (lambda: synthetic.images(0), "count of at least 1, got 0"),
        (lambda: synthetic.images(1, (3, 0, 2)), "shape of at least 1, got 0"),
        (lambda: synthetic.tokens(1, 0), "block_size of at least 1, got 0"),
        (lambda: synthetic.tokens(1, 1, vocab_size=3), "vocab_size of at least 4, got 3"),
    ],
)
def test_sizes_below_the_least_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
