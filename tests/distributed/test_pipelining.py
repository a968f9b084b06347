"""Pipelines of ranks that are threads: the bits of one process, schedules, scaling, clipping, states, errors."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from distributed.thread_ranks import on_mesh, on_ranks

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.core import random
from ampkit.distributed import DistError, checkpoint, fully_shard
from ampkit.distributed.checkpoint import state_dict as states
from ampkit.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, SplitPoint, pipeline
from ampkit.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.no_gpu
RNG = np.random.default_rng(5)
X = ampkit.tensor(RNG.standard_normal((3, 16, 12)), dtype=ampkit.float32)
Y = ampkit.tensor(RNG.integers(0, 5, (3, 16)))


class Block(nn.Module):
    """A residual block: its input is read twice."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 24), nn.Linear(24, 12)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.down(ops.gelu(self.up(self.norm(x)))))


def make(blocks=4):
    with random.drawing_from(random.Stream(3)):
        return nn.Sequential(nn.Linear(12, 12), *[Block() for _ in range(blocks)], nn.Linear(12, 5))


def stage_of(group, model=None, **options):
    """This rank's stage of a model of 6 modules."""
    starts = {1: [], 2: [3], 3: [2, 4], 4: [1, 3, 5]}[group.size()]
    pipe = pipeline(model or make(), split_spec={str(start): SplitPoint.BEGINNING for start in starts})
    return pipe.build_stage(group.rank(), group=group)


