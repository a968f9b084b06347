"""Whether only deterministic algorithms run, PyTorch's switch."""

from __future__ import annotations

import pytest

import ampkit


@pytest.fixture(autouse=True)
def _usual():
    yield
    ampkit.use_deterministic_algorithms(True)


def test_only_deterministic_algorithms_run_until_others_are_allowed():
    assert ampkit.are_deterministic_algorithms_enabled() is True
    for mode in (False, True):
        assert ampkit.use_deterministic_algorithms(mode) is None
        assert ampkit.are_deterministic_algorithms_enabled() is mode


def test_warn_only_is_taken_and_changes_nothing():
    ampkit.use_deterministic_algorithms(True, warn_only=True)
    assert ampkit.are_deterministic_algorithms_enabled() is True


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": 0}, "mode True or False, got 0"),
        ({"mode": True, "warn_only": "no"}, "warn_only True or False, got 'no'"),
    ],
)
def test_what_is_no_bool_is_refused_and_changes_nothing(given, says):
    with pytest.raises(ampkit.ArgumentError, match=f"^use_deterministic_algorithms: needs {says}$"):
        ampkit.use_deterministic_algorithms(**given)
    assert ampkit.are_deterministic_algorithms_enabled() is True
