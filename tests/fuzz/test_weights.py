"""Files of weights from grammars; `python -m tests.fuzz.weights` loads thousands of them."""

from __future__ import annotations

import pytest

from .archives import GRAMMARS
from .children import GOOD
from .weights import _contents, campaign

COUNT = 150
pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_drawn_file_runs_no_code_shows_no_other_memory_and_is_read_or_refused_in_one_line(grammar):
    found, findings = campaign(grammar, 0, COUNT)
    assert not findings
    assert all(found[kind] for kind in GOOD)


def test_the_order_of_a_set_is_none_of_its_contents():
    def made():
        return frozenset(
            [*(float("nan") for _ in range(20)), "weight", 1.5, (2, float("nan"))]
        )  # NaN hashes by address

    first, second = made(), made()
    assert list(_contents(first)) == list(_contents(second))