def gradients(module):
    return {name: p.grad.numpy().copy() for name, p in module.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def merged(parts):
    return {name: value for part in parts for name, value in part.items()}


REGIONS = {
    "float32": (nullcontext, False),
    "bfloat16": (lambda: ampkit.autocast(dtype=ampkit.bfloat16), False),
    "float16": (lambda: ampkit.autocast(dtype=ampkit.float16), True),
}


def scaler_of(scales):
    return ampkit.GradScaler(init_scale=2.0**24, backoff_factor=2.0**-10, enabled=scales)  # which skips the first step


def train_one(region, scales, count, steps=3):
    """One process that computes the micro-batches one by one: losses, scale, gradients of the last step, weights."""
    model, losses = make(), []
    optimizer, scaler = optim.AdamW(model.parameters(), lr=1e-2), scaler_of(scales)
    with random.drawing_from(random.Stream(7)):
        for step in range(steps):
            optimizer.zero_grad()
            for i, stream in enumerate(random.split_into(count)):
                rows = slice(16 // count * i, 16 // count * (i + 1))
                with region(), random.drawing_from(stream):
                    loss = ops.cross_entropy(model(X[step][rows]), Y[step][rows])
                scaler.scale(loss * (1 / count)).backward()
                losses.append(float(loss))
            found = gradients(model)
            scaler.step(optimizer)
            scaler.update()
    return losses, scaler.get_scale(), found, {n: p.numpy(force=True) for n, p in model.named_parameters()}


def train_stages(group, kind, region, scales, count, steps=3, model=None, rows=slice(None), wrap=None):
    stage = stage_of(group, model)
    scaler = scaler_of(scales)
    optimizer, losses, found = optim.AdamW(stage.submod.parameters(), lr=1e-2), [], []
    schedule = kind(stage, count, loss_fn=ops.cross_entropy, scaler=scaler)
    with random.drawing_from(random.Stream(7)):
        for step in range(steps):
            optimizer.zero_grad()
            with region():
                output = schedule.step(X[step][rows], target=Y[step][rows], losses=found)
            assert (output is None) != stage.is_last and (output is None or output.shape == (len(X[step][rows]), 5))
            losses += map(float, found)
            last = gradients(stage.submod)
            scaler.step(optimizer)
            scaler.update()
    return losses, scaler.get_scale(), last, {n: p.numpy(force=True) for n, p in stage.submod.named_parameters()}


@pytest.mark.parametrize("kind", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("name", REGIONS)
def test_stages_have_the_bits_of_one_process(name, kind):
    expected = train_one(*REGIONS[name], 8)
    assert all(np.isfinite(value).all() for value in expected[2].values())
    for size in (1, 2, 4):
        parts = on_ranks(size, lambda group: train_stages(group, kind, *REGIONS[name], 8))
        assert parts[-1][0] == expected[0]
        assert {part[1] for part in parts} == {expected[1]} and expected[1] == (2.0**14 if name == "float16" else 1)
        assert same(merged(part[2] for part in parts), expected[2])
        assert same(merged(part[3] for part in parts), expected[3])


def test_messages_go_by_sockets():
    expected = train_one(*REGIONS["bfloat16"], 4)
    parts = on_ranks(2, lambda g: train_stages(g, Schedule1F1B, *REGIONS["bfloat16"], 4), by="sockets")
    assert parts[-1][0] == expected[0] and same(merged(part[3] for part in parts), expected[3])


@pytest.mark.parametrize("shares", [False, True], ids=["replicas", "shared out"])
def test_stages_go_with_data_parallelism(shares):
    def program(group, data, stages):
        half = slice(8 * data.rank(), 8 * data.rank() + 8)
        part = pipeline(make().eval(), split_spec={"3": SplitPoint.BEGINNING}).get_stage_module(stages.rank())
        part = fully_shard(part, mesh=data) if shares else DistributedDataParallel(part, process_group=data)
        stage = PipelineStage(part, stages.rank(), 2, group=stages)
        optimizer, losses = optim.SGD(part.parameters(), lr=0.1), []
        schedule = Schedule1F1B(stage, 4, ops.cross_entropy)
        norms, messages = [], []
        for name in ("reduce_ranges", "all_reduce_array"):
            reduce = getattr(data, name)
            setattr(data, name, lambda *a, reduce=reduce, **k: (messages.append(a), reduce(*a, **k))[1])
        for step in range(3):
            schedule.step(X[step][half], target=Y[step][half], losses=losses, return_outputs=False)
            assert len(messages) == step + 1  # one reduction for all micro-batches
            norms.append(float(optim.clip_grad_norm_(part.parameters(), 0.1)))
            optimizer.step()
            optimizer.zero_grad()
            del messages[step + 1 :]
        whole = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in part.parameters())
        return norms, [p.numpy(force=True).copy() for p in whole]

    model, expected = make().eval(), []
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        ops.cross_entropy(model(X[step]), Y[step]).backward()
        expected.append(float(optim.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
        optimizer.zero_grad()
    found = on_mesh((2, 2), program)
    for norms, _ in found:
        np.testing.assert_allclose(norms, expected, rtol=1e-6)
    for weights in (found[0][1] + found[1][1], found[2][1] + found[3][1]):
        for one, other in zip(weights, model.parameters(), strict=True):
            np.testing.assert_allclose(one, other.numpy(force=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("before", [False, True], ids=["stage first", "optimizer first"])
def test_a_gradient_that_overflows_in_one_stage_skips_the_step_of_all(before):
    def program(group):
        model = pipeline(make(), split_spec={"3": SplitPoint.BEGINNING}).get_stage_module(group.rank())
        optimizer = optim.SGD(model.parameters(), lr=0.1) if before else None
        stage = PipelineStage(model, group.rank(), 2, group=group)
        optimizer = optimizer or optim.SGD(model.parameters(), lr=0.1)
        scaler = ampkit.GradScaler(init_scale=2.0)
        ScheduleGPipe(stage, 2, ops.cross_entropy, scaler=scaler).step(X[0], target=Y[0])
        if stage.is_last:
            next(model.parameters()).grad.fill_(np.inf)
        scaler.unscale_(optimizer)
        norm = float(optim.clip_grad_norm_(model.parameters(), 1.0))
        return scaler.step(optimizer).skipped, norm

    assert on_ranks(2, program) == [(True, np.inf)] * 2


def test_the_largest_gradient_of_all_stages_is_the_norm_of_infinite_order():
    def program(group):
        stage = stage_of(group)
        stage.submod.eval()
        ScheduleGPipe(stage, 1, ops.cross_entropy).step(X[0], target=Y[0])
        own = max(float(p.grad.abs().max()) for p in stage.submod.parameters())
        return own, float(optim.clip_grad_norm_(stage.submod.parameters(), 1e-3, norm_type=np.inf))

    found = on_ranks(3, program)
    assert {norm for _, norm in found} == {max(own for own, _ in found)} and len({own for own, _ in found}) == 3


def test_one_forward_one_backward_holds_as_many_micro_batches_as_stages_follow(monkeypatch):
    def most(kind):
        def program(group):
            stage, held = stage_of(group), []
            forward_one = stage.forward_one
            monkeypatch.setattr(stage, "forward_one", lambda *a: (forward_one(*a), held.append(len(stage._held)))[0])
            kind(stage, 16, ops.cross_entropy).step(X[0], target=Y[0])
            assert not stage._held and not stage.messages._sent
            return max(held)

        return on_ranks(3, program)

    assert most(ScheduleGPipe) == [16, 16, 16]
    assert most(Schedule1F1B) == [3, 2, 1]


def test_what_was_sent_is_let_go_of_within_a_step():
    def program(group):
        stage, most = stage_of(group), []
        begin = stage.messages._begin
        stage.messages._begin = lambda *a: (begin(*a), most.append(len(stage.messages._sent)))
        Schedule1F1B(stage, 16, ops.cross_entropy).step(X[0], target=Y[0])
        return max(most)

    assert on_ranks(3, program) == [12, 12, 12]


class Two(nn.Module):
    """Passes a tensor and a mask of no gradient on, and takes them."""

    def __init__(self, last=False):
        super().__init__()
        self.linear, self.last = nn.Linear(12, 12), last

    def forward(self, x, mask, scale=None):
        x = ops.where(mask, self.linear(x), 0.0) * (1.0 if scale is None else scale)
        return x if self.last else (x, mask)


def test_tuples_and_keywords_go_through_stages_and_eval_has_the_outputs():
    mask, scale = X[0] > 0, X[1][:, :1]
    with random.drawing_from(random.Stream(1)):
        parts = [Two(), Two(True)]
    expected = parts[1](*parts[0](X[0], mask), scale=scale)
    expected.sum().backward()

    def program(group):
        with random.drawing_from(random.Stream(1)):
            own = [Two(), Two(True)][group.rank()]
        stage = PipelineStage(own, group.rank(), 2, group=group)
        schedule = Schedule1F1B(stage, 2, lambda output, target: (output * target).sum(), scale_grads=False)
        arguments, named, losses = (X[0], mask) if stage.is_first else (), {"scale": scale} if stage.is_last else {}, []
        seen = schedule.eval(*arguments, **named)
        assert own.linear.weight.grad is None
        output = schedule.step(*arguments, target=ampkit.ones(16, 1), losses=losses, **named)
        if stage.is_last:
            assert output.equal(seen) and not output.requires_grad and len(losses) == 2
            np.testing.assert_allclose(output.numpy(), expected.numpy(force=True), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(own.linear.weight.grad, parts[group.rank()].linear.weight.grad, rtol=1e-4, atol=1e-5)

    on_ranks(2, program)


def test_checkpoints_of_stages_go_on_with_other_stages_and_whole(tmp_path):
    flat = states.StateDictOptions(flatten_optimizer_state_dict=True)

    def state_of(module, optimizer):
        return {
            "model": module.state_dict(),
            "optimizer": states.get_optimizer_state_dict(module, optimizer, options=flat),
        }

    def saving(group):
        stage = stage_of(group)
        optimizer = optim.AdamW(stage.submod.parameters(), lr=0.5, betas=(0.5, 0.75))
        ScheduleGPipe(stage, 1, ops.cross_entropy).step(X[0], target=Y[0])
        optimizer.step()
        checkpoint.save(state_of(stage.submod, optimizer), checkpoint_id=tmp_path, process_group=group)
        return state_of(stage.submod, optimizer)

    def loading(group):
        module = make() if group.size() == 1 else stage_of(group).submod
        optimizer = optim.AdamW(module.parameters())
        state = state_of(module, optimizer)
        checkpoint.load(state, checkpoint_id=tmp_path, process_group=group)
        module.load_state_dict(state["model"])
        states.set_optimizer_state_dict(module, optimizer, state["optimizer"], options=flat)
        assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (0.5, (0.5, 0.75))
        return state_of(module, optimizer)

    saved = on_ranks(2, saving)
    for size in (3, 1):
        loaded = on_ranks(size, loading)
        for part in ("model", "optimizer"):
            expected, found = (merged(each[part] for each in ranks) for ranks in (saved, loaded))
            assert expected.keys() == found.keys() and list(merged(s["model"] for s in saved)) == list(
                make().state_dict()
            )
            assert all(np.array_equal(np.array(expected[name]), np.array(found[name])) for name in expected)

    def incomplete(group):
        module = stage_of(group).submod
        with pytest.raises(StateError, match="entries of '0.weight', got a state without them"):
            states.set_optimizer_state_dict(module, optim.SGD(module.parameters()), {}, options=flat)
        optimizer = optim.SGD(module.parameters())
        with pytest.raises(StateError, match="an entry per parameter, for an optimizer of one stage of a pipeline"):
            checkpoint.save({"optimizer": optimizer}, checkpoint_id=tmp_path, process_group=group)
        with pytest.raises(StateError, match="an entry per parameter"):
            states.get_optimizer_state_dict(module, optimizer)

    on_ranks(1, incomplete)


@pytest.mark.parametrize(
    ("action", "error", "said"),
    [
        (lambda g: PipelineStage(make(), 1 - g.rank(), 2, group=g), ArgumentError, r"the 2 ranks of the group, st"),
        (lambda g: PipelineStage(make(), g.rank(), 4, group=g), ArgumentError, "got stage . of 4"),
        (lambda g: PipelineStage(nn.GELU(), g.rank(), 2, group=g), StateError, "a part with parameters"),
        (lambda g: PipelineStage([make()], g.rank(), 2, group=g), DTypeError, "needs a Module, got a list"),
        (lambda g: Schedule1F1B(make(), 2), DTypeError, "needs a PipelineStage, got a Sequential"),
        (lambda g: Schedule1F1B(stage_of(g), 0), ArgumentError, "n_microbatches from 1, got 0"),
        (lambda g: Schedule1F1B(stage_of(g), 2, args_chunk_spec=(1,)), ArgumentError, "no specs"),
        (lambda g: pipeline(Block()), DTypeError, "a Sequential, which is a list of modules, got a Block"),
        (lambda g: pipeline(make(), split_spec={"9": SplitPoint.END}), ArgumentError, "'9'"),
        (lambda g: pipeline(make(), split_spec={"5": SplitPoint.END}), ArgumentError, "a stage of none"),
        (lambda g: Schedule1F1B(stage_of(g), 2 + g.rank(), ops.cross_entropy).step(X[0], target=Y[0]), DistError,
         "n_microbatches 2 on rank 0, 3 on rank 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_on_every_rank(action, error, said):
    def program(group):
        with pytest.raises(error, match=said):
            action(group)
        return True

    assert on_ranks(2, program, timeout=5) == [True, True]


def test_an_error_in_one_stage_ends_the_others_and_the_schedule():
    def fail(output, target):
        raise ValueError("no loss")

    def program(group):
        stage = stage_of(group)
        schedule = Schedule1F1B(stage, 2, fail)
        with pytest.raises(ValueError if stage.is_last else DistError) as caught:
            schedule.step(X[0], target=Y[0])
        with pytest.raises(StateError, match="a schedule whose steps were complete"):
            schedule.step(X[0], target=Y[0])
        return str(caught.value)

    texts = on_ranks(3, program, timeout=0.5)
    assert texts[2] == "no loss" and "receive gradients of micro-batch 0 from stage 2" in texts[1]


@pytest.mark.parametrize(("rows", "target", "said"), [(15, 15, "16|first axis 4"), (16, 15, "first axis 4")])
def test_batches_that_micro_batches_do_not_divide_are_refused(rows, target, said):
    def program(group):
        with pytest.raises(
            (ShapeError, DistError), match=said if group.rank() == group.size() - 1 or rows < 16 else ""
        ):
            Schedule1F1B(stage_of(group), 4, ops.cross_entropy).step(X[0][:rows], target=Y[0][:target])

    on_ranks(1, program)
