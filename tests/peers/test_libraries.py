"""When the numbers of a library's job agree with PyTorch's."""

from __future__ import annotations

import pytest
from peers.libraries.__main__ import Outcome, disagreement


def of(*loss):
    return Outcome({"loss": list(loss)}, 1.0, "")


def test_16_bits_are_compared_with_those_of_pytorch_or_with_its_float32_whichever_is_nearer():
    theirs, exact = of(4.0, 2.1), of(4.0, 2.0)
    assert disagreement(of(4.0, 2.14), theirs, exact) == pytest.approx(0.01)  # beyond theirs
    assert disagreement(of(4.0, 1.96), theirs, exact) == pytest.approx(0.01)  # on the other side of float32
    assert disagreement(of(4.0, 1.96), theirs, None) == pytest.approx(0.035)
    assert disagreement(of(4.0, 2.5), theirs, exact) == pytest.approx(0.1)


def test_numbers_that_are_missing_or_not_finite_never_agree():
    assert disagreement(of(4.0), of(4.0, 2.0), of(4.0, 2.0)) == float("inf")
    assert disagreement(of(4.0, float("nan")), of(4.0, 2.0), of(4.0, 2.0)) == float("inf")
