"""DeterministicDataParallel: one result, bit for bit, on any number of ranks and threads, accumulated or not."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from distributed.thread_ranks import clipped_step, on_ranks

import ampkit
from ampkit import nn, ops, optim
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.errors import ArgumentError, ShapeError, StateError
from ampkit.core import random
from ampkit.distributed import DeterministicDataParallel, reduction
from ampkit.distributed import ZeroRedundancyOptimizer as Zero
from ampkit.distributed.deterministic import microbatches
from ampkit.distributed.reduction import in_tree

SAMPLES, STEPS = 16, 3
SCALE = 21  # in float16 the first step overflows
DTYPES = ["float32", "bfloat16", "float16"]


class Net(nn.Module):
    """Convolution, batch normalization, dropout, a weight that is used twice, and one that some samples do not use."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.twice = nn.Linear(4 * 36, 4 * 36)
        self.head = nn.Linear(4 * 36, 5)
        self.sometimes = nn.Linear(5, 5)

    def forward(self, x):
        y = self.features(x).flatten(1)
        y = self.head(self.twice(ops.gelu(self.twice(y))))
        return self.sometimes(y) if x[0, 0, 0, 0].item() > 0 else y


def batch(step):
    draw = np.random.default_rng(step)
    return draw.normal(size=(SAMPLES, 2, 6, 6)).astype(np.float32), draw.integers(0, 5, SAMPLES)


def cut(values, count):
    return np.split(values, count)


def train(group=None, *, threads=1, accumulate=1, dtype="float32", steps=range(STEPS), state=None, done=None):
    """Train, and return the digest of all that a training has, its losses and norms; `done` receives its state."""
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    with random.drawing_from(random.Stream(5)):
        model = Net()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        scaler = ampkit.GradScaler(enabled=dtype == "float16", init_scale=2.0**SCALE)
        parallel = DeterministicDataParallel(model, 8, group, threads=threads, bucket_cap_mb=0.05)
        if state is not None:
            for part, saved in zip((model, optimizer, scaler), state, strict=False):
                part.load_state_dict(saved)
            random.default.restore(state[3])

        def loss_of(model, x, y):
            with ampkit.autocast(dtype=dtype, enabled=dtype != "float32"):
                return ops.cross_entropy(model(x), y)

        measured = []
        for step in steps:
            x, y = (cut(values, size)[rank] for values in batch(step))
            parts = [
                tuple(map(ampkit.tensor, both)) for both in zip(cut(x, accumulate), cut(y, accumulate), strict=True)
            ]
            loss = parallel.forward_backward(loss_of, parts, scaler)
            norm = clipped_step(model, optimizer, scaler)
            measured += [loss.item(), norm.item()]
        if done is not None:
            done.append((model.state_dict(), optimizer.state_dict(), scaler.state_dict(), random.default.state()))
        return digest(model, optimizer, scaler), measured


def digest(model, optimizer, scaler):
    found = hashlib.sha256()
    moments = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    for tensor in [*model.state_dict().values(), *moments]:
        found.update(tensor.numpy(force=True).tobytes())
    return found.hexdigest()[:16] + str(scaler.state_dict())


def on(size, **options):
    return [train(**options)] if size == 1 else on_ranks(size, lambda group: train(group, **options))


def need_same(found, expected):
    for each in found:
        np.testing.assert_array_equal(each[1], expected[1])
        assert each[0] == expected[0]


@pytest.mark.no_gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_ranks_threads_and_accumulation_give_the_same_bits(dtype):
    expected = train(dtype=dtype)
    ways = [(1, 2, 4), (2, 2, 2), (4, 1, 2), (8, 1, 1)]
    for size, threads, accumulate in ways:
        need_same(on(size, threads=threads, accumulate=accumulate, dtype=dtype), expected)


