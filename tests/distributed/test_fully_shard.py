"""fully_shard on ranks that are threads: bits of data parallelism, memory, mixed precision, and what it refuses."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import distributed as dist
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from ampkit.distributed.fsdp.group import ShardedGroup
from ampkit.distributed.tensor import ColwiseParallel, parallelize_module
from ampkit.nn.parallel import DistributedDataParallel
from ampkit.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

pytestmark = pytest.mark.no_gpu
ONE_BY_ONE = threading.Lock()  # the random stream is one for all threads
RNG = np.random.default_rng(1)
TOKENS, LABELS = RNG.integers(0, 17, (20, 12)), RNG.integers(0, 5, (20, 12))


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 4 * size - 1), nn.Linear(4 * size - 1, size)

    def forward(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, size=10, blocks=2, recompute=False, tied=False):
        super().__init__()
        self.embedding, self.recompute = nn.Embedding(17, size), recompute
        self.blocks = nn.ModuleList([Block(size) for _ in range(blocks)])
        self.head = nn.Linear(size, 17 if tied else 5, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = ampkit.recompute(block, x) if self.recompute else block(x)
        return self.head(x)


def make(dtype=ampkit.float32, **options):
    with ONE_BY_ONE:
        ampkit.manual_seed(0)
        return Net(**options).to(dtype)


def shard(model, group, **options):
    for block in model.blocks:
        fully_shard(block, mesh=group, **options)
    return fully_shard(model, mesh=group, **options)


def part(group, values):
    rank, size = group.rank(), group.size()
    return ampkit.tensor(values[:, len(values[0]) * rank // size : len(values[0]) * (rank + 1) // size])


def loss_of(model, group, step):
    x, y = part(group, TOKENS)[step], part(group, LABELS)[step]
    return ops.cross_entropy(model(x).float(), y)


def train(model, group, steps=4, kind=optim.AdamW, region=nullcontext, scaler=None, clip=None, **options):
    """The loss of each step; a step with gradients that overflow is skipped."""
    optimizer, losses = kind(model.parameters(), **{"lr": 1e-2, **options}), []
    scaler = scaler or ampkit.GradScaler(enabled=False)
    for step in range(steps):
        with region():
            loss = loss_of(model, group, step)
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def whole(model):
    return [p.full_tensor().numpy() if hasattr(p, "full_tensor") else p.detach().numpy() for p in model.parameters()]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def in_bfloat16():
    return ampkit.autocast(dtype=ampkit.bfloat16)


def in_float16():
    return ampkit.autocast(dtype=ampkit.float16)


@pytest.mark.parametrize(("size", "reshards"), [(1, True), (2, None), (3, False), (4, True)])
def test_steps_have_the_bits_of_data_parallelism(size, reshards):
    def program(group):
        plain, model = DistributedDataParallel(make(), process_group=group), make()
        expected = train(plain, group), whole(plain)
        found = train(shard(model, group, reshard_after_forward=reshards), group), whole(model)
        return found[0] == expected[0] and same(found[1], expected[1])

    assert all(on_ranks(size, program))


def test_steps_by_sockets_have_the_bits_of_those_in_memory():
    def program(group):
        model = make()
        return train(shard(model, group), group, region=in_bfloat16, clip=1.0), whole(model)

    for (a, weights), (b, others) in zip(on_ranks(4, program), on_ranks(4, program, by="sockets"), strict=True):
        assert a == b and same(weights, others)


@pytest.mark.parametrize(("size", "reshards"), [(2, True), (4, False)])
def test_twenty_steps_are_those_of_one_process(size, reshards):
    def alone(group):
        model = make()
        return train(model, group, 20, optim.SGD, lr=0.1, clip=1.0), whole(model)

    (losses, weights), *_ = on_ranks(1, alone)

    def program(group):
        model = shard(make(), group, reshard_after_forward=reshards)
        found = train(model, group, 20, optim.SGD, lr=0.1, clip=1.0)
        return found, whole(model)

    results = on_ranks(size, program)
    np.testing.assert_allclose(np.mean([found for found, _ in results], axis=0), losses, rtol=1e-6)
    for _, found in results:
        for a, b in zip(found, weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())


@pytest.mark.parametrize(
    ("region", "dtype"), [(in_bfloat16, "float32"), (in_float16, "float32"), (nullcontext, "bfloat16")]
)
def test_sixteen_bits_have_the_bits_of_data_parallelism(region, dtype):
    def program(group):
        found = []
        for wrap in (lambda m: DistributedDataParallel(m, process_group=group), lambda m: shard(m, group)):
            model, scaler = make(getattr(ampkit, dtype)), ampkit.GradScaler(init_scale=2.0**40, backoff_factor=2.0**-12)
            losses = train(wrap(model), group, 4, region=region, scaler=scaler)
            found.append((losses, scaler.get_scale(), [w.astype(np.float32) for w in map(np.asarray, whole(model))]))
        (a, scale, weights), (b, other, others) = found
        return a == b and scale == other and same(weights, others), scale

    results = on_ranks(3, program)
    assert all(equal for equal, _ in results)
    assert results[0][1] < 2.0**40 or region is not in_float16  # some steps were skipped, on all ranks


@pytest.mark.parametrize("unscales", [False, True])
def test_an_overflow_in_the_rows_of_one_rank_skips_the_step_of_all(unscales):
    def program(group):
        model = shard(make(), group)
        optimizer, scaler = optim.SGD(model.parameters(), lr=0.1), ampkit.GradScaler(init_scale=8.0)
        before = whole(model)
        scaler.scale(loss_of(model, group, 0)).backward()
        if group.rank() == 1:
            model.head.weight.grad[0, 0] = float("inf")
        if unscales:
            scaler.unscale_(optimizer)
        skipped = scaler.step(optimizer).skipped
        scaler.update()
        return skipped, scaler.get_scale(), same(whole(model), before)

    assert on_ranks(3, program) == [(True, 4.0, True)] * 3


@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16])
def test_parameters_are_gathered_and_gradients_reduced_in_the_dtypes_of_the_policy(dtype):
    seen = []

    def program(group):
        model = make()
        for block in model.blocks:
            fully_shard(block, mesh=group, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        fully_shard(model, mesh=group, mp_policy=MixedPrecisionPolicy(dtype, output_dtype=ampkit.float32))
        model.blocks[0].up.register_forward_hook(lambda m, x, y: seen.append((m.weight.dtype, x[0].dtype, y.dtype)))
        run = group.transport.exchange
        calls = []
        group.transport.exchange = lambda call, *rest: (calls.append(call.says), run(call, *rest))[1]
        scaler = ampkit.GradScaler(init_scale=256.0, enabled=dtype == ampkit.float16)
        losses = train(model, group, 20, scaler=scaler, clip=1.0)
        reduced = {call.split()[1] for call in calls if call.startswith("reduce_ranges")}
        return losses, reduced, {p.dtype for p in model.parameters()}

    results = on_ranks(2, program)
    exact, *_ = on_ranks(1, lambda group: train(make(), group, 20, clip=1.0))
    assert all(reduced == {f"{dtype}".rpartition(".")[2] + ","} for _, reduced, _ in results)
    assert all(kept == {ampkit.float32} for _, _, kept in results)
    assert set(seen) == {(dtype, dtype, dtype)}
    np.testing.assert_allclose(np.mean([losses for losses, *_ in results], axis=0), exact, rtol=0.02)


@pytest.mark.parametrize("region", [nullcontext, in_bfloat16])
@pytest.mark.parametrize("policy", [None, MixedPrecisionPolicy(param_dtype=ampkit.bfloat16)])
def test_no_full_parameter_lives_between_forward_and_backward(region, policy, monkeypatch):
    let_go, reshard = [], ShardedGroup.reshard

    def noted(self):
        for member in self.members if self.is_unsharded else ():
            casts = [cast for _, cast in (member.full._cast_copies or {}).values()]
            held = casts if member.full.is_absent else [member.full.array, *casts]
            let_go.extend(map(weakref.ref, held))
        reshard(self)

    monkeypatch.setattr(ShardedGroup, "reshard", noted)

    def program(group):
        model = shard(make(), group, reshard_after_forward=True, mp_policy=policy)
        with region():
            loss = loss_of(model, group, 0)
        gc.collect()
        assert len(let_go) > 12
        assert not [array for array in let_go if array() is not None]
        loss.backward()
        assert not [array for array in let_go if array() is not None]
        return all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())

    assert on_ranks(1, program) == [True]


def counted(group):
    """The bytes of each gather of the group from now on."""
    found, gather = [], group.gather_ranges

    def gather_ranges(mine, whole, bounds, **options):
        found.append(bounds[-1] * mine.itemsize)
        return gather(mine, whole, bounds, **options)

    group.gather_ranges = gather_ranges
    return found


AS_STORED = MixedPrecisionPolicy(param_dtype=ampkit.float32, cast_forward_inputs=False)


@pytest.mark.parametrize("region", [in_bfloat16, in_float16])
def test_autocast_gathers_in_16_bits_what_products_read(region):
    def step(model, group, number):
        with region():
            loss = loss_of(model, group, number)
        loss.backward()
        found = float(loss), [p.grad.numpy() for p in model.parameters()]
        model.zero_grad()
        return found

    def program(group):
        model, stored = shard(make(size=16), group), shard(make(size=16), group, mp_policy=AS_STORED)
        expected, sizes, alike = {}, counted(group), []
        for name, module in model.named_modules():
            for kind, parameter in module._parameters.items():
                rows = parameter._sharding
                width = 2 if isinstance(module, nn.Linear) else 4  # norms and tables are read as they are stored
                parts = [(end - begin) * rows.row_size * width for begin, end in pairwise(rows.bounds)]
                passes = 2 if name.startswith("blocks.") else 1  # the root keeps its own for the backward
                expected[name, kind] = passes * sum(-(-part // 16) * 16 for part in parts)
        for number in range(3):
            sizes.clear()
            found = step(model, group, number)
            taken = list(sizes)
            other = step(stored, group, number)
            alike.append(found[0] == other[0] and same(found[1], other[1]))
        return alike, taken, sum(expected.values()), sum(sizes) - sum(taken)

    for alike, taken, expected, _ in on_ranks(2, program):
        assert alike == [True] * 3
        assert (len(taken), sum(taken)) == (5, expected)  # two blocks twice, and the root


class Reads(nn.Linear):
    """A layer that reads its weight by a function of the test, from the second call on."""

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        x = super().forward(x)
        self.found = x.float() if self.calls < 2 else self.read(x)
        return self.found


def off(module, x):
    with ampkit.autocast(enabled=False):
        return ops.linear(x.float(), module.weight)


READS = {
    "off": off,
    "list": lambda m, x: ops.cat([m.weight, m.weight]),
    "view": lambda m, x: m.weight.T.contiguous(),
    "float32": lambda m, x: ops.sum(m.weight * m.weight),
    "detach": lambda m, x: m.weight.detach() * 1,
    "data": lambda m, x: m.weight.data + m.bias,
    "numpy": lambda m, x: ampkit.tensor(m.weight.detach().numpy()),
    "half": lambda m, x: m.weight.half(),
    "text": lambda m, x: ampkit.tensor(float(len(str(m.weight)))),
    "item": lambda m, x: ampkit.tensor(m.weight[1, 2].item()),
}


@pytest.mark.parametrize("read", READS)
def test_what_reads_a_parameter_as_it_is_stored_after_all_gathers_it(read):
    def program(group):
        with ONE_BY_ONE:
            ampkit.manual_seed(3)
            plain, model = Reads(6, 6), Reads(6, 6)
        model.load_state_dict(plain.state_dict())
        fully_shard(model, mesh=group, reshard_after_forward=True)
        x, sizes, found = ampkit.ones(2, 6), counted(group), []
        for module in (plain, model):
            module.read = READS[read].__get__(module)
            with in_bfloat16():
                results = [module(x) for _ in range(3)]
            taken = list(sizes)
            (ops.sum(results[-1]) + ops.sum(results[0])).backward()
            gradient = module.weight.grad if module is plain else module.weight.grad.full_tensor()
            found.append([*(each.detach().numpy() for each in results), gradient.numpy()])
        assert same(*found)
        return taken

    for taken in on_ranks(2, program):
        assert len(taken) > 3 and taken[0] < taken[-1]  # the third call knows what the second has read


def test_a_read_on_one_rank_alone_is_an_error_that_names_the_other():
    def program(group):
        model = fully_shard(nn.Linear(6, 6), mesh=group)
        if group.rank() == 0:
            model.register_forward_pre_hook(lambda m, x: str(m.weight) and None)
        with in_bfloat16(), pytest.raises(dist.DistError, match="the same call on every rank"):
            ops.sum(model(ampkit.ones(2, 6))).backward()
        return True

    assert on_ranks(2, program, timeout=5) == [True, True]


@pytest.mark.parametrize("reshards", [False, True])
def test_two_policies_in_turn_have_the_bits_of_each(reshards):
    def program(group):
        x, found = ampkit.ones(2, 6) / 3, []
        for sharded in (False, True):
            with ONE_BY_ONE:
                ampkit.manual_seed(3)
                model = nn.Linear(6, 1)
            model = fully_shard(model, mesh=group, reshard_after_forward=reshards) if sharded else model
            results = []
            for region in (in_bfloat16, in_float16, nullcontext, in_float16):
                with region():
                    results.append(model(x).float())
            ops.sum(results[0] + results[1] + results[2] * results[3]).backward()
            gradient = model.weight.grad.full_tensor() if sharded else model.weight.grad
            found.append([*(each.detach().numpy() for each in results), gradient.numpy()])
        return same(*found)

    assert on_ranks(2, program) == [True, True]


def bytes_of(model, optimizer):
    states = [array for group in optimizer.param_groups for a in group.arenas for array in a.moment_arrays()]
    arenas = [array for group in optimizer.param_groups for a in group.arenas for array in (a.master, a.gradient)]
    return sum(array.nbytes for array in (*arenas, *states))


def test_a_rank_has_its_part_of_parameters_gradients_and_state():
    def program(group, wrap):
        model = wrap(make(size=64, blocks=4))
        optimizer = optim.AdamW(model.parameters())
        loss_of(model, group, 0).backward()
        largest = max(p.nbytes for p in model.parameters()) if wrap is not make else 0
        optimizer.step()
        return bytes_of(model, optimizer) + largest

    (alone,) = on_ranks(1, lambda group: program(group, lambda m: m))
    for found in on_ranks(4, lambda group: program(group, lambda m: shard(m, group))):
        assert found < 0.4 * alone


def test_gradients_accumulate_whole_until_a_pass_that_reduces():
    def program(group):
        model, plain = shard(make(), group), DistributedDataParallel(make(), process_group=group)
        for step in range(3):
            model.set_requires_gradient_sync(step == 2)
            loss_of(model, group, step).backward()
            with nullcontext() if step == 2 else plain.no_sync():
                loss_of(plain, group, step).backward()
            assert all((p.grad is None) == (step < 2) for p in model.parameters())
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        return all(np.array_equal(a.grad.numpy(), b.grad.numpy()[a._sharding.rows]) for a, b in pairs)

    assert all(on_ranks(2, program))


@pytest.mark.parametrize("size", [1, 3])
def test_recomputed_blocks_and_tied_weights(size):
    def program(group):
        found = []
        for recompute in (False, True):
            model = shard(make(recompute=recompute, tied=True), group, reshard_after_forward=True)
            found.append((train(model, group), whole(model)))
        return found[0][0] == found[1][0] and same(found[0][1], found[1][1]), found[0][0]

    results = on_ranks(size, program)
    assert all(equal for equal, _ in results)
    plain = on_ranks(size, lambda g: train(DistributedDataParallel(make(tied=True), process_group=g), g))
    assert [losses for _, losses in results] == plain


def test_averages_of_weights_are_shared_out_too():
    def program(group):
        model, plain = shard(make(), group), make()
        averages = [AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.5)) for m in (model, plain)]
        optimizers = [optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
        for step in range(2):
            for m, optimizer, average in zip((model, plain), optimizers, averages, strict=True):
                ops.cross_entropy(m(ampkit.tensor(TOKENS[step])), ampkit.tensor(LABELS[step])).backward()
                optimizer.step()
                optimizer.zero_grad()
                average.update_parameters(m)
        with ampkit.no_grad():
            outputs = [average(ampkit.tensor(TOKENS[0])).numpy() for average in averages]
        np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-6)

    on_ranks(2, program)


def test_a_state_dict_has_this_ranks_rows_and_loads_whole_ones_too():
    def program(group):
        model, other = shard(make(), group), make()
        state = {name: value + 1 for name, value in other.state_dict().items()}
        model.load_state_dict(state)
        assert same(whole(model), [value.numpy() for value in state.values()])
        again = shard(make(), group)
        again.load_state_dict(model.state_dict())
        assert same(whole(again), whole(model))
        rows = model.state_dict()["blocks.0.up.weight"]
        return rows.full_shape, tuple(rows.shape), type(copy.deepcopy(rows)).__name__

    results = on_ranks(2, program)
    assert results == [((39, 10), (20, 10), "ShardedTensor"), ((39, 10), (19, 10), "ShardedTensor")]


def test_frozen_parameters_several_dtypes_and_unused_ones():
    def program(group):
        model = make()
        model.blocks[1].to(ampkit.bfloat16).down.weight.requires_grad_(False)
        model.spare = nn.Linear(3, 3)
        shard(model, group)
        x = model.embedding.weight.dtype
        with in_bfloat16():
            loss_of(model, group, 0).backward()
        named = dict(model.named_parameters())
        return x, {name for name, p in named.items() if p.grad is None}, isinstance(model.blocks[0], FSDPModule)

    for dtype, without, is_sharded in on_ranks(2, program):
        assert (dtype, is_sharded) == (ampkit.float32, True)
        assert without == {"blocks.1.down.weight", "spare.weight", "spare.bias"}


def tied_across(group):
    model = make(tied=True)
    fully_shard(model.embedding, mesh=group)
    fully_shard(model, mesh=group)


def scalar(group):
    module = nn.Linear(2, 2)
    module.gain = nn.Parameter(ampkit.tensor(1.0))
    fully_shard(module, mesh=group)


def divided(group):
    fully_shard(parallelize_module(nn.Linear(4, 4), group, ColwiseParallel()), mesh=group)


@pytest.mark.parametrize(
    ("action", "error", "said"),
    [
        (tied_across, StateError, r"'head.weight', which 'embedding' shares out"),
        (divided, StateError, r"got 'weight', of which ranks \[0, 1\] have parts\s+help: .* the other dim"),
        (scalar, ShapeError, r"with an axis to cut along, got 'gain' \[\]"),
        (lambda g: fully_shard(shard(make(), g), mesh=g), StateError, "a FSDPNet that is"),
        (lambda g: fully_shard(nn.ReLU(), mesh=g), ArgumentError, "a module with parameters, got a ReLU without"),
        (lambda g: fully_shard([make()], mesh=g), DTypeError, "needs a Module, got a list"),
        (lambda g: optim.LAMB(shard(make(), g).parameters()), ArgumentError, "LAMB, whose update reads whole"),
        (lambda g: optim.Muon([shard(make(), g).head.weight]), ArgumentError, "Muon, whose update reads whole"),
        (lambda g: MixedPrecisionPolicy(param_dtype=ampkit.int32), DTypeError, "floating-point param_dtype"),
        (lambda g: fully_shard(make(size=4 + g.rank()), mesh=g), dist.DistError, r"\[17, 4\].* on rank 0, .*\[17, 5\]"),
        (lambda g: copy.copy(shard(make(), g).head.weight).__reduce__()[2][0]["_sharding"].__reduce__(),
         StateError, "whose rows ranks share out"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_out_is_refused_on_every_rank(action, error, said):
    def program(group):
        with pytest.raises(error, match=said):
            action(group)
        return True

    assert on_ranks(2, program) == [True, True]


def test_a_step_between_forward_and_backward_is_refused():
    def program(group):
        model = shard(make(), group, reshard_after_forward=True)
        loss = loss_of(model, group, 0)
        with ampkit.no_grad():
            model.head.weight.mul_(2.0)
        with pytest.raises(StateError, match="changed in place since"):
            loss.backward()

    on_ranks(1, program)


@pytest.mark.parametrize("at", [0, 1])
def test_gradients_of_a_backward_that_failed_do_not_come_back(at):
    def program(group):
        found = []
        for fails in (False, True):
            model = shard(make(), group, reshard_after_forward=True)
            if fails:
                handle = model.blocks[at].register_full_backward_hook(lambda *args: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    loss_of(model, group, 2).backward()
                handle.remove()
                model.zero_grad()
            train(model, group, 2, optim.SGD, lr=0.1)
            found.append(whole(model))
        return same(*found)

    assert on_ranks(2, program) == [True, True]


def test_without_a_group_it_needs_init_process_group():
    with pytest.raises(StateError, match="needs init_process_group"):
        fully_shard(nn.Linear(2, 2))
