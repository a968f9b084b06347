"""Norms and softmax of rows that wait in a recording, with a prologue and an epilogue: one generated kernel for each.

The prologue is computed as the kernel loads a row, the epilogue as it stores one (template_source.py); between them
stands the code that single launches run, with its order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from ampkit import backends
from ampkit.backends.launch_queue import queue
from ampkit.base.dtypes import Array

from ..nvrtc import MAX_ELEMENTS
from . import template_source
from .elementwise import LaunchPlan
from .parameters import arguments
from .row_chains import RowLaunch, Rows, inputs_of
from .rows import Grid
from .template_source import Template
from .waiting import Launch, Names, Value


class TemplateCall(NamedTuple):
    """A launch of `entry` of `<source>.cu` over rows of `cols` values, its arrays in the order of the arguments.

    loads, out: the rows that are read and stored. vectors: other arrays that are read, or None. results: others that
    are stored. numbers: the arguments behind the arrays. template: the same kernel for chains, whose own parameters are
    vectors, results and numbers; None where it takes none. costs: see Launch.costs.
    """

    title: str
    backward: bool
    source: str
    entry: str
    loads: tuple[Array, ...]
    vectors: tuple[Array | None, ...]
    out: Array
    results: tuple[Array | None, ...]
    numbers: tuple[Any, ...]
    cols: int
    config: Grid
    template: Template | None
    costs: float = 0.0

    def launch(self) -> None:
        """Launch it now, or let it wait."""
        if queue.opened and self.template is not None and queue.opens("cuda") and queue.held.add_template(self):
            return
        self.run(self.loads, self.vectors, (self.out, *self.results))

    def run(self, loads: Sequence[Array], vectors: Sequence[Array | None], results: Sequence[Array | None]) -> None:
        self.config.launch(self.source, self.entry, *loads, *vectors, *results, *self.numbers)


class TemplateLaunch(RowLaunch):
    """One that waits. call: without its arrays; missing: which vectors and results there are not."""

    __slots__ = ("call", "count", "missing", "shapes")
    shares = False
    stores_all = True

    def __init__(self, number: int, call: TemplateCall, width: int, operands: tuple[Value, ...]):
        plan = LaunchPlan(call.out.shape, None, call.config.blocks, None, None, ())
        Launch.__init__(self, number, call.title, call.backward, plan, operands)
        self.key, self.rows = ("rows", number), Rows(call.out.size // call.cols, call.cols, width)
        self.missing = tuple([each is None for each in call.vectors]), tuple([each is None for each in call.results])
        self.shapes = [(each.shape, each.dtype) for each in (call.out, *call.results) if each is not None]
        self.count = len(call.loads)
        self.call = call._replace(loads=(), vectors=(), out=None, results=())

    @property
    def loads(self) -> tuple[Any, ...]:
        return self.operands[: self.count]

    def costs(self) -> float:
        return self.call.costs

    def empty(self, value: Value) -> Array:
        return backends.backend_of(value.array).empty(value.array.shape, value.array.dtype)

    def _arrays(self, operands: Any, outs: Any) -> tuple[list[Any], list[Any]]:
        """The vectors, and all results: those that nobody wants are written, too."""
        given, filled = iter(operands[self.count :]), []
        vectors = [None if missing else next(given) for missing in self.missing[0]]
        for out, (shape, dtype) in zip(outs, self.shapes, strict=True):
            filled.append(backends.backend_of(operands[0]).empty(shape, dtype) if out is None else out)
        rest = iter(filled[1:])
        return vectors, [filled[0], *[None if missing else next(rest) for missing in self.missing[1]]]

    def run(self, operands: Any, outs: Any) -> None:
        self.call.run(operands[: self.count], *self._arrays(operands, outs))

    def kernel(self, steps: list[Launch], stored: list[Value]) -> tuple[Any, ...]:
        rows, call = self.rows, self.call
        result, *others = self.values
        kept = [one for one in stored if all(one is not each for each in others)]
        written = [None if one is None or (one not in stored and one.launch) else one.array for one in others]
        places: dict[int, str] = {}
        inputs, _, layout = inputs_of(steps, stored, rows, places)
        names = Names({**places, id(result): f"x{len(inputs)}"}, 1)  # the value 0 is the template's
        described = tuple([names.step(step) for step in steps if step is not self])
        loads = tuple([(names.operand(one), one.array.dtype) for one in self.loads])
        outputs = tuple([(0 if one is result else names.place(one), one.array.dtype) for one in kept])
        kinds = tuple([each for _, each in inputs])
        assert call.template is not None
        code, name = template_source.source(
            call.template, loads, self.shapes[0][1], described, kinds, outputs, len(names.numbers)
        )
        read = [one.array for one in self.operands]
        vectors, (_, *more) = self._arrays(read, [read[0], *written])
        own = *vectors, *more, *call.numbers
        given = arguments(kept, [one for one, _ in inputs], (), layout, names.numbers, own)
        return code, name, call.config.blocks, call.config.threads, call.config.shared, *given


def added(chains: Any, call: TemplateCall) -> bool:
    """Let a launch wait. -> whether it does."""
    rows = (*call.loads, call.out)
    if chains.recording is None or call.template is None or call.out.size > MAX_ELEMENTS:
        return False
    if any(one.size != prod(call.out.shape) or not one.flags.c_contiguous for one in rows):
        return False
    operands = [*call.loads, *[one for one in call.vectors if one is not None]]
    width = call.template.width
    launch = TemplateLaunch(chains.number(), call, width, tuple([chains.operand(one) for one in operands]))
    outs = [call.out, *[one for one in call.results if one is not None]]
    launch.makes([chains.waits(out, launch, i) for i, out in enumerate(outs)])
    queue.waiting = True
    return True
