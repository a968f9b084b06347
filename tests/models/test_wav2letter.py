"""Wav2Letter: lengths, that it learns, dtypes, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import models, optim, tensor
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, ShapeError
from ampkit.core import random
from ampkit.core.policy import autocast

RNG = np.random.default_rng(0)


def sound(*shape):
    return tensor(RNG.standard_normal(shape).astype(np.float32))


def test_waves_become_log_probabilities_at_a_320th_of_their_rate():
    model = models.Wav2Letter(5, width=4, wide=6)
    y = model(sound(2, 1, 6400))
    assert y.shape == (2, 5, 21)  # and one, for the even kernel of 32
    np.testing.assert_allclose(np.exp(y.detach().numpy()).sum(1), 1, rtol=1e-5)


def test_a_few_steps_raise_the_probability_of_a_letter():
    random.manual_seed(0)
    model = models.Wav2Letter(4, "mfcc", 3, 16, 16)
    model.acoustic_model[20].bias.data = np.ones(4)  # above the last ReLU's kink, below which a letter never changes
    x, losses = sound(2, 3, 60), []
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(12):
        loss = -model(x)[:, 1].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_in_autocast_log_probabilities_are_float32():
    with autocast(dtype=dtypes.bfloat16):
        assert models.Wav2Letter(4, "mfcc", 3, 4, 6)(sound(1, 3, 60)).dtype == dtypes.float32


def test_a_wrong_input_gives_one_clear_line():
    with pytest.raises(ArgumentError, match="Wav2Letter: needs input_type waveform, power_spectrum, mfcc, got 'mp3'"):
        models.wav2letter(input_type="mp3")
    with pytest.raises(ShapeError, match=r"Wav2Letter: needs input \[N, 3, T\], got shape \(1, 2, 60\)"):
        models.Wav2Letter(4, "mfcc", 3, 4, 6)(sound(1, 2, 60))


@pytest.mark.parametrize(("kind", "features"), [("waveform", 1), ("mfcc", 2)])
def test_the_steps_of_time_of_an_answer_are_known_beforehand(kind, features):
    model = models.Wav2Letter(3, kind, features, width=2, wide=2)
    for length in (700, 1000, 1601):
        answer = model(sound(1, features, length))
        assert models.Wav2Letter.frames(length, kind) == answer.shape[2]
    with pytest.raises(ShapeError, match="needs an input long enough for a step of time, got a length of 1"):
        models.Wav2Letter.frames(1, kind)
