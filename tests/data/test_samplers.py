"""Samplers and what a DataLoader makes of them; parts of datasets and several in a row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ampkit
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, StateError
from ampkit.core import random
from ampkit.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)


def numbers(count):
    return TensorDataset(ampkit.tensor(np.arange(count)))


def labels(loader):
    return [batch[0].tolist() for batch in loader]


def seeded(seed=0):
    return ampkit.Generator().manual_seed(seed)


def test_a_sampler_decides_the_order_and_a_batch_sampler_the_batches():
    assert labels(DataLoader(numbers(5), 2, sampler=[4, 0, 3])) == [[4, 0], [3]]
    assert labels(DataLoader(numbers(5), 2, sampler=[4, 0, 3], drop_last=True)) == [[4, 0]]
    loader = DataLoader(numbers(5), batch_sampler=[[1], [2, 0, 2]])
    assert labels(loader) == labels(loader) == [[1], [2, 0, 2]]
    assert len(loader) == 2


def test_a_sampler_is_iterated_anew_in_each_epoch():
    class Turning(Sampler):
        start = 0

        def __iter__(self):
            self.start += 1
            return iter([(self.start + i) % 3 for i in range(3)])

    loader = DataLoader(numbers(3), 3, sampler=Turning())
    assert labels(loader) + labels(loader) == [[1, 2, 0], [2, 0, 1]]


def test_an_endless_sampler_gives_batches_as_they_are_asked_for():
    loader = DataLoader(numbers(3), 2, sampler=itertools.cycle([0, 1, 2]))
    assert [b[0].tolist() for b in itertools.islice(loader, 3)] == [[0, 1], [2, 0], [1, 2]]
    assert loader.state_dict()["batches"] is None


def test_a_run_over_a_sampler_goes_on_with_the_next_batch():
    def make():
        return DataLoader(numbers(7), 2, sampler=[6, 5, 4, 3, 2, 1, 0])

    cut, resumed = make(), make()
    for _ in zip(range(2), cut, strict=False):
        pass
    resumed.load_state_dict(cut.state_dict())
    assert labels(resumed) == [[2, 1], [0]]
    assert labels(resumed) == [[6, 5], [4, 3], [2, 1], [0]]


def test_random_samplers_give_every_item_in_an_order_of_the_stream():
    orders = [list(RandomSampler(range(20), generator=seeded(s))) for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(20)) == list(SequentialSampler(range(20)))
    ampkit.manual_seed(3)
    one = list(RandomSampler(range(9)))
    ampkit.manual_seed(3)
    assert list(RandomSampler(range(9))) == one
    assert sorted(RandomSampler(range(4), num_samples=8)) == [0, 0, 1, 1, 2, 2, 3, 3]
    many = list(RandomSampler(range(4), replacement=True, num_samples=400))
    assert len(many) == 400
    assert set(many) == {0, 1, 2, 3}
    assert sorted(SubsetRandomSampler([7, 3, 5])) == [3, 5, 7]
    assert len(SubsetRandomSampler([7, 3, 5])) == 3


def test_more_indices_than_memory_holds_are_drawn_as_they_are_asked_for():
    endless = RandomSampler(range(4), replacement=True, num_samples=10**10, generator=seeded())
    assert len(endless) == 10**10
    assert list(itertools.islice(endless, 100_000)) == list(RandomSampler(range(4), True, 100_000, seeded()))
    assert len(list(RandomSampler(range(4), True, 70_000))) == 70_000
    assert len(list(itertools.islice(RandomSampler(range(4), num_samples=10**10), 9))) == 9


def test_weights_rule_what_is_drawn():
    drawn = list(WeightedRandomSampler([0, 1, 3.0], 4000, generator=seeded()))
    assert drawn.count(0) == 0
    assert drawn.count(2) / 4000 == pytest.approx(0.75, abs=0.03)
    assert sorted(WeightedRandomSampler(ampkit.tensor([0.0, 1, 2]), 2, replacement=False)) == [1, 2]


def test_a_sampler_draws_when_it_is_asked_for_its_first_index():
    for sampler in (RandomSampler(range(20)), RandomSampler(range(20), True), SubsetRandomSampler(range(20)),
                    WeightedRandomSampler([1.0] * 20, 9), WeightedRandomSampler([1.0] * 20, 9, False)):  # fmt: skip
        ampkit.manual_seed(3)
        alone = list(sampler)
        begun = iter(sampler)
        ampkit.manual_seed(3)
        assert list(begun) == alone


def test_batches_of_a_sampler_may_leave_the_last_out():
    assert list(BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(range(5), 2, True)) == [[0, 1], [2, 3]]
    assert [len(BatchSampler(range(5), 2, drop)) for drop in (False, True)] == [3, 2]


def test_parts_of_a_dataset_have_no_item_in_common():
    parts = random_split(numbers(10), [7, 3], seeded())
    assert [len(p) for p in parts] == [7, 3]
    assert sorted(part[i][0].item() for part in parts for i in range(len(part))) == list(range(10))
    assert [len(p) for p in random_split(numbers(10), [0.5, 0.25, 0.25])] == [6, 2, 2]
    again = random_split(numbers(10), [7, 3], seeded())
    assert parts[0].indices == again[0].indices


def test_a_part_of_tensors_is_fetched_as_batches():
    part = Subset(Subset(numbers(10), [9, 8, 7, 6]), [3, 0])
    assert labels(DataLoader(part, 2)) == [[6, 9]]
    assert part[1][0].item() == 9


def test_datasets_in_a_row():
    both = numbers(3) + Subset([5, 6], [1, 0])
    assert isinstance(both, ConcatDataset)
    assert len(both) == 5
    assert [both[i] for i in (3, 4, -1)] == [6, 5, 5]
    assert both[2][0].item() == 2
    assert both.cumulative_sizes == [3, 5]
    with pytest.raises(RangeError, match="an index below 5"):
        both[5]


def test_a_stream_has_no_place_among_datasets_in_a_row():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1])

        def __len__(self):
            return 1

    with pytest.raises(
        DTypeError, match="ConcatDataset: needs datasets with indices, got an IterableDataset"
    ) as caught:
        ConcatDataset([numbers(3), Stream()])
    assert isinstance(caught.value, AssertionError)  # as PyTorch's
    with pytest.raises(DTypeError, match="RandomSampler: needs replacement of True or False, got 0"):
        RandomSampler(numbers(3), replacement=0)


def test_datasets_side_by_side():
    pairs = StackDataset(numbers(3), [7, 8, 9])
    assert len(pairs) == 3
    assert (pairs[1][0][0].item(), pairs[1][1]) == (1, 8)
    named = StackDataset(x=[1, 2], y=[3, 4])
    assert named[1] == {"x": 2, "y": 4}
    assert [batch["y"].tolist() for batch in DataLoader(named, 2)] == [[3, 4]]
    for wrong in (lambda: StackDataset(), lambda: StackDataset([1], y=[2]), lambda: StackDataset([1], [2, 3])):
        with pytest.raises(ArgumentError, match="StackDataset: needs datasets of one length"):
            wrong()


def test_what_cannot_be_drawn_is_refused():
    for make in (
        lambda: RandomSampler([], num_samples=0),
        lambda: WeightedRandomSampler([0, 0], 1),
        lambda: WeightedRandomSampler([1, -1], 1),
        lambda: WeightedRandomSampler([1, 0], 2, replacement=False),
        lambda: BatchSampler(range(3), 0, False),
        lambda: random_split(numbers(4), [2, 3]),
        lambda: random_split(numbers(4), [0.5, 0.4]),
        lambda: ConcatDataset([]),
    ):
        with pytest.raises(ArgumentError):
            make()


def test_a_generator_has_pytorchs_methods():
    stream = ampkit.Generator("cpu").manual_seed(5)
    state = stream.get_state()
    first = ampkit.rand(3, generator=stream)
    stream.set_state(state)
    assert ampkit.rand(3, generator=stream).tolist() == first.tolist()
    assert stream.initial_seed() == 5
    ampkit.manual_seed(11)
    assert ampkit.initial_seed() == 11


@pytest.mark.parametrize(
    ("drop_last", "expected"),
    [(False, [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]), (True, [[0, 3, 6], [1, 4, 7], [2, 5, 8]])],
)
def test_each_process_reads_its_part_of_the_order_as_in_pytorch(drop_last, expected):
    found = [DistributedSampler(range(10), 3, rank, shuffle=False, drop_last=drop_last) for rank in range(3)]
    assert [list(sampler) for sampler in found] == expected
    assert [len(sampler) for sampler in found] == [len(each) for each in expected]
    assert [list(DistributedSampler(range(2), 5, rank, False)) for rank in range(5)] == [[0], [1], [0], [1], [0]]


def test_processes_shuffle_alike_and_anew_in_each_epoch():
    samplers = [DistributedSampler(range(12), 3, rank, seed=4) for rank in range(3)]
    epochs = []
    for epoch in (0, 1, 0):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        epochs.append([list(sampler) for sampler in samplers])
        assert sorted(itertools.chain(*epochs[-1])) == list(range(12))
    assert epochs[0] == epochs[2] != epochs[1]


def test_a_rank_outside_of_the_replicas_is_refused():
    with pytest.raises(ArgumentError, match="DistributedSampler: needs a rank from 0 to 1, got 2"):
        DistributedSampler(range(4), 2, 2)
    with pytest.raises(StateError, match=r"init_process_group\(\) before"):
        DistributedSampler(range(4))


def test_indices_drawn_with_weights_come_in_blocks_of_one_stream():
    ampkit.manual_seed(3)
    many = list(itertools.islice(WeightedRandomSampler([1.0, 2.0, 3.0], 2**40), 70_000))
    ampkit.manual_seed(3)
    shares = np.array([1.0, 2.0, 3.0]) / 6
    assert many == random.next_draw().choice(3, 70_000, p=shares).tolist()


def test_making_samplers_and_loaders_draws_no_random_numbers():
    dataset = TensorDataset(ampkit.arange(10))
    before = ampkit.get_rng_state()
    BatchSampler(RandomSampler(dataset), 4, False)
    DataLoader(dataset, batch_size=4, shuffle=True)
    assert ampkit.get_rng_state() == before
