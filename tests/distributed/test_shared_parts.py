"""fully_shard of layers that parallelize_module has divided, on meshes of ranks that are threads."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from distributed.test_tensor_parallel import gpt, make
from distributed.thread_ranks import on_mesh, on_ranks

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import StateError
from ampkit.distributed import checkpoint
from ampkit.distributed.checkpoint import state_dict as states
from ampkit.distributed.fsdp import fully_shard
from ampkit.distributed.tensor import ColwiseParallel, DTensor, Replicate, RowwiseParallel, parallelize_module
from ampkit.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.no_gpu
TOKENS, LABELS = ampkit.tensor(np.random.default_rng(3).integers(0, 30, (2, 3, 4, 8)))


class Net(nn.Module):
    """31 rows and 31 features, of which ranks have parts of other sizes."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(31, 10), nn.LayerNorm(10), nn.Linear(10, 31)
        self.up, self.down = nn.Linear(10, 12), nn.Linear(12, 10)

    def forward(self, tokens):
        x = self.table(tokens)
        return self.out(x + self.down(ops.gelu(self.up(self.norm(x)))))


PLAN = {
    "table": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel(),
    "out": ColwiseParallel(output_layouts=Replicate()),
}  # fmt: skip


def net():
    return make(Net)


def shared(model, data, tensor, **options):
    parallelize_module(model, tensor, PLAN if isinstance(model, Net) else None)
    for block in () if isinstance(model, Net) else model.transformer.h:
        fully_shard(block, mesh=data, **options)
    return fully_shard(model, mesh=data, **options)