def test_a_training_is_that_of_the_whole_batch_up_to_rounding():
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).double()
    x, y = ampkit.randn(16, 6, dtype="float64"), ampkit.randint(0, 3, (16,))
    ops.cross_entropy(model(x), y).backward()
    expected = [parameter.grad.numpy(force=True).copy() for parameter in model.parameters()]
    model.zero_grad()
    parallel = DeterministicDataParallel(model, 8)
    loss = parallel.forward_backward(lambda model, x, y: ops.cross_entropy(model(x), y), [(x, y)])
    np.testing.assert_allclose(loss.item(), ops.cross_entropy(model(x), y).item(), 1e-13)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.grad.numpy(force=True), gradient, 1e-12, 1e-15)


@pytest.mark.no_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_training_goes_on_with_another_number_of_ranks(dtype):
    whole, states = train(dtype=dtype), []
    train(threads=2, dtype=dtype, steps=range(1), done=states)
    for size in (2, 4):
        found = on(size, dtype=dtype, steps=range(1, STEPS), state=states[0])
        assert {each[0] for each in found} == {whole[0]}
        np.testing.assert_array_equal(found[0][1], whole[1][2:])


def test_running_statistics_are_the_means_of_what_they_are_after_each_microbatch():
    layer, x = nn.BatchNorm1d(3), ampkit.randn(16, 3)
    parallel = DeterministicDataParallel(layer, 4)
    parallel.forward_backward(lambda layer, x: layer(x).square().mean(), [x])
    values = x.numpy(force=True).astype(np.float64).reshape(4, 4, 3)
    np.testing.assert_allclose(layer.running_mean.numpy(force=True), 0.1 * values.mean((0, 1)), 1e-5, 1e-7)
    variance = 0.9 + 0.1 * values.var(1, ddof=1).mean(0)
    np.testing.assert_allclose(layer.running_var.numpy(force=True), variance, 1e-5)
    assert layer.num_batches_tracked.item() == 1


# each piece is needed


def in_sequence(values, combine):
    total = values[0]
    for value in values[1:]:
        total = combine(total, value)
    return total


def the_order_of_ranks(patch):
    patch.setattr(reduction, "in_tree", in_sequence)


def the_order_of_microbatches(patch):
    class InSequence(microbatches.TreeSum):
        def add(self, place, gradients):
            self.total = gradients if not self.total else microbatches._sums(self.total, gradients, False)

    patch.setattr(microbatches, "TreeSum", InSequence)


def random_numbers(patch):
    patch.setattr(random, "split_into", lambda count: [random.split()] * count)


def buffers_before(patch):
    patch.setattr(nn.Module, "named_buffers", lambda self, *a, **k: iter(()))


@pytest.mark.no_gpu
@pytest.mark.parametrize("piece", [the_order_of_ranks, the_order_of_microbatches, random_numbers, buffers_before])
def test_without_one_piece_the_bits_differ(piece, monkeypatch):
    piece(monkeypatch)
    assert on(4, dtype="float32")[0][0] != on(2, dtype="float32")[0][0]


@pytest.mark.no_gpu
def test_a_microbatch_is_computed_by_one_thread():
    found = set()

    def loss_of(model, x):
        found.add(get_num_threads())
        return model(x).mean()

    before = get_num_threads()
    set_num_threads(2)
    try:
        of(threads=2).forward_backward(loss_of, [ampkit.ones(8, 2)])
    finally:
        set_num_threads(before)
    assert found == {1}


@pytest.mark.no_gpu
@pytest.mark.parametrize("size", [2, 4])
def test_a_sharded_optimizer_state_gives_the_same_bits(size):
    def program(group=None):
        with random.drawing_from(random.Stream(5)):
            model = nn.Sequential(nn.Linear(6, 40), nn.GELU(), nn.Dropout(0.2), nn.Linear(40, 3))
            sharded = {"optimizer_class": optim.AdamW, "process_group": group, "lr": 1e-2}
            plain = group is None
            optimizer = optim.AdamW(model.parameters(), lr=1e-2) if plain else Zero(model.parameters(), **sharded)
            parallel = DeterministicDataParallel(model, 8, group)
            for step in range(STEPS):
                x = np.random.default_rng(step).normal(size=(SAMPLES, 6)).astype(np.float32)
                mine = x if plain else cut(x, size)[group.rank()]
                parallel.forward_backward(lambda model, x: model(x).square().mean(), [ampkit.tensor(mine)])
                optimizer.step()
                optimizer.zero_grad()
            return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())

    assert on_ranks(size, program) == [program()] * size


