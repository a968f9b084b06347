"""Reductions of columns that wait in a recording, each with a prologue: what it reads is computed where it loads it.

The order of the sums is that of the reduction by itself. What is stored anyway is read from memory instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array

from ..nvrtc import MAX_ELEMENTS
from . import column_source
from .column_source import Columns
from .elementwise import LaunchPlan
from .parameters import arguments
from .reduction import BLOCK, ColumnCall, run_columns
from .row_chains import Rows, inputs_of
from .waiting import Launch, Names, Value, bytes_of, prologue_of, read_by

MAX_STEPS, MAX_ARRAYS = 24, 13
COSTS = 3.0  # bytes that a prologue reads, at most, over those of its result, which would be written and read once


class ColumnLaunch(Launch):
    """A reduction of columns that waits."""

    __slots__ = ("call",)

    def __init__(self, number: int, call: ColumnCall, x: Value):
        outer, _, inner = call.sizes
        plan = LaunchPlan((outer * call.parts * inner,), None, call.blocks * call.parts, None, None, ())
        super().__init__(number, f"{call.term} of columns", False, plan, (x,))
        self.key, self.call = ("columns", number), call

    def run(self, operands: Any, outs: Any) -> None:
        run_columns(self.call, operands[0], outs[0])


def added(chains: Any, x: Array, call: ColumnCall) -> Array | None:
    """Let a reduction of x, dense in memory, wait. -> its result; None for one that must run now: x does not wait."""
    value = chains.waiting_whole(x)
    if chains.recording is None or value is None or x.size > MAX_ELEMENTS:
        return None
    found = ColumnLaunch(chains.number(), call, value)
    out = found.plan.empty(x, call.dtype)
    found.makes([chains.waits(out, found, 0)])
    queue.waiting = True
    return out


def compute(chains: Any, wanted: Value) -> bool:
    """Compute `wanted` if it is a reduction of columns. -> whether it was."""
    launch = wanted.launch
    if not isinstance(launch, ColumnLaunch):
        return False
    x: Value = launch.operands[0]
    if x.launch is not None and not (type(x.launch) is Launch and _with_prologue(chains, launch, x, wanted)):
        chains.compute([x])
    if wanted.launch is not None:
        chains.emit([launch], [x], [wanted], None)
    return True


def _with_prologue(chains: Any, launch: ColumnLaunch, x: Value, wanted: Value) -> bool:
    steps = None if x.is_held() or x.launch.plan.order is not None else prologue_of(chains, x, MAX_STEPS)
    if steps is None:
        return False
    given = read_by(steps)
    if len(given) > MAX_ARRAYS or sum(bytes_of(one.array) for one in given) > COSTS * x.array.nbytes:
        return False
    chains.emit([*steps, launch], given, [wanted], lambda: _kernel(steps, launch, x, wanted))
    return True


def _kernel(steps: list[Launch], launch: ColumnLaunch, x: Value, wanted: Value) -> tuple[Any, ...]:
    call, places = launch.call, dict[int, str]()
    vector = 8 if call.vectorized else 1
    inputs, _, layout = inputs_of(steps, [], Rows(1, x.array.size, vector), places)
    names = Names(places)
    described = tuple([names.step(step) for step in steps])
    columns = Columns(call.term, (names.operand(x), x.array.dtype), wanted.array.dtype, vector)
    code, name = column_source.source(columns, described, tuple([each for _, each in inputs]), len(names.numbers))
    own = *call.numbers, np.int32(call.depth)
    given = arguments([wanted], [one for one, _ in inputs], (), layout, names.numbers, own)
    return code, name, call.blocks * call.parts, BLOCK, 0, *given
