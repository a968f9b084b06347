"""Some of the random trainings of `trainings.py`."""

import pytest

from .trainings import difference, outcome

pytestmark = pytest.mark.no_gpu


@pytest.mark.parametrize("seed", range(16))
def test_a_compiled_training_leaves_the_bits_of_an_eager_one(seed):
    assert difference(seed) == ""


def test_most_trainings_run_to_their_end():
    ended = [outcome(seed, compiled=False)[-1][0] != "error" for seed in range(16)]
    assert sum(ended) >= 14
