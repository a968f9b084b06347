"""Norms of rows that wait in a recording, with a prologue and an epilogue: one generated kernel for each.

The prologue is computed as the norm loads a row, the epilogue as it stores one (norm_source.py); the norm itself is
that of norm.cuh, with its order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array

from ..nvrtc import MAX_ELEMENTS, typed
from . import norm_source
from .elementwise import LaunchPlan
from .norm_source import Norm
from .parameters import arguments
from .row_chains import RowLaunch, Rows, inputs_of
from .rows import Grid, RowPlan
from .waiting import FollowingLaunch, Launch, Names, Value


class NormCall(NamedTuple):
    """A launch of layer_norm.cu over rows of `cols` values, its arrays in the order of the kernel's arguments.

    loads, out: the rows that are read and stored. vectors: other arrays that are read, or None: weight and bias, for
    the gradient weight and statistics. results: others that are stored: statistics, or parts of sums. eps: of the
    forward.
    """

    backward: bool
    centered: bool
    loads: tuple[Array, ...]
    vectors: tuple[Array | None, ...]
    out: Array
    results: tuple[Array | None, ...]
    cols: int
    plan: RowPlan
    config: Grid
    eps: float = 0.0

    def launch(self) -> None:
        """Launch it now, or let it wait."""
        if queue.opened and queue.opens("cuda") and queue.held.add_norm(self):
            return
        arrays = self.loads, self.vectors, self.out, self.results
        _launch(self.backward, self.centered, *arrays, self.cols, self.plan, self.config, self.eps)


def _launch(
    backward: bool, centered: bool, loads: Any, vectors: Any, out: Array, results: Any, cols: int, plan: RowPlan,
    config: Grid, eps: float,
) -> None:  # fmt: skip
    count = out.size // cols
    name = f"{'layer' if centered else 'rms'}_norm_{'backward' if backward else 'forward'}"
    stored, answered = (out.dtype, loads[0].dtype) if backward else (loads[0].dtype, out.dtype)
    sizes = [np.int64(count), np.int64(cols), np.int64(config.cached)]
    args = *loads, *vectors, out, *results, *sizes, *([] if backward else [np.float32(eps)])
    config.launch("nn/layer_norm", typed(name, stored, answered, *plan), *args)


class NormLaunch(RowLaunch):
    """A norm that waits. call: its launch, without its arrays; missing: which vectors and results there are not."""

    __slots__ = ("call", "missing", "shapes")
    shares = False
    stores_all = True

    def __init__(self, number: int, call: NormCall, operands: tuple[Value, ...]):
        count = call.out.size // call.cols
        title = f"{'LayerNorm' if call.centered else 'RMSNorm'}"
        plan = LaunchPlan(call.out.shape, None, call.config.blocks, None, None, ())
        Launch.__init__(self, number, title, call.backward, plan, operands)
        self.key, self.rows = ("rows", number), Rows(count, call.cols, call.plan.width)
        self.missing = tuple([each is None for each in call.vectors]), tuple([each is None for each in call.results])
        self.shapes = [(each.shape, each.dtype) for each in (call.out, *call.results) if each is not None]
        self.call = call._replace(loads=(), vectors=(), out=None, results=())

    @property
    def loads(self) -> tuple[Any, ...]:
        return self.operands[: 1 + self.backward]

    def costs(self) -> float:
        return 0.0 if self.backward else 1.25  # of its input, weight and bias: it is some work, too

    def empty(self, value: Value) -> Array:
        return backends.backend_of(value.array).empty(value.array.shape, value.array.dtype)

    def _arrays(self, operands: Any, outs: Any) -> tuple[list[Any], list[Any]]:
        """The vectors, and all results: those that nobody wants are written, too."""
        given, filled = iter(operands[1 + self.backward :]), []
        vectors = [None if missing else next(given) for missing in self.missing[0]]
        for out, (shape, dtype) in zip(outs, self.shapes, strict=True):
            filled.append(backends.backend_of(operands[0]).empty(shape, dtype) if out is None else out)
        rest = iter(filled[1:])
        return vectors, [filled[0], *[None if missing else next(rest) for missing in self.missing[1]]]

    def run(self, operands: Any, outs: Any) -> None:
        vectors, (out, *results) = self._arrays(operands, outs)
        call, loads = self.call, operands[: 1 + self.backward]
        _launch(call.backward, call.centered, loads, vectors, out, results, *call[6:])

    def kernel(self, steps: list[Launch], stored: list[Value]) -> tuple[Any, ...]:
        rows, call = self.rows, self.call
        result, *others = self.values
        kept = [one for one in stored if all(one is not each for each in others)]
        written = [None if one is None or (one not in stored and one.launch) else one.array for one in others]
        places: dict[int, str] = {}
        inputs, _, layout = inputs_of(steps, stored, rows, places)
        names = Names({**places, id(result): f"x{len(inputs)}"}, 1)  # the value 0 is the norm's
        described = tuple([names.step(step) for step in steps if step is not self])
        loads = tuple([(names.operand(one), one.array.dtype) for one in self.loads])
        norm = Norm(call.backward, call.centered, loads, self.shapes[0][1], *call.plan)
        outputs = tuple([(0 if one is result else names.place(one), one.array.dtype) for one in kept])
        kinds = tuple([each for _, each in inputs])
        code, name = norm_source.source(norm, described, kinds, outputs, len(names.numbers))
        read = [one.array for one in self.operands]
        vectors, (_, *more) = self._arrays(read, [read[0], *written])
        if not call.centered:
            vectors.insert(1, None)
            more.insert(1 if call.backward else 0, None)
        sizes = [np.int64(rows.size), np.int64(rows.cols), *([] if call.backward else [np.float32(call.eps)])]
        own = *vectors, *more, *sizes
        given = arguments(kept, [one for one, _ in inputs], (), layout, names.numbers, own)
        return code, name, call.config.blocks, call.config.threads, call.config.shared, *given


def added(chains: Any, call: NormCall) -> bool:
    """Let a norm wait whose rows registers hold. -> whether it does."""
    rows = (*call.loads, call.out)
    if chains.recording is None or not call.plan.accesses or call.out.size > MAX_ELEMENTS:
        return False
    if any(one.size != prod(call.out.shape) or not one.flags.c_contiguous for one in rows):
        return False
    given = [one for one in call.vectors if one is not None]
    launch = NormLaunch(chains.number(), call, tuple([chains.operand(one) for one in (*call.loads, *given)]))
    outs = [call.out, *[one for one in call.results if one is not None]]
    launch.makes([chains.waits(out, launch, i) for i, out in enumerate(outs)])
    queue.waiting = True
    return True


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
