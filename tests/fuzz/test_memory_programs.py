"""A short, deterministic run of random programs of data assignments, views, NumPy writes and optimizer steps."""

from __future__ import annotations

import pytest

from fuzz import memory_programs

pytestmark = pytest.mark.cpu
PROGRAMS = 150


def test_tensors_share_memory_as_numpys_arrays_do_in_random_programs():
    library = memory_programs.ampkit_library()
    assert [found for seed in range(PROGRAMS) if (found := memory_programs.finding(seed, library))] == []