def train(model, optimizer, group=None, steps=3, region=nullcontext, scaler=None):
    """The norm of the gradients in each step, of this rank's samples."""
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    rows, norms = slice(4 * rank // size, 4 * (rank + 1) // size), []
    scaler = scaler or ampkit.GradScaler(enabled=False)
    for step in range(steps):
        with region():
            logits = model(TOKENS[step % 3][rows])
            loss = ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), LABELS[step % 3][rows].reshape(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(float(optim.clip_grad_norm_(model.parameters(), 0.5)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return norms


def sgd(model):
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def whole(model):
    found = {n: p.full_tensor() if isinstance(p, DTensor) else p.detach() for n, p in model.named_parameters()}
    return {name: value.numpy().copy() for name, value in found.items()}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("kind", "steps", "dtype", "rtol"),
    [(lambda: make(gpt), 3, ampkit.float32, 1e-6), (net, 20, ampkit.float32, 1e-6), (net, 20, ampkit.float64, 1e-12)],
    ids=["gpt", "net, float32", "net, float64"],
)
def test_steps_have_the_numbers_of_one_process(kind, steps, dtype, rtol):
    plain = kind().to(dtype)
    expected = train(plain, sgd(plain), steps=steps)

    def program(world, data, tensor):
        model = shared(kind().to(dtype), data, tensor)
        assert sum(p.numel() for p in model.parameters()) < 0.35 * sum(p.numel() for p in plain.parameters())
        return train(model, sgd(model), data, steps), whole(model)

    for found, weights in on_mesh((2, 2), program):
        np.testing.assert_allclose(found, expected, rtol=rtol)
        for name, parameter in plain.named_parameters():
            np.testing.assert_allclose(weights[name], parameter.detach().numpy(), rtol, rtol, err_msg=name)


WAYS = {
    "stage 3": (nullcontext, False, {}),
    "stage 2": (nullcontext, False, {"reshard_after_forward": False}),
    "float16": (lambda: ampkit.autocast(dtype=ampkit.float16), True, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_steps_have_the_bits_of_replicas_of_divided_layers(way):
    region, scales, options = WAYS[way]

    def program(world, data, tensor):
        scalers = [ampkit.GradScaler(init_scale=2.0**24, enabled=scales) for _ in range(2)]
        plain = parallelize_module(net(), tensor, PLAN)
        replica = DistributedDataParallel(plain, process_group=data)
        expected = train(replica, sgd(plain), data, 4, region, scalers[0])
        model = shared(net(), data, tensor, **options)
        found = train(model, sgd(model), data, 4, region, scalers[1])
        assert np.array_equal(found, expected, equal_nan=True)
        assert scalers[0].get_scale() == scalers[1].get_scale() and np.isfinite(found[0]) != scales
        return same(whole(model), whole(plain))

    assert on_mesh((2, 3), program) == [True] * 6


@pytest.mark.parametrize("apart", [False, True])
def test_a_gradient_that_overflows_on_one_rank_skips_the_step_of_all(apart):
    def program(world, data, tensor):
        model, scaler = shared(net(), data, tensor), ampkit.GradScaler(init_scale=2.0)
        groups = [{"params": [p]} for p in model.parameters()] if apart else model.parameters()
        optimizer = optim.SGD(groups, lr=0.1)
        scaler.scale(model(TOKENS[0]).sum()).backward()
        if world.rank() == 3:
            model.up.weight.grad.fill_(np.inf)
        return scaler.step(optimizer).skipped

    assert on_mesh((2, 2), program) == [True] * 4


class Run:
    """A model and its optimizer, whole or in parts."""

    def __init__(self, kind, data=None, tensor=None, steps=0):
        self.model = kind() if tensor is None else shared(kind(), data, tensor)
        self.model = fully_shard(self.model, mesh=data) if tensor is None and data is not None else self.model
        self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)
        train(self.model, self.optimizer, data, steps)

    def all(self):
        options = states.StateDictOptions(full_state_dict=True)
        model, optimizer = states.get_state_dict(self.model, self.optimizer, options=options)
        moments = {f"{n}.{k}": v.numpy() for n, each in optimizer["state"].items() for k, v in each.items()}
        return {name: value.numpy() for name, value in model.items()} | moments

    def save(self, path, group):
        model, optimizer = states.get_state_dict(self.model, self.optimizer)
        checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=path, process_group=group)

    def load(self, path, group):
        for parameter in self.model.parameters():
            parameter.data = parameter.detach() * 0
        model, optimizer = states.get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        checkpoint.load(state, checkpoint_id=path, process_group=group)
        states.set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        return self


@pytest.mark.parametrize("kind", [net, lambda: make(gpt)], ids=["uneven", "blocks"])
def test_a_checkpoint_of_parts_is_loaded_on_every_other_layout(tmp_path, kind):
    def save(world, data, tensor):
        run = Run(kind, data, tensor, 2)
        run.save(tmp_path, world)
        return run.all()

    expected, *others = on_mesh((2, 2), save)
    assert all(same(expected, other) for other in others)

    def load(world, *groups):
        return same(Run(kind, *groups).load(tmp_path, world).all(), expected)

    assert on_mesh((1, 4), load) == [True] * 4
    assert on_mesh((3, 1), load) == [True] * 3
    assert on_mesh((3,), load) == [True] * 3  # rows alone
    assert on_ranks(1, load) == [True]  # whole

    def back(world, *groups):
        Run(kind).load(tmp_path, world).save(tmp_path / "whole", world)

    on_ranks(1, back)
    assert (
        on_mesh((2, 2), lambda world, *g: same(Run(kind, *g).load(tmp_path / "whole", world).all(), expected))
        == [True] * 4
    )


def test_states_are_loaded_whole_and_in_parts():
    source = make(gpt)

    def program(world, data, tensor):
        model, other = shared(make(gpt), data, tensor), shared(gpt(), data, tensor)
        for parameter in model.parameters():
            parameter.data = parameter.detach() * 0
        model.load_state_dict(source.state_dict())
        other.load_state_dict(model.state_dict())
        return whole(other)

    assert all(same(weights, whole(source)) for weights in on_mesh((2, 2), program))


def test_parts_are_not_shared_out_again_over_the_same_ranks():
    def program(world, data, tensor):
        model = parallelize_module(net(), tensor, PLAN)
        with pytest.raises(StateError, match=r"all of, got 'table.weight', of which ranks \[\d, \d\] have parts"):
            fully_shard(model, mesh=tensor)
        with pytest.raises(StateError, match="have parts"):
            fully_shard(fully_shard(net(), mesh=data).up, mesh=data)
        with pytest.raises(StateError, match="which is divided already"):
            parallelize_module(fully_shard(net(), mesh=data), tensor, PLAN)

    on_mesh((2, 2), program)
