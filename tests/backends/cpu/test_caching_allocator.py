"""Memory that arrays leave behind is used again, never by two at a time, and never more than was in use at once."""

from __future__ import annotations

import gc
import os
import sys
import threading

import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
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
    assert held.cached == 0 and not held.free_lists


def test_sizes_that_are_not_asked_for_make_room_for_those_that_are():
    held = caching_allocator._allocator
    _large = caching_allocator.empty((100 * caching_allocator.MIN_BYTES,), bfloat16)
    for size in range(1, 100):  # used once
        caching_allocator.empty((size * caching_allocator.MIN_BYTES,), bfloat16)
    where = caching_allocator.address(caching_allocator.empty((50 * caching_allocator.MIN_BYTES,), bfloat16))
    assert caching_allocator.address(caching_allocator.empty((50 * caching_allocator.MIN_BYTES,), bfloat16)) == where
    assert held.used + held.cached <= 1.25 * held.peak


def test_a_program_that_needs_less_than_before_gives_memory_back(monkeypatch):
    held = caching_allocator.CachingAllocator(window=10)
    monkeypatch.setattr(caching_allocator, "_allocator", held)
    many = [caching_allocator.empty(LARGE, float32) for _ in range(10)]
    del many
    nbytes = 4 * caching_allocator.MIN_BYTES
    assert (held.used, held.cached, held.peak) == (0, 10 * nbytes, 10 * nbytes)
    for _ in range(20):
        caching_allocator.empty(LARGE, float32)
    assert (held.used, held.cached, held.peak) == (0, nbytes, 10 * nbytes)


def test_memory_is_counted_to_the_byte_by_whole_pages():
    x = ampkit.ones(1 << 16)
    assert ampkit.cpu.memory_allocated() == ampkit.cpu.memory_reserved() == ampkit.cpu.max_memory_allocated() == 1 << 18
    view = x[1:].reshape(3, -1)
    y = ampkit.zeros((1 << 15) + 1, dtype=ampkit.float64)
    assert ampkit.cpu.memory_allocated() == (1 << 18) + (1 << 18) + (1 << 12)
    del x, y
    assert ampkit.cpu.memory_allocated() == 1 << 18  # of the view
    del view
    assert ampkit.cpu.memory_allocated() == 0
    assert ampkit.cpu.memory_reserved() == 1 << 18  # zeros come from the system, and go back to it
    assert ampkit.cpu.max_memory_allocated() == (1 << 19) + (1 << 12)
    ampkit.cpu.reset_peak_memory_stats()
    assert ampkit.cpu.max_memory_allocated() == 0
    ampkit.cpu.empty_cache()
    assert ampkit.cpu.memory_reserved() == 0
    ampkit.cpu.empty_cache()


def test_a_training_leaves_what_it_found():
    def train():
        model = nn.Linear(400, 400)
        optimizer = optim.AdamW(model.parameters())
        held = []
        for _ in range(3):
            model(ampkit.ones(500, 400)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            held.append(ampkit.cpu.memory_allocated())
        assert held[0] == held[1] == held[2] < ampkit.cpu.max_memory_allocated()

    gc.disable()  # what is dropped needs no collector
    try:
        train()
        held = ampkit.cpu.memory_allocated()  # a thread keeps its scratchpad of oneDNN
        train()
        assert ampkit.cpu.memory_allocated() == held < 1 << 20
    finally:
        gc.enable()


def test_threads_count_right_and_never_share_memory():
    held, wrong = caching_allocator._allocator, []

    def work(number):
        for turn in range(300):
            arrays = [
                caching_allocator.empty((caching_allocator.MIN_BYTES * n,), bfloat16) for n in (1, 2, turn % 3 + 1)
            ]
            for array in arrays:
                array[::5000] = number
            wrong.extend(number for array in arrays if (array[::5000] != number).any())

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert held.used == 0
    assert held.cached == sum(size * len(free) for size, free in held.free_lists.items()) <= 1.25 * held.peak


@pytest.mark.parametrize("times", [1, 3])
def test_finalizers_may_free_and_allocate_between_any_two_lines_of_it(times, monkeypatch):
    def interrupted(at):
        """Free and allocate arrays, and others between two lines of the allocator, `at` lines on. -> whether it was."""
        held = caching_allocator.CachingAllocator(window=3)
        monkeypatch.setattr(caching_allocator, "_allocator", held)
        others, ran, lines = [caching_allocator.empty(LARGE, float32) for _ in range(times)], [], [at]

        def finalizer():
            others.clear()
            ran.append(caching_allocator.empty(LARGE, bfloat16))

        def follow(frame, event, _):
            if frame.f_code.co_filename != caching_allocator.__file__:
                return None
            lines[0] -= event == "line"
            if lines[0] < 0 and not ran:
                sys.settrace(None)
                finalizer()
            return follow

        array, small = caching_allocator.empty(LARGE, float32), caching_allocator.empty(LARGE, bfloat16)
        sys.settrace(follow)
        try:
            del array
            array = caching_allocator.empty(LARGE, float32)
            del small, array
        finally:
            sys.settrace(before)
        live = sum(one.nbytes for one in (*others, *ran))
        kept = sum(buffer.nbytes for free in held.free_lists.values() for buffer in free)
        assert (held.used, held.cached) == (live, kept)
        assert kept == sum(size * len(free) for size, free in held.free_lists.items())
        was = bool(ran)
        del others[:], ran[:]  # into this allocator, not into the next one
        return was

    before, at = sys.gettrace(), 0
    while interrupted(at):
        at += 1
    assert at > 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_can_allocate_whatever_a_thread_was_doing():
    held = caching_allocator._allocator
    with held.lock:
        held._releasing = True
        pid = os.fork()
        if pid == 0:
            thread = threading.Thread(target=caching_allocator.empty, args=(LARGE, float32), daemon=True)
            thread.start()
            thread.join(10)
            os._exit(thread.is_alive() or held.used > 0)
    assert os.waitpid(pid, 0)[1] == 0


def test_small_arrays_are_left_to_numpy():
    caching_allocator.empty((10,), float32)
    assert not caching_allocator._allocator.peak


def test_a_reset_of_the_peak_frees_nothing():
    held = [caching_allocator.empty(LARGE, float32) for _ in range(4)]
    del held
    ampkit.cpu.reset_peak_memory_stats()
    one = caching_allocator.empty(LARGE, float32)
    assert ampkit.cpu.max_memory_allocated() == one.nbytes
    del one
    assert ampkit.cpu.memory_reserved() == 16 * caching_allocator.MIN_BYTES
