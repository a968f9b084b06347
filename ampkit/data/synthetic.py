"""Seeded synthetic data of any size for benchmarks: images, tokens, segmentation maps and speech, all learnable."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError
from ..base.limits import Classes, Fraction, ImageShape, Items, Length, Seed, Size
from ..base.registry import register_dataset
from ..core import random
from ..models.wav2letter import Wav2Letter

_STEPS = 3  # token i+1 is token i plus 1, 2 or 3
LEAST_VOCABULARY = _STEPS + 1
MASK = 1  # the token that replaces one to predict; 0 is padding, which does not occur
LEAST_MASKED_VOCABULARY = LEAST_VOCABULARY + MASK + 1
IGNORED = -100  # the label of a token that is not to be predicted: cross_entropy's ignore_index


def images(
    count: Items = 2048, shape: ImageShape = (3, 32, 32), classes: Classes = 10, seed: Seed = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Standard normal noise around one random image per class.

    -> (images [count, *shape] float32, labels [count] int64 in 0..classes-1); both are standard normal.
    count: images. shape: channels, height and width. classes: of the labels. seed: of the random draws.
    Raises ArgumentError for sizes below 1.
    """
    _need_at_least("synthetic.images", 1, count=count, classes=classes, shape=prod(shape))
    draw = random.generator(seed, 0)
    means = draw.standard_normal((classes, *shape), np.float32)
    labels = draw.integers(classes, size=count)
    values = draw.standard_normal((count, *shape), np.float32)
    values += means[labels]
    return values, labels


