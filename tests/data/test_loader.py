"""TensorDataset and DataLoader: batches, orders, resuming, and what is refused."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from typing import NamedTuple

import numpy as np
import pytest

import ampkit
from ampkit.base.dtypes import bfloat16
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core import random
from ampkit.core.tensor import Tensor
from ampkit.data.collate import collate, default_collate_fn_map
from ampkit.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    StackDataset,
    TensorDataset,
    default_collate,
    default_convert,
)


def numbers(count):
    return TensorDataset(Tensor(np.arange(count, dtype=np.float32)[:, None] * 10), Tensor(np.arange(count)))


def labels(loader):
    return [batch[1].array.tolist() for batch in loader]


def flat(batches):
    return [item for batch in batches for item in batch]


class Squares(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return np.full((2,), index, np.float32), index * index


def test_the_public_path_is_pytorchs():
    import ampkit.utils.data as public
    from ampkit.data import loader

    assert public.DataLoader is loader.DataLoader


def test_items_of_a_tensor_dataset_are_rows():
    x, y = numbers(4)[3]
    assert (x.array.tolist(), y.array.tolist()) == ([30.0], 3)
    assert isinstance(y.array, np.ndarray)
    assert len(numbers(4)) == 4


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ([], ShapeError),
        ([Tensor(np.zeros(3)), Tensor(np.zeros(4))], ShapeError),
        ([Tensor(np.zeros(()))], ShapeError),
        ([np.zeros(3)], DTypeError),
    ],
)
def test_a_tensor_dataset_refuses_what_has_no_rows_in_common(tensors, error):
    with pytest.raises(error, match="TensorDataset: needs"):
        TensorDataset(*tensors)


@pytest.mark.parametrize(
    ("drop_last", "expected"), [(False, [[0, 1, 2], [3, 4, 5], [6]]), (True, [[0, 1, 2], [3, 4, 5]])]
)
def test_batches_come_in_order_and_the_last_may_be_dropped(drop_last, expected):
    loader = DataLoader(numbers(7), 3, drop_last=drop_last)
    assert labels(loader) == expected
    assert len(loader) == len(expected)


def test_a_batch_is_a_list_of_tensors_that_belong_together():
    for x, y in DataLoader(numbers(7), 3, shuffle=True):
        assert isinstance(x, Tensor)
        assert x.array[:, 0].tolist() == (y.array * 10).tolist()
        assert (x.dtype, y.dtype) == (np.float32, np.int64)


def test_a_batch_is_a_copy():
    dataset = numbers(4)
    for x, _ in DataLoader(dataset, 2):
        x.array[...] = -1
    assert dataset.tensors[0].array.min() == 0


def test_each_epoch_has_an_order_of_its_own_with_every_item_once():
    loader = DataLoader(numbers(50), 8, shuffle=True)
    first, second = flat(labels(loader)), flat(labels(loader))
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(range(50))}) == 3


def test_manual_seed_fixes_the_orders_even_after_the_loader_was_made():
    orders = []
    for _ in range(2):
        loader = DataLoader(numbers(30), 30, shuffle=True)
        random.manual_seed(7)
        orders.append(labels(loader))
    assert orders[0] == orders[1]
    random.manual_seed(8)
    assert labels(DataLoader(numbers(30), 30, shuffle=True)) != orders[0]


def test_a_generator_fixes_the_orders_and_leaves_the_default_stream_alone():
    before = random.get_rng_state()
    one, two = (DataLoader(numbers(30), 30, shuffle=True, generator=random.Stream(5)) for _ in range(2))
    assert labels(one) == labels(two)
    assert random.get_rng_state() == before


def test_loaders_of_one_generator_differ():
    stream = random.Stream(5)
    one, two = (labels(DataLoader(numbers(30), 30, shuffle=True, generator=stream)) for _ in range(2))
    assert one != two


def test_without_shuffling_no_random_number_is_drawn():
    before = random.get_rng_state()
    loader = DataLoader(numbers(5))
    list(loader)
    loader.state_dict()
    assert random.get_rng_state() == before


@pytest.mark.parametrize("taken", range(10))
def test_a_run_goes_on_with_the_very_next_batch(taken):
    def endless(loader):
        while True:
            yield from labels_of(loader)

    def labels_of(loader):
        for _, y in loader:
            yield y.array.tolist()

    def take(source, count):
        return [next(source) for _ in range(count)]

    whole = DataLoader(numbers(11), 4, shuffle=True, generator=random.Stream(1))
    expected = take(endless(whole), 12)
    cut = DataLoader(numbers(11), 4, shuffle=True, generator=random.Stream(1))
    assert take(endless(cut), taken) == expected[:taken]
    resumed = DataLoader(numbers(11), 4, shuffle=True, generator=random.Stream(99))
    resumed.load_state_dict(cut.state_dict())
    assert take(endless(resumed), 12 - taken) == expected[taken:]


def test_an_epoch_left_early_is_not_taken_up_again():
    loader = DataLoader(numbers(6), 2)
    next(iter(loader))
    assert labels(loader) == [[0, 1], [2, 3], [4, 5]]
    assert loader.epoch == 2


def test_a_state_of_other_batches_is_refused():
    state = DataLoader(numbers(6), 2).state_dict()
    with pytest.raises(ArgumentError, match="needs 2 batches per epoch, got a state of 3"):
        DataLoader(numbers(6), 3).load_state_dict(state)
    with pytest.raises(ArgumentError, match="position"):
        DataLoader(numbers(6), 2).load_state_dict({"epoch": 1})


def test_items_of_a_plain_dataset_are_stacked():
    batches = list(DataLoader(Squares(), 2))
    assert [y.array.tolist() for _, y in batches] == [[0, 1], [4, 9], [16]]
    assert batches[0][0].array.tolist() == [[0, 0], [1, 1]]
    assert batches[0][1].dtype == np.int64


def test_a_list_is_a_dataset_too():
    assert [batch.array.tolist() for batch in DataLoader([1.5, 2.5, 3.5], 2)] == [[1.5, 2.5], [3.5]]


def test_collate_fn_has_the_last_word():
    assert list(DataLoader(Squares(), 3, collate_fn=len)) == [3, 2]
    assert list(DataLoader(numbers(3), 2, collate_fn=len)) == [2, 1]


def test_collating_keeps_the_structure_and_the_dtypes():
    items = [{"a": (1, 2.0), "b": np.float64(i), "c": "x", "d": True} for i in range(2)]
    batch = default_collate(items)
    assert [t.dtype.name for t in batch["a"]] == ["int64", "float64"]
    assert batch["b"].dtype == np.float64
    assert batch["c"] == ["x", "x"]
    assert batch["d"].dtype == np.bool_


class Point(NamedTuple):
    x: float
    more: dict


def test_nests_keep_their_kinds():
    batch = default_collate([Point(1.0, OrderedDict(a=(1, "u"))), Point(2.0, OrderedDict(a=(3, "v")))])
    assert type(batch) is Point
    assert batch.x.tolist() == [1.0, 2.0]
    assert type(batch.more) is OrderedDict
    assert type(batch.more["a"]) is list
    assert (batch.more["a"][0].tolist(), batch.more["a"][1]) == ([1, 3], ["u", "v"])
    assert [type(default_collate([kind([1, 2])] * 2)) for kind in (list, tuple, deque)] == [list, list, deque]
    assert [t.tolist() for t in default_collate([range(2), range(2, 4)])] == [[0, 2], [1, 3]]
    assert default_collate([np.str_("a"), np.str_("b")]) == ["a", "b"]
    counts = default_collate([defaultdict(int, a=1), defaultdict(int, a=2)])
    assert counts["a"].tolist() == [1, 2]


def test_single_items_are_converted_where_they_are_arrays():
    item = Point(np.float64(2), {"a": np.arange(3), "b": ("u", 4), "c": np.array(["w"])})
    found = default_convert(item)
    assert default_convert(np.ones(2, bfloat16)).dtype == bfloat16
    assert default_convert(np.arange(2, dtype=">i4")).dtype == np.dtype(np.int32)
    assert type(found) is Point
    assert (found.x.dtype, found.x.shape) == (np.float64, ())
    assert found.more["a"].tolist() == [0, 1, 2]
    assert found.more["b"] == ["u", 4]
    assert found.more["c"] is item.more["c"]


def test_a_float_among_integers_makes_the_batch_float64():
    batch = default_collate([1700000001.0, 2])
    assert batch.dtype == np.float64
    assert batch.tolist() == [1700000001.0, 2.0]


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([np.zeros(2), np.zeros(3)], ShapeError, r"items of one shape in a batch, got \[\(2,\), \(3,\)\]"),
        ([np.zeros(2), np.zeros(2, np.float32)], DTypeError, "items of one dtype in a batch, got float32, float64"),
        ([0.5, np.complex64(1j)], DTypeError, "needs real numbers throughout"),
        ([(1, 2), (1,)], ShapeError, r"items of one length in a batch, got \[1, 2\]"),
        ([{"x": 1}, {"x": 1, "y": 2}], ShapeError, r"items of the same keys in a batch, got \['x'\] and \['x', 'y'\]"),
        ([object()], DTypeError, "got object"),
        ([np.array(["a"])], DTypeError, "needs tensors, arrays or numbers, got arrays of str32"),
    ],
)
def test_items_that_do_not_stack_are_refused(items, error, message):
    with pytest.raises(error, match=message):
        default_collate(items)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size of at least 1, got 0"),
        ({"batch_size": 1.5}, "batch_size as an integer, got 1.5"),
        ({"sampler": [1, 0], "shuffle": True}, "a sampler or shuffle, got both"),
        ({"batch_sampler": [[1, 0]], "batch_size": 2}, "a batch_sampler alone"),
        ({"batch_sampler": [[1, 0]], "sampler": [1]}, "a batch_sampler alone"),
        ({"generator": np.random.default_rng(0)}, "generator as a Stream, got a Generator"),
        ({"worker_init_fn": 0.5}, "worker_init_fn as a function, got 0.5"),
        ({"collate_fn": "stack"}, "collate_fn as a function, got 'stack'"),
    ],
)
def test_what_the_loader_cannot_do_is_one_clear_line(arguments, message):
    with pytest.raises((ArgumentError, DTypeError), match=message):
        DataLoader(numbers(4), **arguments)


def test_pytorchs_defaults_are_taken_and_unknown_arguments_are_not():
    words = {"num_workers": 4, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 2, "timeout": 3}
    loader = DataLoader(numbers(4), 2, False, None, None, worker_init_fn=str, in_order=False, **words)
    assert labels(loader) == labels(DataLoader(numbers(4), 2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_worker'"):
        DataLoader(numbers(4), num_worker=0)


@pytest.mark.parametrize("dataset", [[], iter([1])])
def test_a_dataset_needs_items_and_a_length(dataset):
    with pytest.raises(ArgumentError, match="DataLoader: needs a dataset with"):
        DataLoader(dataset)


def test_a_dataset_beside_a_sampler_needs_items():
    with pytest.raises(DTypeError, match="DataLoader: needs a dataset with __getitem__, got 7"):
        DataLoader(7, sampler=[0, 1])


def test_rows_of_several_lengths_beside_a_number_are_refused_in_one_line():
    with pytest.raises(ShapeError, match="needs arrays or numbers in a batch"):
        default_collate([np.float32(1), [1, [2]]])


def test_a_dataset_shorter_than_a_batch_gives_none_when_the_last_is_dropped():
    loader = DataLoader(numbers(4), 9, drop_last=True)
    assert len(loader) == 0 and list(loader) == []


def test_a_loader_shows_the_samplers_that_others_build_loaders_of():
    plain, mixed = DataLoader(numbers(4), 3), DataLoader(numbers(4), 3, shuffle=True, drop_last=True)
    assert list(plain.sampler) == [0, 1, 2, 3] and list(plain.batch_sampler) == [[0, 1, 2], [3]]
    assert isinstance(mixed.sampler, RandomSampler) and mixed.sampler._num_samples is None
    again = DataLoader(mixed.dataset, batch_sampler=mixed.batch_sampler, collate_fn=mixed.collate_fn)
    assert len(again) == len(mixed) == 1 and again.batch_size is None and sorted(mixed.sampler) == [0, 1, 2, 3]
    assert len(next(iter(again))[0]) == 3
    single = DataLoader(numbers(2), None)
    assert single.batch_sampler is None and len(single) == len(list(single)) == 2


def test_a_function_by_type_collates_what_libraries_register():
    class Place:
        def __init__(self, x):
            self.x = x

    def points(batch, *, collate_fn_map=None):
        return collate([point.x for point in batch], collate_fn_map=collate_fn_map)

    functions = {**default_collate_fn_map, Place: points}
    found = collate([{"at": Place(1.0)}, {"at": Place(2.0)}], collate_fn_map=functions)
    assert found["at"].tolist() == [1.0, 2.0]
    assert collate([1, 2], collate_fn_map={int: lambda batch, collate_fn_map: sum(batch)}) == 3
    with pytest.raises(DTypeError, match="needs tensors, arrays or numbers, got Place"):
        default_collate([Place(1.0)])
    with pytest.raises(DTypeError, match="got Tensor"):
        collate([ampkit.ones(2)])


def test_a_loader_follows_a_sampler_that_a_subclass_put_into_the_place_of_its_own():
    class Repeated:
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            while True:
                yield from self.sampler

    loader = DataLoader(np.arange(3), batch_size=2)
    object.__setattr__(loader, "batch_sampler", Repeated(loader.batch_sampler))
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(5)] == [[0, 1], [2], [0, 1], [2], [0, 1]]


def test_a_stack_of_datasets_reads_the_items_of_a_batch_at_once():
    class Plain(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index * index

    class Columns(Plain):
        def __getitems__(self, indices):
            return [10 * i for i in indices]

    class Short(Plain):
        def __getitems__(self, indices):
            return indices[1:]

    assert StackDataset(Plain(), Columns()).__getitems__([3, 1]) == [(9, 30), (1, 10)]
    assert StackDataset(a=Columns()).__getitems__([2]) == [{"a": 20}]
    with pytest.raises(ArgumentError, match="needs 2 items, got 1 of dataset 0"):
        StackDataset(Short()).__getitems__([0, 1])


def test_a_loader_stands_in_annotations_with_the_type_of_its_batches():
    assert DataLoader[int].__origin__ is DataLoader
