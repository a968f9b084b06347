"""Prefetch: the same batches, on the device, one ahead of the work."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, memory

import ampkit
from ampkit.base.errors import DeviceError
from ampkit.data import prefetch


@pytest.fixture
def device(gpu):
    """A GPU as the backend "cuda"."""
    return gpu


def given(count=4, drawn=None):
    for i in range(count):
        if drawn is not None:
            drawn.append(i)
        yield {"x": ampkit.full((2, 3), float(i)), "more": (ampkit.arange(i), "word")}


def test_batches_arrive_on_the_device_as_they_were(device):
    for got, want in zip(prefetch(given(), "cuda"), given(), strict=True):
        assert got["x"].device == "cuda:0"
        np.testing.assert_array_equal(got["x"].numpy(), want["x"].numpy())
        np.testing.assert_array_equal(got["more"][0].numpy(), want["more"][0].numpy())
        assert got["more"][1] == "word"


def test_the_next_batch_is_on_its_way_when_one_is_handed_out(device):
    drawn = []
    batches = prefetch(given(drawn=drawn), "cuda")
    next(batches)
    assert drawn == [0, 1]


@pytest.mark.cpu
def test_the_host_waits_for_nothing(device):
    before = emulated_cupy.waits[0]
    list(prefetch(given(), "cuda"))
    assert emulated_cupy.waits[0] == before


def test_a_batch_does_not_change_with_the_memory_it_came_from(device):
    source = np.ones((2, 2), np.float32)
    batches = prefetch([ampkit.from_numpy(source)] * 2, "cuda")
    first = next(batches)
    source[...] = 5
    np.testing.assert_array_equal(first.numpy(), np.ones((2, 2)))


def test_a_batch_that_does_not_fit_says_who_holds_the_memory(device, emulation):
    batches = prefetch(given(), "cuda")
    memory.pool.set_limit(1)
    try:
        with pytest.raises(ampkit.OutOfMemoryError, match="cuda:0: needs 512 bytes more"):
            next(batches)
    finally:
        memory.pool.set_limit(0)


def test_nothing_comes_of_nothing(device):
    assert list(prefetch([], "cuda")) == []


def test_on_a_cpu_batches_come_as_they_are():
    batches = list(given())
    assert all(a is b for a, b in zip(prefetch(batches, "cpu"), batches, strict=True))


def test_a_device_that_is_not_there_is_named_at_once():
    with pytest.raises(DeviceError, match="'tpu'"):
        prefetch(given(), "tpu")
