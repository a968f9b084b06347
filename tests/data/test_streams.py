"""IterableDataset: batches of what comes, shares of workers, places that are found again, and what is refused."""

from __future__ import annotations

import itertools
import sys
import threading

import numpy as np
import pytest
from data.asked_elsewhere import Counted, Uneven, divide, divide_more

from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core import random
from ampkit.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset

pytestmark = pytest.mark.cpu


class Kept(IterableDataset):
    """0 to n - 1, and a place of its own."""

    def __init__(self, count):
        self.count, self.place, self.given = count, {"next": 0}, 0

    def __iter__(self):
        while self.place["next"] < self.count:
            self.place["next"] += 1
            self.given += 1
            yield self.place["next"] - 1
        self.place["next"] = 0

    def __len__(self):
        return self.count

    def state_dict(self):
        return self.place  # itself: a loader that kept no copy would see it change

    def load_state_dict(self, state):
        self.place = state


def numbers(batches):
    """Of Kept's batches, or of Counted's."""
    return [(batch[0] if isinstance(batch, list) else batch).numpy().tolist() for batch in batches]


def test_items_are_batched_as_they_come_epoch_after_epoch():
    loader = DataLoader(Counted(5), 2)
    assert [numbers(loader) for _ in range(2)] == [[[0, 1], [2, 3], [4]]] * 2
    assert numbers(DataLoader(Counted(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert numbers(DataLoader(Counted(0), 2)) == []
    assert loader.epoch == 2


def test_the_length_is_the_datasets_if_it_has_one():
    assert [len(DataLoader(Kept(5), 2, drop_last=drop)) for drop in (False, True)] == [3, 2]
    assert len(DataLoader(Kept(5), None)) == 5
    with pytest.raises(TypeError):
        len(DataLoader(Counted(5), 2))


def test_a_stream_without_an_end_is_drawn_a_batch_ahead():
    class Endless(IterableDataset):
        def __iter__(self):
            return ((given.append(i), i)[1] for i in itertools.count())

    given = []
    source = iter(DataLoader(Endless(), 3))
    assert next(source).numpy().tolist() == [0, 1, 2]
    assert given == list(range(6))


@pytest.mark.parametrize("count", [0, 2])
def test_a_batch_may_be_none(count):
    loader = DataLoader(Counted(4), 1, num_workers=count, collate_fn=lambda items: None if items[0][0] == 1 else 3)
    assert list(loader) == [3, None, 3, 3]
    assert list(DataLoader([None, 5], batch_size=None, num_workers=count)) == [None, 5]


def test_without_a_batch_size_items_come_alone_and_unstacked():
    class Named(IterableDataset):
        def __iter__(self):
            return iter([{"x": np.arange(2), "name": "a", "n": 3}, {"x": np.arange(3), "name": "b", "n": 4}])

    first, second = DataLoader(Named(), batch_size=None)
    assert (first["x"].tolist(), first["name"], first["n"]) == ([0, 1], "a", 3)
    assert second["x"].shape == (3,)
    assert [x for x, _ in DataLoader([(3, 4), (5, 6)], batch_size=None, sampler=[1, 0])] == [5, 3]
    assert len(DataLoader([3, 4], batch_size=None)) == 2


@pytest.mark.parametrize("ahead", [1, 3])
def test_workers_take_turns_each_with_its_share(ahead):
    loader = DataLoader(Counted(11), 2, num_workers=2, prefetch_factor=ahead)
    assert [numbers(loader) for _ in range(2)] == [[[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9]]] * 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ampkit-loader")]


def test_worker_init_fn_changes_the_dataset_of_its_worker_alone_and_the_shares_may_differ():
    dataset = Uneven(3)
    loader = DataLoader(dataset, 1, num_workers=4, worker_init_fn=divide)
    assert [numbers(loader) for _ in range(2)] == [[[10], [20], [30], [21], [31], [32]]] * 2
    assert (dataset.first, dataset.end) == (0, 3)


@pytest.mark.skipif(sys.platform == "win32", reason="about forkserver")
def test_processes_that_stay_begin_every_epoch_anew():
    words = {"num_workers": 2, "multiprocessing_context": "forkserver", "persistent_workers": True}
    loader = DataLoader(Uneven(3), 1, worker_init_fn=divide_more, **words)
    next(iter(loader))
    epochs = [list(loader) for _ in range(2)]
    assert [numbers(epoch) for epoch in epochs] == [[[0], [10], [11]]] * 2
    pids = [[int(pid) for _, pid in epoch] for epoch in epochs]
    assert pids[0] == pids[1]
    assert len(set(pids[0])) == 2


@pytest.mark.parametrize("items", [9, 10])
@pytest.mark.parametrize(("dataset", "count"), [(Counted, 0), (Counted, 2), (Kept, 0)])
@pytest.mark.parametrize("taken", range(5))
def test_a_run_goes_on_with_the_very_next_batch(dataset, count, taken, items):
    def loader():
        return DataLoader(dataset(items), 2, num_workers=count)

    whole, cut = numbers(loader()), loader()
    source = iter(cut)
    assert numbers(itertools.islice(source, taken)) == whole[:taken]
    state = cut.state_dict()
    numbers(source)  # what follows changes nothing that was saved
    resumed = loader()
    resumed.load_state_dict(state)
    assert numbers(resumed) + numbers(resumed) == whole[taken:] + whole
    assert resumed.epoch == 2
    at_the_end = loader()
    at_the_end.load_state_dict(cut.state_dict())
    assert (at_the_end.epoch, numbers(at_the_end)) == (1, whole)


def test_a_dataset_with_a_place_of_its_own_is_sent_there_and_draws_nothing_twice():
    cut = DataLoader(Kept(9), 2)
    next(iter(cut))
    resumed = DataLoader(Kept(9), 2)
    resumed.load_state_dict(cut.state_dict())
    assert numbers(resumed) == [[2, 3], [4, 5], [6, 7], [8]]
    assert resumed.dataset.given == 7


def test_one_stream_follows_the_other():
    chain = Counted(2) + Counted(9, first=7)
    assert isinstance(chain, ChainDataset)
    assert numbers(DataLoader(chain, 3)) == [[0, 1, 7], [8]]
    assert len(ChainDataset([Kept(2), Kept(3)])) == 5
    with pytest.raises(
        DTypeError, match="ChainDataset: needs IterableDatasets, got a list\nhelp: ConcatDataset"
    ) as caught:
        list(ChainDataset([Counted(1), [1]]))
    assert isinstance(caught.value, AssertionError)  # as PyTorch's


@pytest.mark.parametrize("count", [0, 2])
def test_a_stream_that_gives_more_batches_than_it_announced_warns(count):
    class Announced(Counted):
        def __len__(self):
            return 4

    loader = DataLoader(Announced(6), 1, num_workers=count)
    assert len(numbers(loader)) > 4  # nobody asked for the length
    assert len(loader) == 4
    source = iter(loader)
    before = [next(source) for _ in range(4)]
    assert len(before) == 4
    with pytest.warns(UserWarning, match=r"an IterableDataset of len\(loader\) 4 gave batch 5"):
        next(source)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"shuffle": True}, "no shuffle for an IterableDataset, got True\nhelp: it decides itself"),
        ({"sampler": np.arange(3)}, r"no sampler for an IterableDataset, got \[0 1 2\]"),
        ({"sampler": [1]}, r"no sampler for an IterableDataset, got \[1\]"),
        ({"batch_sampler": [[1]]}, r"no batch_sampler for an IterableDataset, got \[\[1\]\]"),
        ({"batch_size": None, "drop_last": True}, "a batch_size for drop_last, got None"),
        ({"batch_size": 0}, "batch_size of at least 1, got 0"),
    ],
)
def test_what_chooses_items_is_refused(words, message):
    with pytest.raises(ArgumentError, match=message):
        DataLoader(Counted(3), **words)


def test_a_state_of_another_number_of_workers_is_refused():
    state = DataLoader(Counted(9), 2, num_workers=2).state_dict()
    with pytest.raises(ArgumentError, match="needs a state of 0 workers, got 2\nhelp: their number decides"):
        DataLoader(Counted(9), 2).load_state_dict(state)


def test_a_dataset_that_is_only_iterated_has_to_say_so():
    class Only:
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ArgumentError, match="got Only\nhelp: a dataset that is only iterated is an IterableDataset"):
        DataLoader(Only())
    with pytest.raises(NotImplementedError):
        iter(IterableDataset())
    assert issubclass(IterableDataset, Dataset)
    assert DataLoader(Counted(3), shuffle=False, generator=random.Stream(1)).generator is not None
