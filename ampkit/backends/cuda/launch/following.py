"""Launches that wait in a recording for results of others: sums of what norms have left, copies of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from ampkit import backends
from ampkit.base.dtypes import Array

from .elementwise import LaunchPlan
from .waiting import Block, Launch, Value, view_of


class FollowingLaunch(Launch):
    """A launch that reads results of others, and runs when they are there. call(operands, outs)."""

    __slots__ = ("call",)
    stores_all = True

    def __init__(self, number: int, name: str, call: Callable[..., None], operands: tuple[Value, ...], out: Array):
        super().__init__(number, name, False, LaunchPlan(out.shape, None, 1, None, None, ()), operands)
        self.key, self.call = ("alone", number), call

    def run(self, operands: Sequence[Any], outs: Sequence[Any]) -> None:
        self.call(operands, outs)

    def empty(self, value: Value) -> Array:
        made: Array = backends.backend_of(value.array).empty(value.array.shape, value.array.dtype)
        return made


def followed(chains: Any, name: str, call: Callable[..., None], reads: Sequence[Array], outs: Sequence[Array]) -> bool:
    """Let `call(reads, outs)`, which holds the arrays `reads`, wait for them. -> whether they wait, and it does."""
    if chains.recording is None:
        return False
    values = [chains.operand(one) for one in reads]
    if any(value.launch is None for value in values):
        return False
    chains.compute(list(chains.conflicts([one for one in outs if not chains.recording.owns(one)])))
    found = FollowingLaunch(chains.number(), name, call, tuple(values), outs[0])
    made = [chains.waits(out, found, i) for i, out in enumerate(outs)]
    found.makes(made)
    for value in values:
        if value.launch is not None:
            value.launch.then += [ref(one) for one in made]
    return True


def copied(chains: Any, source: Array, target: Array) -> bool:
    """Let a copy of all elements of `source` wait for them. -> whether they wait, and it does.

    What computes them stores them in `target` at once if nothing else holds the memory of `source` by then.
    """
    here = chains.recording is not None and all(isinstance(one, chains.gpu.xp.ndarray) for one in (source, target))
    value = chains.waiting_whole(source) if here else None
    if value is None or source.dtype != target.dtype or value.copy() is not None:
        return False
    if not all(one.flags.c_contiguous for one in (source, target, value.array)):
        return False
    chains.compute(list(chains.conflicts([] if chains.recording.owns(target) else [target])))
    if value.launch is None:
        return False

    def call(operands: Any, outs: Any) -> None:
        backends.backend_of(target).copy(outs[0], operands[0].reshape(outs[0].shape))

    found = FollowingLaunch(chains.number(), "Copy", call, (value,), target)
    made = chains.waits(target, found, 0)
    found.makes([made])
    value.copy = ref(made)
    return True


def moved(chains: Any, value: Value) -> Block | None:
    """Let a value that is about to be stored, and that nothing holds, take the memory of its copy. -> its block."""
    copy = value.copy()
    assert copy is not None
    held: Block | None = chains.memory(copy)
    value.moves_to(view_of(copy.array, 0, value.array.shape, value.array.strides))
    value.kept, copy.launch, copy.block, copy.allocation = copy.kept, None, held, None
    return held
