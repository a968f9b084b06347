"""ZeroRedundancyOptimizer on ranks that are threads: bits, parts of the state, and what it refuses."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import distributed as dist
from ampkit import nn, optim
from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.distributed.optim import ZeroRedundancyOptimizer

pytestmark = pytest.mark.no_gpu
SHAPES = [(300, 7), (64, 65), (1000, 3), (3, 9), (64, 300)]


def parameters(dtype="float32", shapes=SHAPES):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return [nn.Parameter(ampkit.tensor(value).to(getattr(ampkit, dtype))) for value in values]


def step(optimizer, number):
    rng = np.random.default_rng(number)
    for count, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        if (number + count) % 4:  # each is left out of some steps
            gradient = ampkit.tensor(rng.standard_normal(parameter.shape).astype(np.float32))
            parameter.grad = gradient.to(parameter.dtype)
    optimizer.step()
    optimizer.zero_grad()


def bytes_of_moments(optimizer):
    return sum(flat.nbytes for group in optimizer.param_groups for a in group.arenas for flat in a.moment_arrays())


def arrays(optimizer):
    entries = optimizer.state_dict()["state"].items()
    return {(number, name): np.asarray(value) for number, entry in entries for name, value in entry.items()}


def taken(optimizer, first=0, count=5):
    for number in range(first, first + count):
        step(optimizer, number)
    segments = [segment for group in optimizer.param_groups for segment in group.segments]
    return [segment.master_weights().astype(np.float64) for segment in segments]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [
        *[(optim.AdamW, {"lr": 1e-2, "amsgrad": True}, dtype) for dtype in ("float32", "bfloat16", "float64")],
        *[(optim.Muon, {"lr": 1e-2}, dtype) for dtype in ("float32", "bfloat16")],
        (optim.RMSprop, {"lr": 1e-2, "momentum": 0.9, "centered": True}, "float32"),
        (optim.NAdam, {"lr": 1e-2}, "float64"),
        (optim.Adafactor, {"lr": 1e-2}, "bfloat16"),
        (optim.SOAP, {"lr": 1e-2}, "float32"),
    ],
)
def test_weights_and_state_have_the_bits_of_the_optimizer(kind, options, dtype):
    shapes = [(9, 7), (6, 5), (8, 8), (3, 9)] if kind is optim.SOAP else SHAPES  # whose LAPACK is slow in threads
    plain = kind(parameters(dtype, shapes), **options)
    weights = taken(plain)

    def program(group):
        optimizer = ZeroRedundancyOptimizer(parameters(dtype, shapes), kind, group, **options)
        found = taken(optimizer)
        optimizer.consolidate_state_dict(to=1)
        return found, arrays(optimizer) if group.rank() == 1 else None

    results = on_ranks(3, program)
    assert all(same(found, weights) for found, _ in results)
    expected, state = arrays(plain), results[1][1]
    assert state.keys() == expected.keys()
    assert same([state[key] for key in expected], list(expected.values()))


@pytest.mark.parametrize("state_dtype", ["float32", "int8"])
def test_each_rank_has_its_part_of_the_moments(state_dtype):
    options = {"lr": 1e-2, "state_dtype": state_dtype}
    plain = optim.AdamW(parameters(shapes=[(512, 256), (512,)]), **options)
    taken(plain, 1, 1)

    def program(group):
        optimizer = ZeroRedundancyOptimizer(parameters(shapes=[(512, 256), (512,)]), optim.AdamW, group, **options)
        taken(optimizer, 1, 1)
        whole = optimizer.state
        return bytes_of_moments(optimizer), len(whole)

    found, states = zip(*on_ranks(4, program), strict=True)
    assert sum(found) == bytes_of_moments(plain)
    assert max(found) < 1.02 * bytes_of_moments(plain) / 4
    assert states == (0, 0, 0, 1)  # the first parameter's moments are on all ranks


def test_a_saved_state_goes_on_with_the_same_bits_shared_or_not():
    plain = optim.AdamW(parameters(), lr=1e-2)
    middle, end = taken(plain, 0, 3), taken(plain, 3, 3)

    def program(group):
        first = ZeroRedundancyOptimizer(parameters(), optim.AdamW, group, lr=1e-2)
        assert same(taken(first, 0, 3), middle)
        first.consolidate_state_dict(to=0)
        return first.state_dict() if group.rank() == 0 else None

    state = on_ranks(2, program)[0]

    def resume(make):
        members = parameters()
        for parameter, values in zip(members, middle, strict=True):
            parameter.detach().copy_(ampkit.tensor(values))
        optimizer = make(members)
        optimizer.load_state_dict(copy.deepcopy(state))
        return same(taken(optimizer, 3, 3), end), bytes_of_moments(optimizer)

    assert resume(lambda members: optim.AdamW(members, lr=1.0))[0]
    again = on_ranks(3, lambda group: resume(lambda p: ZeroRedundancyOptimizer(p, optim.AdamW, group, lr=1.0)))
    assert all(found for found, _ in again)
    assert sum(nbytes for _, nbytes in again) == bytes_of_moments(plain)


def test_a_group_that_is_added_is_shared_out_too():
    def program(group=None):
        first, second = parameters()[:2], parameters()[2:]
        if group is None:
            optimizer = optim.Adam(first, lr=1e-2)
        else:
            optimizer = ZeroRedundancyOptimizer(first, optim.Adam, group, lr=1e-2)
        optimizer.add_param_group({"params": second, "lr": 1e-3})
        return taken(optimizer), bytes_of_moments(optimizer)

    weights, nbytes = program()
    results = on_ranks(2, program)
    assert all(same(found, weights) for found, _ in results)
    assert sum(part for _, part in results) == nbytes


def test_the_state_is_whole_only_where_it_was_brought_after_the_last_step():
    def program(group):
        optimizer = ZeroRedundancyOptimizer(parameters(), optim.SGD, group, lr=0.1, momentum=0.9)
        taken(optimizer)
        optimizer.consolidate_state_dict(to=0)
        if group.rank() == 0:
            assert len(optimizer.state_dict()["state"]) == len(SHAPES)
        else:
            with pytest.raises(StateError, match=r"consolidate_state_dict\(to\) after the last step"):
                optimizer.state_dict()
        step(optimizer, 9)
        with pytest.raises(StateError, match=f"got none on rank {group.rank()}"):
            optimizer.state_dict()

    on_ranks(2, program)


def test_ranks_with_other_parameters_are_refused():
    def program(group):
        with pytest.raises(dist.DistError, match="needs the same call on every rank, got ZeroRedundancyOptimizer"):
            ZeroRedundancyOptimizer(parameters()[group.rank() :], optim.SGD, group, lr=0.1)

    on_ranks(2, program)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda g: ZeroRedundancyOptimizer(parameters(), "adam", g), DTypeError, "needs a class of ampkit.optim"),
        (lambda g: ZeroRedundancyOptimizer(parameters(), optim.LBFGS, g), ArgumentError, "updates parts .* LBFGS"),
        (lambda g: ZeroRedundancyOptimizer(parameters(), optim.Adam, g, overlap_with_ddp=True), ArgumentError, "False"),
        (lambda g: ZeroRedundancyOptimizer(parameters(), optim.Adam, g, lr=-1.0), ArgumentError, "lr"),
        (lambda g: ZeroRedundancyOptimizer(parameters(), optim.SGD, g, differentiable=True), ArgumentError, "False"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(make, error, said):
    def program(group):
        with pytest.raises(error, match=said):
            make(group)

    on_ranks(1, program)


def test_a_model_that_changes_afterwards_is_refused():
    def program(group):
        members = parameters()
        optimizer = ZeroRedundancyOptimizer(members, optim.SGD, group, lr=0.1)
        with pytest.raises(StateError, match="copy or a pickle"):
            copy.deepcopy(optimizer)
        members[0].data = ampkit.zeros(300, 7)
        with pytest.raises(StateError, match="parameters that stay in its memory"):
            step(optimizer, 1)
        newer = optim.SGD(members, lr=0.1)
        with pytest.raises(StateError, match="a newer optimizer holds"):
            step(optimizer, 1)
        return newer is not None

    assert on_ranks(2, program) == [True, True]


def test_without_a_group_it_needs_init_process_group():
    with pytest.raises(StateError, match="needs init_process_group"):
        ZeroRedundancyOptimizer(parameters(), optim.SGD, lr=0.1)