def test_a_tree_of_parts_is_the_tree_of_the_whole():
    values = np.random.default_rng(0).normal(size=8).astype(np.float32) * 10.0 ** np.arange(8).astype(np.float32)
    whole = in_tree(list(values), np.add)
    for size in (2, 4):
        assert in_tree([in_tree(list(part), np.add) for part in np.split(values, size)], np.add) == whole
    assert in_sequence(list(values), np.add) != whole


# bad input


def of(count=8, size=1, **options):
    return DeterministicDataParallel(nn.Linear(2, 2), count, **options)


def mean(model, x):
    return model(x).mean()


def test_what_cannot_be_deterministic_is_refused():
    with pytest.raises(ArgumentError, match="microbatches as a power of 2 that the number of ranks, 1, divides, got 6"):
        of(6)
    with pytest.raises(ArgumentError, match="microbatches from 1, got 0"):
        of(0)
    with pytest.raises(StateError, match="batch normalization of a microbatch, got SyncBatchNorm"):
        DeterministicDataParallel(nn.SyncBatchNorm(2))
    with pytest.raises(
        ShapeError, match="batches of one length, a multiple of 8, as of 8 microbatches on 1 rank, got 12"
    ):
        of().forward_backward(mean, [ampkit.ones(12, 2)])
    with pytest.raises(ShapeError, match="batches whose number divides 8, of 8 microbatches on 1 rank, got 3"):
        of().forward_backward(mean, [ampkit.ones(8, 2)] * 3)
    with pytest.raises(
        ShapeError, match="a loss of one floating-point number, a Tensor \\[\\], got float32 \\[1, 2\\]"
    ):
        of().forward_backward(lambda model, x: model(x), [ampkit.ones(8, 2)])


def test_draws_from_a_generator_of_ones_own_are_refused():
    own = ampkit.Generator()

    def loss_of(model, x):
        return (model(x) * ampkit.rand(x.shape, generator=own, device=x.device)).mean()

    with pytest.raises(StateError, match="a draw within a microbatch: needs the default random stream, got another"):
        of().forward_backward(loss_of, [ampkit.ones(8, 2)])


def test_gradients_that_are_there_already_and_nondeterministic_algorithms_are_refused():
    parallel, x = of(), ampkit.ones(8, 2)
    parallel.forward_backward(mean, [x])
    with pytest.raises(StateError, match="parameters without gradients, got some that have one"):
        parallel.forward_backward(mean, [x])
    parallel.module.zero_grad()
    ampkit.use_deterministic_algorithms(False)
    try:
        with pytest.raises(StateError, match=r"deterministic algorithms, got use_deterministic_algorithms\(False\)"):
            parallel.forward_backward(mean, [x])
    finally:
        ampkit.use_deterministic_algorithms(True)
    parallel.forward_backward(mean, [x])


@pytest.mark.no_gpu
def test_ranks_that_do_not_divide_the_microbatches_and_unequal_batches_are_refused_on_all():
    def three(group):
        with pytest.raises(ArgumentError, match="that the number of ranks, 3, divides, got 8"):
            DeterministicDataParallel(nn.Linear(2, 2), 8, group)

    def unequal(group):
        parallel = DeterministicDataParallel(nn.Linear(2, 2), 8, group)
        with pytest.raises(ShapeError, match="batches of one length on all ranks, got"):
            parallel.forward_backward(mean, [ampkit.ones(8 if group.rank() else 4, 2)])

    on_ranks(3, three)
    on_ranks(2, unequal)


def test_an_error_in_a_microbatch_is_raised_and_the_next_update_goes_on():
    parallel, x = of(threads=2), ampkit.ones(8, 2)

    def failing(model, x):
        raise ValueError("sample 3")

    with pytest.raises(ValueError, match="sample 3"):
        parallel.forward_backward(failing, [x])
    assert np.isfinite(parallel.forward_backward(mean, [x]).item())
