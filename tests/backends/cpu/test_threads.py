"""The threads of NumPy's matrix products."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ampkit.backends.cpu import threads
from ampkit.backends.cpu.copies import convert
from ampkit.backends.cpu.onednn import primitive
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16
from ampkit.base.errors import ArgumentError, StateError

openblas = pytest.mark.skipif(threads.blas_kernels() is None, reason="NumPy here is not built on OpenBLAS")


@pytest.fixture
def restored():
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


@openblas
def test_the_number_that_was_set_is_the_number_in_use(restored):
    for wanted in (1, 2):
        threads.set_num_threads(wanted)
        assert threads.get_num_threads() == wanted


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "2"])
def test_a_number_that_is_no_positive_integer_is_refused(wrong):
    with pytest.raises(ArgumentError, match="needs an integer of at least 1"):
        threads.set_num_threads(wrong)


def test_another_blas_is_named_and_the_cure_with_it(monkeypatch):
    monkeypatch.setattr(threads, "_openblas_function", lambda name: None)
    monkeypatch.setattr(threads, "library", lambda: None)
    with pytest.raises(StateError, match="OpenBLAS.*\nhelp: set this BLAS's own environment variable"):
        threads.set_num_threads(2)
    assert threads.get_num_threads() == threads.usable_cpus()
    assert threads.blas_kernels() is None
    assert not threads.can_set_num_threads()


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
def test_what_was_prepared_for_another_number_of_threads_is_prepared_anew(restored):
    def teams():
        """The threads that there were when something was prepared just now; [] if it was there."""
        made = []
        primitive.cached("of the test", lambda: made.append(threads.get_num_threads()))
        return made

    threads.set_num_threads(2)
    assert [teams(), teams()] == [[2], []]
    threads.set_num_threads(2)
    assert teams() == []
    threads.set_num_threads(1)
    assert [teams(), teams()] == [[1], []]


def until_nobody_else_spins():
    late = time.monotonic() + 10
    while time.monotonic() < late:
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.002:
            return


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
def test_one_thread_is_one_also_for_a_conversion_that_two_threads_have_made(restored):
    values = np.ones(1 << 22, np.float32)
    for count in (2, 1):
        threads.set_num_threads(count)
        convert(values, bfloat16)
    until_nobody_else_spins()
    process, thread = time.process_time(), time.thread_time()
    for _ in range(4):
        convert(values, bfloat16)
    elsewhere = (time.process_time() - process) - (time.thread_time() - thread)
    assert elsewhere < 0.2 * (time.thread_time() - thread)


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
def test_onednn_uses_as_many_threads_as_were_asked_for(restored):
    team = library().cdll.omp_get_max_threads
    for wanted in (1, 2):
        threads.set_num_threads(wanted)
        assert team() == threads.get_num_threads() == wanted
        assert threads._openblas_function("get_num_threads")() == 1  # and NumPy's BLAS stays out of its way
