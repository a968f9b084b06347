"""Workers: batches made on threads, the same and in the same order, with errors and ends that are clean."""

from __future__ import annotations

import contextvars
import gc
import itertools
import threading
import time

import numpy as np
import pytest

from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core import random
from ampkit.data.loading.workers import Work, in_order, on_threads, run
from ampkit.utils.data import DataLoader, Dataset, get_worker_info


class Late(Dataset):
    """Items that take the longer the earlier they are, so that threads finish out of order."""

    def __init__(self, count=12, fails=None):
        self.count, self.fails, self.asked = count, fails, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        if index == self.fails:
            raise KeyError(f"item {index}")
        time.sleep(0.002 * (self.count - index) / self.count)
        return np.full(3, index, np.float32), index


def batches(loader):
    return [(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in loader]


def helped(make, keys, threads, ahead):
    pool = on_threads(Work(lambda dataset, key: make(key), None), range(threads))
    try:
        yield from in_order(lambda key: pool.submit(run, key), keys, ahead)
    finally:
        pool.shutdown(cancel_futures=True)


def alive():
    gc.collect()  # the traceback of an error holds the iterator that raised it
    return [thread for thread in threading.enumerate() if thread.name.startswith("ampkit-loader")]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_batches_are_the_same_bit_for_bit_whatever_the_number_of_workers(workers):
    def loader(count):
        return DataLoader(Late(), 2, shuffle=True, generator=random.Stream(3), num_workers=count)

    alone, helped = loader(0), loader(workers)
    assert [batches(helped) for _ in range(2)] == [batches(alone) for _ in range(2)]
    assert not alive()


@pytest.mark.parametrize("taken", range(7))
def test_a_state_knows_what_was_handed_out_and_not_what_was_made_ahead(taken):
    def loader():
        return DataLoader(Late(), 2, shuffle=True, generator=random.Stream(1), num_workers=2)

    whole = batches(loader())
    cut = loader()
    source = iter(cut)
    assert [next(source)[1].numpy().tobytes() for _ in range(taken)] == [y for _, y in whole[:taken]]
    resumed = DataLoader(Late(), 2, shuffle=True, generator=random.Stream(9), num_workers=3)
    resumed.load_state_dict(cut.state_dict())
    if taken < 6:
        assert batches(resumed) == whole[taken:]
    else:
        assert (resumed.epoch, resumed.position) == (1, 0)


@pytest.mark.parametrize("count", [0, 3])
def test_an_error_comes_out_where_its_batch_would_have_and_the_next_batch_behind_it(count):
    loader = DataLoader(Late(fails=5), 2, num_workers=count)
    source = iter(loader)
    assert [next(source)[1].numpy().tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError, match="item 5"):
        next(source)
    assert (loader.epoch, loader.position) == (0, 3)
    assert batches(source) == batches(DataLoader(Late(), 2))[3:]
    assert not alive()


def test_a_loop_that_an_error_leaves_stops_its_threads():
    def loop():
        for _ in DataLoader(Late(fails=5), 2, num_workers=3):
            pass

    with pytest.raises(KeyError, match="item 5"):
        loop()
    assert not alive()


def test_an_epoch_that_is_left_stops_its_threads_and_makes_no_more_than_was_ahead():
    dataset = Late(40)
    for _ in DataLoader(dataset, 2, num_workers=2, prefetch_factor=3):
        break
    assert not alive()
    assert len(dataset.asked) <= 2 * (1 + 2 * 3)


def test_an_iterator_that_is_dropped_stops_its_threads():
    source = iter(DataLoader(Late(), 2, num_workers=2))
    next(source)
    assert alive()
    del source
    assert not alive()


def test_no_more_batches_are_made_ahead_than_asked_for():
    keys = itertools.count()
    source = helped(lambda key: key * key, keys, 2, 4)
    assert [next(source) for _ in range(3)] == [0, 1, 4]
    source.close()
    assert next(keys) == 4 + 2  # four before the first came out, and one more for each that followed


def test_work_goes_on_at_the_same_time():
    meeting = threading.Barrier(3, timeout=10)
    assert len(set(helped(lambda key: meeting.wait(), range(3), 3, 3))) == 3


def test_a_worker_sees_the_context_of_the_caller():
    word = contextvars.ContextVar("word", default="none")
    token = word.set("here")
    try:
        assert list(helped(lambda key: word.get(), range(3), 2, 2)) == ["here"] * 3
    finally:
        word.reset(token)


def test_an_endless_sampler_is_not_drawn_to_its_end():
    source = iter(DataLoader(Late(), 2, sampler=itertools.cycle([3, 4]), num_workers=2))
    assert [next(source)[1].numpy().tolist() for _ in range(4)] == [[3, 4]] * 4
    source.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"num_workers": -1}, "num_workers from 0 to 1024, got -1"),
        ({"num_workers": 1.5}, "num_workers as an integer, got 1.5"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor from 1, got 0"),
        ({"prefetch_factor": 2}, "num_workers from 1 for a prefetch_factor, got 0"),
        ({"persistent_workers": True}, "num_workers from 1 for a persistent_workers, got 0"),
        ({"timeout": -1}, "a timeout from 0 seconds, got -1"),
    ],
)
def test_numbers_of_workers_that_mean_nothing_are_refused(words, message):
    with pytest.raises((ArgumentError, DTypeError), match=message):
        DataLoader(Late(), **words)


def test_each_thread_is_called_with_its_number_and_knows_itself():
    called, dataset = [], Late()

    def begin(number):
        called.append((number, get_worker_info()))

    loader = DataLoader(dataset, 2, num_workers=3, worker_init_fn=begin, generator=random.Stream(7))
    assert len(batches(loader)) == 6
    for number, info in called:
        assert (info.id, info.num_workers, info.seed) == (number, 3, 7 + number)
        assert info.dataset is dataset
    assert sorted(number for number, _ in called) == list(range(len(called)))
    assert get_worker_info() is None


def test_what_worker_init_fn_raises_comes_out_of_the_first_batch():
    def begin(number):
        raise KeyError("no such part")

    with pytest.raises(KeyError, match="no such part"):
        next(iter(DataLoader(Late(), 2, num_workers=1, worker_init_fn=begin)))
    assert not alive()
