"""Memory that arrays leave behind is used again, never by two at a time, and never more than was in use at once."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ampkit.backends.cpu import caching_allocator
from ampkit.base.dtypes import bfloat16, float32

LARGE = (caching_allocator.MIN_BYTES,)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    gc.collect()
    monkeypatch.setattr(caching_allocator, "_allocator", caching_allocator.CachingAllocator())


@pytest.mark.parametrize("least", [4096, caching_allocator.MIN_BYTES], ids=["AMX", "no AMX"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (80, 90), (300, 1000), (7, 11, 13, 100)])
@pytest.mark.parametrize("dtype", [float32, bfloat16, np.dtype(bool)], ids=str)
def test_large_arrays_lie_on_a_boundary_of_64_bytes(shape, dtype, least, monkeypatch):
    monkeypatch.setattr(caching_allocator, "_ALIGNED", least)
    array = caching_allocator.empty(shape, dtype)
    assert (array.shape, array.dtype, type(array)) == (shape, dtype, np.ndarray)
    assert array.nbytes < least or array.__array_interface__["data"][0] % 64 == 0
    assert caching_allocator.address(array) == array.__array_interface__["data"][0]
    array[...] = 1
    zeros = caching_allocator.zeros(shape, dtype)
    assert (zeros.shape, zeros.dtype, type(zeros), zeros.any()) == (shape, dtype, np.ndarray, False)
    assert caching_allocator.address(zeros) % 64 == 0 and zeros.flags.writeable


def test_the_next_array_of_a_size_lies_where_the_last_one_lay():
    first = caching_allocator.empty(LARGE, float32)
    where = caching_allocator.address(first)
    del first
    assert caching_allocator.address(caching_allocator.empty((caching_allocator.MIN_BYTES // 2, 2), float32)) == where


def test_memory_in_use_is_nobody_else_s():
    first = caching_allocator.empty(LARGE, float32)
    view = first.reshape(2, -1)[1, ::2].T
    first[...] = 1
    del first
    second = caching_allocator.empty(LARGE, float32)
    second[...] = 2
    assert (view == 1).all()
    where = view.ctypes.data
    del view
    third = [caching_allocator.empty(LARGE, float32) for _ in range(2)]
    assert sum(caching_allocator.address(a) <= where < caching_allocator.address(a) + a.nbytes for a in third) == 1


def test_memory_is_used_again_as_often_as_it_is_left():
    where = {caching_allocator.address(caching_allocator.empty(LARGE, float32)) for _ in range(5)}
    assert len(where) == 1
    assert caching_allocator._allocator.used == 0
    assert caching_allocator._allocator.peak == caching_allocator._allocator.cached


def test_not_much_more_is_kept_than_was_in_use_at_a_time():
    held = caching_allocator._allocator
    for size in range(1, 20):
        del_me = caching_allocator.empty((size * caching_allocator.MIN_BYTES,), float32)
        del del_me
    assert held.used == 0
    assert held.peak == 19 * caching_allocator.MIN_BYTES * 4
    assert held.cached <= 1.25 * held.peak
    held.clear()
    assert held.cached == held.peak == 0
    assert not held.free_lists


def test_small_arrays_are_left_to_numpy():
    caching_allocator.empty((10,), float32)
    assert not caching_allocator._allocator.peak
