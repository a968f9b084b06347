"""Memory that arrays leave behind is used again, never by two at a time, and never more than was in use at once."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ampkit.backends.cpu import rooms
from ampkit.core.dtypes import bfloat16, float32

LARGE = (rooms.LEAST,)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    gc.collect()
    monkeypatch.setattr(rooms, "_rooms", rooms.Rooms())


@pytest.mark.parametrize("shape", [(), (0,), (3,), (300, 1000), (7, 11, 13, 100)])
@pytest.mark.parametrize("dtype", [float32, bfloat16, np.dtype(bool)], ids=str)
def test_arrays_lie_on_a_boundary_of_64_bytes(shape, dtype):
    array = rooms.empty(shape, dtype)
    assert (array.shape, array.dtype, type(array)) == (shape, dtype, np.ndarray)
    assert array.__array_interface__["data"][0] % 64 == 0
    assert rooms.address(array) == array.__array_interface__["data"][0]
    array[...] = 1
    zeros = rooms.zeros(shape, dtype)
    assert (zeros.shape, zeros.dtype, type(zeros), zeros.any()) == (shape, dtype, np.ndarray, False)
    assert rooms.address(zeros) % 64 == 0 and zeros.flags.writeable


def test_the_next_array_of_a_size_lies_where_the_last_one_lay():
    first = rooms.empty(LARGE, float32)
    where = rooms.address(first)
    del first
    assert rooms.address(rooms.empty((rooms.LEAST // 2, 2), float32)) == where


def test_memory_in_use_is_nobody_else_s():
    first = rooms.empty(LARGE, float32)
    view = first.reshape(2, -1)[1, ::2].T
    first[...] = 1
    del first
    second = rooms.empty(LARGE, float32)
    second[...] = 2
    assert (view == 1).all()
    where = view.ctypes.data
    del view
    third = [rooms.empty(LARGE, float32) for _ in range(2)]
    assert sum(rooms.address(a) <= where < rooms.address(a) + a.nbytes for a in third) == 1


def test_memory_is_used_again_as_often_as_it_is_left():
    where = {rooms.address(rooms.empty(LARGE, float32)) for _ in range(5)}
    assert len(where) == 1
    assert rooms._rooms.used == 0
    assert rooms._rooms.most == rooms._rooms.free


def test_not_much_more_is_kept_than_was_in_use_at_a_time():
    held = rooms._rooms
    for size in range(1, 20):
        del_me = rooms.empty((size * rooms.LEAST,), float32)
        del del_me
    assert held.used == 0
    assert held.most == 19 * rooms.LEAST * 4
    assert held.free <= 1.25 * held.most
    held.clear()
    assert held.free == held.most == 0
    assert not held.kept


def test_small_arrays_are_left_to_numpy():
    rooms.empty((10,), float32)
    assert not rooms._rooms.most
