"""Mutated files of every format that ampkit reads; `python -m tests.fuzz.readers` reads thousands of them."""

from __future__ import annotations

import pytest

from .children import GOOD
from .formats import FORMATS, NEEDS
from .readers import cases

COUNT = 10
pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_file_is_read_correctly_or_refused_in_one_line(name, tmp_path):
    pytest.importorskip(NEEDS.get(name, "numpy"))
    bad = {i: said for i, said in enumerate(cases(name, 0, range(COUNT), tmp_path)) if said[0] not in GOOD}
    assert not bad
