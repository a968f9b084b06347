"""Launches of several kernels that wait in a recording, of which the first one takes a prologue.

The gradient of batch_norm is one: the sum of the gradients of a residual and of a convolution is computed where the
kernel that adds up over channels loads it. Such a launch waits until something needs its results; by then nothing else
holds the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array

from ..nvrtc import MAX_ELEMENTS
from . import template_source
from .elementwise import LaunchPlan
from .parameters import arguments
from .row_chains import Rows, inputs_of
from .template_source import Template
from .waiting import Launch, Names, Value, also, is_cheap, prologue_of, read_by, waiting_of

MAX_STEPS, MAX_ARRAYS = 24, 12


class KernelSequence(Protocol):
    """What is launched. reads: arrays or None, the first one that of the prologue; outs: arrays or None.

    blocks, threads, shared: of the first kernel; template: the same for chains. rereads: whether others read the first
    array, too. checks: whether it may raise an error, and so runs though nobody wants its results.
    """

    title: str
    backward: bool
    blocks: Any
    threads: int
    shared: int
    template: Template
    rereads: bool
    checks: bool

    def begin(self, reads: Sequence[Any], outs: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments of the first kernel behind what it loads, with new memory for what it hands to the others."""

    def first(self, loaded: Array, own: tuple[Any, ...]) -> None:
        """Launch the first kernel, of an array."""

    def rest(self, reads: Sequence[Any], outs: Sequence[Any], own: tuple[Any, ...]) -> None:
        """Launch the others."""


def launched(sequence: KernelSequence, reads: Sequence[Any], outs: Sequence[Any]) -> None:
    """Launch a sequence now, or let it wait if what it loads does."""
    if queue.opened and queue.opens("cuda") and queue.held.add_sequence(sequence, reads, outs):
        return
    own = sequence.begin(reads, outs)
    sequence.first(reads[0], own)
    sequence.rest(reads, outs, own)


class SequenceLaunch(Launch):
    """One that waits. places: where its arrays are among those that it may read; shapes: of its results."""

    __slots__ = ("places", "sequence", "shapes", "size")
    stores_all = True

    def __init__(
        self, number: int, sequence: KernelSequence, reads: Sequence[Any], outs: Sequence[Any],
        operands: tuple[Value, ...],
    ):  # fmt: skip
        plan = LaunchPlan(reads[0].shape, None, 1, None, None, ())
        super().__init__(number, sequence.title, sequence.backward, plan, operands)
        self.key, self.sequence, self.size = ("sequence", number), sequence, reads[0].size
        self.places = [each is not None for each in reads]
        self.shapes = [None if each is None else (each.shape, each.dtype) for each in outs]

    def empty(self, value: Value) -> Array:
        return backends.backend_of(value.array).empty(value.array.shape, value.array.dtype)

    def arrays(self) -> tuple[list[Any], list[Any]]:
        """What it reads, and its results: those that nobody wants are written, too."""
        read, values = iter(self.operands), iter(self.values)
        reads = [next(read).array if there else None for there in self.places]
        outs: list[Any] = []
        for shape in self.shapes:
            value = None if shape is None else next(values)
            new = backends.backend_of(reads[0]).empty(*shape) if shape is not None and value is None else None
            outs.append(new if value is None else value.array)
        return reads, outs

    def run(self, operands: Any, outs: Any) -> None:
        reads, filled = self.arrays()
        own = self.sequence.begin(reads, filled)
        self.sequence.first(operands[0], own)
        self.sequence.rest(reads, filled, own)


def added(chains: Any, sequence: KernelSequence, reads: Sequence[Any], outs: Sequence[Any]) -> bool:
    """Let a sequence wait if the first array that it reads does, dense in memory. -> whether it does."""
    value = chains.waiting_whole(reads[0]) if chains.recording is not None else None
    if value is None or type(value.launch) is not Launch or reads[0].size > MAX_ELEMENTS:
        return False
    chains.compute(list(chains.conflicts([one for one in outs if one is not None and not chains.recording.owns(one)])))
    if value.launch is None:
        return False
    operands = value, *[chains.operand(one) for one in reads[1:] if one is not None]
    found = SequenceLaunch(chains.number(), sequence, reads, outs, operands)
    wanted = [one for one in outs if one is not None]
    made = [chains.waits(out, found, i) for i, out in enumerate(wanted)]
    if sequence.checks:
        made[0].kept, made[0].allocation = wanted[0], lambda: wanted[0]
    found.makes(made)
    queue.waiting = True
    return True


def compute(chains: Any, wanted: Value) -> bool:
    """Compute `wanted` if it is a result of a sequence. -> whether it was."""
    launch = wanted.launch
    if not isinstance(launch, SequenceLaunch):
        return False
    first, *rest = launch.operands
    chains.compute([one for one in map(waiting_of, rest) if one is not None])
    if first.launch is not None and wanted.launch is not None and not _with_prologue(chains, launch, first):
        chains.compute([first])
    if wanted.launch is not None:
        chains.emit([launch], list(launch.operands), _alive(launch), None)
    return True


def _alive(launch: Launch) -> list[Value]:
    return [value for value in launch.values if value is not None and value.launch is not None]


def _with_prologue(chains: Any, launch: SequenceLaunch, x: Value) -> bool:
    steps = prologue_of(chains, x, MAX_STEPS)
    if steps is None:
        return False
    given, sequence = read_by(steps), launch.sequence
    # What is held, such as the scores of a loss, is not stored if what it is computed from takes no more memory.
    stores = sequence.rereads or (x.is_held() and not is_cheap(x, keeps=x.array.nbytes))
    more = [*([x] if stores else []), *[one for one in also(steps, [x]) if one is not x]]
    if len(given) + len(more) > MAX_ARRAYS:
        return False
    begun = list[Any]()

    def kernel() -> tuple[Any, ...]:
        reads, outs = launch.arrays()
        own = sequence.begin(reads, outs)
        begun.extend((reads, outs, own))
        return _kernel(steps, launch, x, more, own)

    stored = [*more, *_alive(launch)]
    if not chains.emit([*steps, launch], [*given, *launch.operands[1:]], stored, kernel, False):
        return False
    sequence.rest(*begun)
    return True


def _kernel(steps: list[Launch], launch: SequenceLaunch, x: Value, stored: list[Value], own: Any) -> tuple[Any, ...]:
    sequence, places = launch.sequence, dict[int, str]()
    inputs, _, layout = inputs_of(steps, stored, Rows(1, launch.size, sequence.template.width), places)
    names = Names(places, 1)
    described = tuple([names.step(step) for step in steps])
    outputs = tuple([(names.place(one), one.array.dtype) for one in stored])
    kinds, loads = tuple([each for _, each in inputs]), ((names.operand(x), x.array.dtype),)
    code, name = template_source.source(sequence.template, loads, None, described, kinds, outputs, len(names.numbers))
    given = arguments(stored, [one for one, _ in inputs], (), layout, names.numbers, own)
    return code, name, sequence.blocks, sequence.threads, sequence.shared, *given
