"""Gathers that begin while the module before computes: their order, and what changes it."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from distributed.test_fully_shard import in_bfloat16, loss_of, make, same, shard, train, whole
from distributed.thread_ranks import on_ranks

import ampkit
from ampkit import distributed as dist
from ampkit import ops
from ampkit.distributed.fsdp.group import ShardedGroup
from ampkit.distributed.fsdp.prefetch import prefetch

pytestmark = pytest.mark.no_gpu


def noted(model, group):
    """What happens from now on, in order: gathers that begin, forwards that end, gradients that are complete."""
    events, names = [], {}
    for name, module in model.named_modules():
        if "_fsdp" in module.__dict__:
            state = module.__dict__["_fsdp"]
            names[id(state.group)] = said = name.removeprefix("blocks.") or "root"
            module.register_forward_hook(lambda m, x, y, said=said: events.append(f"{said} computed"))

    def note(self, *rest):
        begun = gather(self, *rest)
        events.append(f"{names[id(self)]} {'ahead' if rest[1:] == (True,) else 'gathered'}")
        return begun

    def reduce(self):
        if any(member.full._grad is not None for member in self.members):
            events.append(f"{names[id(self)]} reduced")
        ShardedGroup.reduce(self)

    gather = ShardedGroup._gather
    for module in model.modules():
        if "_fsdp" in module.__dict__:
            found = module.__dict__["_fsdp"].group
            found._gather, found.reduce = note.__get__(found), reduce.__get__(found)
    return events


@pytest.mark.parametrize("region", [nullcontext, in_bfloat16])
def test_the_next_module_is_gathered_while_this_one_computes(region):
    def program(group):
        model = shard(make(blocks=3), group, reshard_after_forward=True)
        events = noted(model, group)
        for step in range(3):
            events.clear()
            with region():
                loss = loss_of(model, group, step)
            loss.backward()
            model.zero_grad()
        return events

    ahead = [
        "root gathered", "0 ahead", "1 ahead", "0 computed", "2 ahead", "1 computed", "2 computed", "root computed",
        "root gathered", "2 ahead", "1 ahead", "2 reduced", "0 ahead", "1 reduced", "0 reduced", "root reduced",
    ]  # fmt: skip
    assert on_ranks(2, program) == [ahead, ahead]


def test_nothing_is_gathered_ahead_at_the_end_of_a_forward_and_of_a_backward():
    def program(group):
        model = shard(make(blocks=2), group, reshard_after_forward=True)
        events = noted(model, group)
        for _ in range(3):
            losses = [loss_of(model, group, step) for step in range(2)]
            for loss in losses:
                loss.backward()
        return [event for event in events if "root ahead" in event or event == "1 ahead"]

    # Block 1 follows block 0 in forward, and the root in backward, three and two times each of two from the second on.
    assert on_ranks(2, program) == [["1 ahead"] * (5 + 5)] * 2


def test_what_was_gathered_in_vain_is_let_go_of():
    def program(group):
        model = shard(in_orders(make(blocks=3), [(0, 1, 2), (0, 1)]), group, reshard_after_forward=True)
        with ampkit.no_grad():
            for step in range(2):
                loss_of(model, group, step)
        return prefetch._begun

    assert on_ranks(2, program) == [None, None]


def in_orders(model, orders):
    """`model` with its blocks called in another order in each step."""

    def forward(x):
        x, turn = model.embedding(x), model.turn
        model.turn += 1
        for i in orders[turn]:
            x = model.blocks[i](x)
        return model.head(x)

    model.turn, model.forward = 0, forward
    return model


def with_and_without(program, monkeypatch, **options):
    """What `program` gives, with gathers ahead and without."""
    found = on_ranks(2, program, **options)
    monkeypatch.setattr(ShardedGroup, "gather_ahead", lambda self, low: None)
    return found, on_ranks(2, program, **options)


@pytest.mark.parametrize("by", ["memory", "sockets"])
def test_another_order_of_modules_changes_no_bits(by, monkeypatch):
    orders = [(0, 1, 2), (0, 1, 2), (2, 0, 1), (1,), (0, 0, 2), (0, 1, 2)]

    def program(group):
        model = shard(in_orders(make(blocks=3), orders), group, reshard_after_forward=True)
        return train(model, group, 6, region=in_bfloat16), whole(model)

    for (losses, weights), (others, expected) in zip(*with_and_without(program, monkeypatch, by=by), strict=True):
        assert losses == others and same(weights, expected)


class Wrong(Exception):  # noqa: N818
    """An error of a forward."""


@pytest.mark.parametrize("where", ["register_forward_hook", "register_full_backward_hook"])
def test_a_step_that_fails_on_all_ranks_can_be_left_out(where, monkeypatch):
    def fail(*args):
        raise Wrong

    def program(group):
        model = shard(make(blocks=3), group, reshard_after_forward=True)
        train(model, group, 2)
        handle = getattr(model.blocks[1], where)(fail)
        with pytest.raises(Wrong):
            loss_of(model, group, 2).backward()
        handle.remove()
        model.zero_grad()
        return train(model, group, 3), whole(model)

    for (losses, weights), (others, expected) in zip(*with_and_without(program, monkeypatch), strict=True):
        assert losses == others and same(weights, expected)


def test_a_forward_that_fails_on_one_rank_ends_the_others_by_their_time_limit():
    def program(group):
        model = shard(make(blocks=3), group, reshard_after_forward=True)
        for _ in range(2):
            loss_of(model, group, 0).backward()
        if group.rank() == 1:
            model.blocks[0].register_forward_hook(lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError if group.rank() == 1 else dist.DistError):
            loss_of(model, group, 0).backward()
        return True

    assert on_ranks(2, program, timeout=0.5) == [True, True]


def test_rows_that_change_after_a_gather_has_begun_are_gathered_again():
    def program(group):
        model = shard(make(blocks=3), group, reshard_after_forward=True)
        x = ampkit.ones(1, 4, dtype=ampkit.int64)

        def change(*args):
            bias.add_(1.0)

        with ampkit.no_grad():
            for _ in range(2):
                model(x)
            bias = model.blocks[1].down.bias  # gathered ahead when the hook changes this rank's rows
            handle = model.blocks[0].register_forward_hook(change)
            found = model(x).numpy()
            handle.remove()
            expected = model(x).numpy()
        return np.array_equal(found, expected)

    assert on_ranks(2, program) == [True, True]


def test_a_second_model_between_two_steps():
    def program(group):
        models = [shard(make(blocks=2, size=size), group, reshard_after_forward=True) for size in (10, 6)]
        for step in range(3):
            losses = [loss_of(model, group, step) for model in models]
            ops.add(*losses).backward()
            for model in models:
                model.zero_grad()
        alone = shard(make(blocks=2, size=6), group)
        return float(loss_of(alone, group, 2)) == float(losses[1])

    assert on_ranks(2, program) == [True, True]