def tokens(
    count: Items = 2048, block_size: Length = 128, vocab_size: Size = 256, seed: Seed = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random walks over the vocabulary: each token is the one before plus 1, 2 or 3, modulo `vocab_size`.

    -> (inputs [count, block_size] int64, targets [count, block_size] int64), targets one token ahead. The lowest
    cross-entropy that a model can reach is ln 3 = 1.0986 nats per token. count: sequences. seed: of the random draws.
    Raises ArgumentError for sizes below 1, or a vocab_size below 4.
    """
    _need_at_least("synthetic.tokens", 1, count=count, block_size=block_size)
    _need_at_least("synthetic.tokens", LEAST_VOCABULARY, vocab_size=vocab_size)
    walk = _walks(random.generator(seed, 0), count, block_size + 1, vocab_size)
    return walk[:, :-1], walk[:, 1:]


def masked_tokens(
    count: Items = 2048, length: Length = 128, vocab_size: Size = 256, seed: Seed = 0, fraction: Fraction = 0.15
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The random walks of `tokens` with some tokens masked, to be predicted from both sides.

    -> (inputs [count, length] int64, labels [count, length] int64: the original token where it is to be predicted, else
    -100). In each sequence `fraction` of the tokens, at least one, are to be predicted: 80 % of these are replaced by
    MASK, 10 % by a random token (Devlin et al. 2018, arXiv:1810.04805, section 3.1). The walks do not contain tokens 0
    and 1, padding and MASK.
    count: sequences. length: tokens of each. seed: of the random draws. fraction: of tokens that are to be predicted.
    Raises ArgumentError for sizes below 1, or a vocab_size below 6.
    """
    _need_at_least("synthetic.masked_tokens", 1, count=count, length=length)
    _need_at_least("synthetic.masked_tokens", LEAST_MASKED_VOCABULARY, vocab_size=vocab_size)
    draw, first = random.generator(seed, 0), MASK + 1
    walk = _walks(draw, count, length, vocab_size - first) + first
    positions = draw.random((count, length)).argsort(axis=1)[:, : max(1, round(length * fraction))]
    chosen = np.take_along_axis(walk, positions, 1)
    choice, other = draw.random(chosen.shape), draw.integers(first, vocab_size, size=chosen.shape)
    shown = np.where(choice < 0.8, MASK, np.where(choice < 0.9, other, chosen))
    inputs, labels = walk.copy(), np.full_like(walk, IGNORED)
    np.put_along_axis(inputs, positions, shown, 1)
    np.put_along_axis(labels, positions, chosen, 1)
    return inputs, labels


def maps(
    count: Items = 256, shape: ImageShape = (3, 64, 64), classes: Classes = 21, seed: Seed = 0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rectangles of random classes on a background of class 0, each class in its own color, plus noise.

    -> (images [count, *shape] float32, the class of each pixel [count, h, w] int64 in 0..classes-1).
    count: images. shape: channels, height and width. classes: of the pixels. seed: of the random draws.
    Raises ArgumentError for sizes below 1.
    """
    _need_at_least("synthetic.maps", 1, count=count, classes=classes, shape=prod(shape))
    draw, (channels, height, width) = random.generator(seed, 0), shape
    labels = np.zeros((count, height, width), np.int64)
    for _ in range(_RECTANGLES):
        rows, columns = (_random_interval_masks(draw, count, length) for length in (height, width))
        inside = rows[:, :, None] & columns[:, None, :]
        labels = np.where(inside, draw.integers(classes, size=(count, 1, 1)), labels)
    colors = draw.standard_normal((classes, channels), np.float32)
    noise = draw.standard_normal((count, *shape), np.float32)
    return np.ascontiguousarray(np.moveaxis(colors[labels], 3, 1)) + np.float32(0.5) * noise, labels


_RECTANGLES = 4


class Speech(NamedTuple):
    """Sounds and their transcriptions, both padded with zeros.

    sounds [count, features, length] float32. lengths [count] int64: the length of each sound. letters
    [count, longest] int64: the classes of each transcription, from 1; 0 is the blank. counts [count] int64: the number
    of letters of each.
    """

    sounds: NDArray[np.float32]
    lengths: NDArray[np.int64]
    letters: NDArray[np.int64]
    counts: NDArray[np.int64]


def speech(count: int, features: int, length: int, step: int, classes: int = 40, seed: int = 0) -> Speech:
    """Random sequences of letters 1 to classes - 1 as sounds: a tone per letter, or with features > 1 a spectrum.

    step: samples of a sound per time step of the model's output. A letter takes 2 to 4 of these steps, the first of
    them silent, so that repeated letters are told apart. Sounds have from half of `length` to all of it, plus noise.
    Raises ArgumentError for sizes below 1, fewer than 2 classes, and a length below 8 steps.
    """
    _need_at_least("synthetic.speech", 1, count=count, features=features, step=step)
    _need_at_least("synthetic.speech", 2, classes=classes)
    _need_at_least("synthetic.speech", 2 * _LONGEST * step, length=length)
    draw, steps = random.generator(seed, 0), length // step
    ends = draw.integers(_SHORTEST, _LONGEST + 1, size=(count, steps)).cumsum(axis=1)
    counts = (ends <= draw.integers(steps // 2, steps + 1, size=(count, 1))).sum(axis=1)
    letters = draw.integers(1, classes, size=(count, steps))
    letters[np.arange(steps) >= counts[:, None]] = 0
    lengths = np.take_along_axis(ends, counts[:, None] - 1, 1)[:, 0] * step
    letter_at = np.zeros((count, length), np.int64)
    letter_at[:, : steps * step] = np.repeat(_letter_per_step(letters, ends), step, axis=1)
    values = _synthesize(draw, letter_at, features, classes)
    values = values + 0.5 * draw.standard_normal((count, features, length), np.float32)
    inside = np.arange(length) < lengths[:, None]
    return Speech(np.where(inside[:, None], values, 0).astype(np.float32), lengths, letters[:, : counts.max()], counts)


_SHORTEST, _LONGEST = 2, 4  # time steps that a letter takes


def _letter_per_step(letters: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The letter at each time step; 0 in the first step of a letter and after the last. [n, steps] -> [n, steps]."""
    steps = letters.shape[1]
    begins = np.zeros((len(letters), ends.max() + 1), np.int64)
    np.put_along_axis(begins, ends, 1, 1)
    begins[:, 0] = 1
    number = begins[:, :steps].cumsum(axis=1) - 1
    return np.where(begins[:, :steps] == 1, 0, np.take_along_axis(letters, number, 1))


def _synthesize(
    draw: np.random.Generator, letters: NDArray[np.int64], features: int, classes: int
) -> NDArray[np.floating]:
    """[n, length] letters -> [n, features, length]; silence is 0."""
    if features > 1:
        spectra = draw.standard_normal((classes, features), np.float32)
        spectra[0] = 0
        return np.moveaxis(spectra[letters], 2, 1)
    angles = np.pi / 8 * letters / classes  # evenly spaced frequencies, up to an eighth of the Nyquist frequency
    return (np.sqrt(2) * np.sin(angles.cumsum(axis=1)) * (letters > 0))[:, None]


def _walks(draw: np.random.Generator, count: int, length: int, vocabulary: int) -> NDArray[np.int64]:
    steps = draw.integers(1, _STEPS + 1, size=(count, length))
    steps[:, 0] = draw.integers(vocabulary, size=count)
    walks: NDArray[np.int64] = steps.cumsum(axis=1) % vocabulary
    return walks


def _random_interval_masks(draw: np.random.Generator, count: int, length: int) -> NDArray[np.bool_]:
    """Random intervals of a quarter to a half of `length`, as masks. -> [count, length] bool."""
    size = draw.integers(max(1, length // 4), length // 2 + 2, size=(count, 1))
    first = (draw.random((count, 1)) * (length - size + 1)).astype(np.int64)
    at = np.arange(length)
    return (at >= first) & (at < first + size)


def _need_at_least(where: str, least: int, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < least:
            raise ArgumentError(where, f"{name} of at least {least}", str(size))


def recordings(
    count: Items = 512,
    length: Length = 16000,
    classes: Classes = 40,
    seed: Seed = 0,
    *,
    input_type: str = "waveform",
    num_features: Size = 1,
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Synthetic speech for a Wav2Letter, see `speech`.

    -> (sounds, the model's output length for each [count] int64, letters, the number of letters of each).
    count: recordings. length: samples of the longest recording, or its time steps of features. classes: the blank and
    the letters. seed: of the random draws.
    """
    sizes = count, num_features, length, Wav2Letter.step(input_type), classes
    sounds, lengths, letters, counts = speech(*sizes, seed)
    steps = np.array([Wav2Letter.frames(each, input_type) for each in lengths.tolist()])
    return sounds, steps, letters, counts


register_dataset("synthetic_images", images, "images", "generated", defaults={"batch_size": 32})
register_dataset(
    "synthetic_tokens",
    tokens,
    "tokens",
    "generated",
    from_model=("block_size", "vocab_size"),
    defaults={"batch_size": 12},
    constants={"least_vocab": LEAST_VOCABULARY},
)
register_dataset(
    "synthetic_masked",
    masked_tokens,
    "masked tokens",
    "generated",
    from_model=("vocab_size",),
    defaults={"batch_size": 16},
    constants={"least_vocab": LEAST_MASKED_VOCABULARY},
)
register_dataset("synthetic_maps", maps, "pixel labels", "generated", defaults={"batch_size": 8})
register_dataset(
    "synthetic_speech",
    recordings,
    "speech",
    "generated",
    from_model=("input_type", "num_features"),
    defaults={"batch_size": 8},
)
