"""Some of the random convolutions of `convolutions.py`, from a seed of their own."""

from itertools import islice

import numpy as np
import pytest

from .convolutions import differences


@pytest.mark.cpu
def test_random_convolutions_of_few_bits_are_those_of_float64():
    assert [line for found in islice(differences(np.random.default_rng(0)), 150) for line in found] == []
