"""Ranges: the exponents of every layer's values in sampled steps, and what formats lose of them.

ranges = ampkit.debug.Ranges(model, every=20)
for x, y in loader:
    with ranges.step():
        train_on(x, y)
print(ranges)                   # a table, and what the numbers recommend

All counts stay on the device until the step is done, and are copied out without waiting for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from .. import backends
from ..amp import exponents
from ..base.dtypes import FLOATS, Array, DType, int64
from ..base.errors import ArgumentError, StateError
from ..base.html import ShowsItsText, preformatted
from ..base.html import table as html_table
from ..base.observe import ACCUMULATE, BACKWARD, FORWARD, Event, observing
from ..core.module_path import current, follow, path_in_words
from ..core.parameter import Parameter
from ..nn import Module
from .range_rows import ACTIVATION, GRADIENT, PARAMETER, PARAMETER_GRADIENT, Range, Sample, Totals, Updates, ranges_of
from .range_words import HEAD, left_out, recommendations, rows_of, table
from .repeat.unchanged import need_module

Key = tuple[str, str, str, DType, DType]  # of, path, op, dtype, stored: see Range
_NAMES = {dtype: dtype.name for dtype in FLOATS}  # which NumPy takes long to say
ROWS = 64  # of counts, allocated at once; at first, those of all parameters too


class RangeTotals(ShowsItsText):
    """The ranges and updates of samples, added up over their steps."""

    def __init__(self) -> None:
        self._ranges, self._updates = Totals(exponents.SIZE, exponents.LARGEST), Totals(4)
        self._scales: dict[Any, float] = {}  # the latest of each range

    def include(self, sample: Sample) -> None:
        """Count a sample, without keeping it."""
        self._ranges.add(sample.keys, sample.counts)
        self._scales.update(zip(sample.keys, sample.scales, strict=True))
        updates = [(u.size, u.changed, u.float16, u.bfloat16) for u in sample.updates]
        self._updates.add([u.path for u in sample.updates], np.reshape(np.array(updates, np.int64), (-1, 4)))

    def ranges(self) -> list[Range]:
        """Per kind, layer, op and dtype, the values of all samples together, with the latest loss scale."""
        return ranges_of(self._scales, self._scales.values(), self._ranges.counts)

    def updates(self) -> list[Updates]:
        """Per parameter, the updates of all samples together."""
        rows = zip(self._updates.places, self._updates.counts.tolist(), strict=True)
        return [Updates(path, *counts) for path, counts in rows]

    def recommendations(self) -> list[str]:
        """What the numbers recommend, the most important first; empty if nothing is lost."""
        return recommendations(self.ranges(), self.updates())


class Ranges(RangeTotals):
    """Samples every `every`-th step, and the first: what ranges the values of a model's layers have.

    samples: the sampled steps that the device has finished, in order; a caller may take them out, which leaves the
    summary as it is. Between sampled steps nothing is observed, and a step costs nothing more. A sampled step holds a
    copy of the master weights. It must run eagerly: a launch of a compiled step shows no ops.
    Raises ArgumentError for a model that is no module, and an interval that is not positive.
    """

    def __init__(self, model: Module, every: int = 20):
        need_module("Ranges", model)
        if type(every) is not int or every < 1:
            raise ArgumentError("Ranges", "`every` from 1", repr(every))
        super().__init__()
        self.model, self.every, self.steps = model, every, 0
        self.samples: list[Sample] = []
        self._collector: Collector | None = None

    def samples_step(self, number: int) -> bool:
        """Whether the step `number`, from 1, is sampled."""
        return number == 1 or number % self.every == 0

    @contextmanager
    def step(self, number: int | None = None) -> Iterator[None]:
        """Within the block one training step runs: forward, backward, and what the optimizer does.

        number: of the step, from 1; by default one more than the last. A step that raises leaves no sample.
        Raises StateError inside another such block.
        """
        if self._collector is not None:
            raise StateError("Ranges.step", "a step after the last has ended", "one inside another")
        self.steps = self.steps + 1 if number is None else number
        if not self.samples_step(self.steps):
            yield
            return
        collector = self._collector = Collector(self.model)
        try:
            with follow(), observing(collector.observe):
                yield
        finally:
            self._collector = None
        collector.finish(self.steps, self._add)

    def _add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.include(sample)

    def ranges(self) -> list[Range]:
        """Per kind, layer, op and dtype, the values of all sampled steps together, with the latest loss scale.

        Waits for the device.
        """
        self._synchronize()
        return super().ranges()

    def updates(self) -> list[Updates]:
        """Per parameter, the updates of all sampled steps together. Waits for the device."""
        self._synchronize()
        return super().updates()

    def __str__(self) -> str:
        found = table(self.ranges())
        return "\n".join([found, *(f"- {advice}" for advice in self.recommendations())])

    def _repr_html_(self) -> str:
        found = self.ranges()
        lines = [*left_out(found), *(f"- {advice}" for advice in self.recommendations())]
        return html_table(HEAD, rows_of(found)) + (preformatted("\n".join(lines)) if lines else "")

    def _synchronize(self) -> None:
        for backend in {backends.backend_of(p.array) for p in self.model.parameters()}:
            backend.synchronize()


class Collector:
    """Counts the values of one step on the device."""

    def __init__(self, model: Module):
        self.parameters = {name: p for name, p in model.named_parameters() if p.array.dtype in FLOATS}
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.counts: dict[Key, Array] = {}  # rows of `blocks`
        self.rows: dict[Any, list[Array]] = {}  # by backend, those that are free, the next one last
        self.keys: dict[Any, list[Key]] = {}  # by backend, in the order of the rows
        self.blocks: dict[Any, list[Array]] = {}  # by backend, [ROWS, SIZE]
        self.factors: dict[Key, Array] = {}  # the loss scales of gradients
        self.before: list[tuple[Any, Array, list[str]]] = []  # arenas, their weights before the step, whose they are
        self._count_parameters()

    def _count_parameters(self) -> None:
        arenas: dict[int, tuple[Any, list[str]]] = {}
        for name, parameter in self.parameters.items():
            if parameter._arena_segment is None:
                self._count((PARAMETER, name, "", parameter.array.dtype, parameter.array.dtype), parameter.array)
            else:
                parameter._arena_segment.master_weights()
                arena = parameter._arena_segment.arena
                arenas.setdefault(id(arena), (arena, []))[1].append(name)
        for arena, names in arenas.values():
            with backends.device_guard(arena.master):
                weights = arena.master.copy()
                self._count_segments(weights, names)
                if weights.itemsize > 2:
                    self.before.append((arena, weights, names))

    def _count_segments(self, weights: Array, names: list[str]) -> None:
        # One row of counts behind the other: the first block has place for all parameters.
        stored = [self.parameters[name].array.dtype for name in names]
        keys = [(PARAMETER, name, "", weights.dtype, dtype) for name, dtype in zip(names, stored, strict=True)]
        backend = backends.backend_of(weights)
        rows = [self.counts.setdefault(key, self._new_row(key, backend)) for key in keys]
        block, last = self.blocks[backend][-1], len(self.keys[backend])
        exponents.count_exponents_of_segments(weights, self._segments(names), block[last - len(rows) : last])

    def _segments(self, names: list[str]) -> list[tuple[int, int]]:
        held: list[Any] = [self.parameters[name]._arena_segment for name in names]
        return [(segment.start, segment.stop) for segment in held]

    def observe(self, event: Event) -> None:
        """Count what a kernel wrote; an observer (see base/observe.py)."""
        if event.phase is ACCUMULATE:
            name = self.names.get(id(event.output))
            if name is not None:
                self._count_new(PARAMETER_GRADIENT, name, "", event.inputs, event.tag)
        elif event.name == "cast":
            self._observe_cast(event)
        elif event.phase is BACKWARD and event.node is not None:
            self._observe_backward(event)
        elif event.phase is FORWARD and event.op is not None and not _only_moves(event.op):
            outputs = event.output if isinstance(event.output, tuple) else (event.output,)
            self._count_new(ACTIVATION, path_in_words(current()), event.name, outputs, None, event.inputs)

    def _observe_cast(self, event: Event) -> None:
        (source,), made = event.inputs, event.output
        if made.dtype.itemsize >= source.dtype.itemsize or made.dtype not in FLOATS or source.dtype not in FLOATS:
            return
        if event.phase is BACKWARD:
            key = GRADIENT, path_in_words(event.node.module_call), "cast", source.dtype, made.dtype
            self._count(key, source, event.tag)
        elif not isinstance(event.operands[0], Parameter):
            self._count((ACTIVATION, path_in_words(current()), "cast", source.dtype, made.dtype), source)

    def _observe_backward(self, event: Event) -> None:
        if event.op is not None and _only_moves(event.op):
            return
        edges = zip(event.output, event.node.edges, strict=False)
        found = [g for g, edge in edges if edge is not None and not isinstance(edge[0], Parameter)]
        name = event.name.removesuffix("_backward")
        self._count_new(GRADIENT, path_in_words(current()), name, found, event.tag, event.inputs[:1])

    def _count_new(self, of: str, path: str, op: str, arrays: Any, tag: Any, read: Any = ()) -> None:
        # What an op passes on was counted where it was made, and two inputs may get the same gradient.
        seen = {id(array) for array in read}
        for array in arrays:
            if array is not None and id(array) not in seen and array.dtype in FLOATS:
                seen.add(id(array))
                self._count((of, path, op, array.dtype, array.dtype), array, tag)

    def _count(self, key: Key, array: Array, tag: Any = None) -> None:
        held = self.counts.get(key)
        if held is None:
            held = self.counts[key] = self._new_row(key, backends.backend_of(array))
        with backends.device_guard(held):
            exponents.count_exponents(backends.to_device_of(array, held), held)
        if tag is not None and tag.factor is not None:
            self.factors[key] = tag.factor

    def _new_row(self, key: Key, backend: Any) -> Array:
        rows = self.rows.setdefault(backend, [])
        if not rows:
            blocks = self.blocks.setdefault(backend, [])
            size = ROWS if blocks else ROWS + len(self.parameters)
            blocks.append(backend.zeros((size, exponents.SIZE), int64))
            rows += reversed(list(blocks[-1]))
        self.keys.setdefault(backend, []).append(key)
        return rows.pop()

    def finish(self, step: int, then: Callable[[Sample], None]) -> None:
        """Count lost updates, and call `then(sample)` once the device has the counts, without waiting."""
        if not self.keys:
            return
        keys = [key for held in self.keys.values() for key in held]
        names = [name for _, _, updated in self.before for name in updated]
        factors = list({id(factor): factor for factor in self.factors.values()}.values())
        scale = {id(factor): place for place, factor in enumerate(factors)}
        scales = [scale[id(self.factors[key])] if key in self.factors else None for key in keys]
        sent = [self._all_counts(), *([self._lost_updates()] if names else []), *factors]
        what = partial(_sample, step, keys, scales, [(name, self.parameters[name].array.size) for name in names])
        backends.backend_of(sent[0]).call_when_ready(sent, lambda *values: then(what(*values)))

    def _all_counts(self) -> Array:
        # On one device: the first.
        first = next(iter(self.blocks.values()))[0]
        parts = []
        for backend, blocks in self.blocks.items():
            with backends.device_guard(blocks[0]):
                rows = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
                parts.append(rows[: len(self.keys[backend])])
        with backends.device_guard(first):
            parts = [backends.to_device_of(part, first) for part in parts]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _lost_updates(self) -> Array:
        # In the order of `before`, on the device of the first arena.
        first, found = self.before[0][1], []
        for arena, before, names in self.before:
            with backends.device_guard(before):
                counts = backends.backend_of(before).zeros((len(names), 3), int64)
                exponents.lost_updates_of_segments(before, arena.master, self._segments(names), counts)
            found.append(backends.to_device_of(counts, first))
        with backends.device_guard(first):
            return found[0] if len(found) == 1 else np.concatenate(found)


def _sample(
    step: int,
    keys: list[Key],
    scales: list[int | None],
    parameters: list[tuple[str, int]],
    counts: np.ndarray[Any, Any],
    *rest: Any,
) -> Sample:
    # What `finish` sent, on the host: counts by range, those of updates if there are parameters, and loss scales.
    lost, factors = (rest[0].tolist(), rest[1:]) if parameters else ([], rest)
    updates = [Updates(*parameter, *three) for parameter, three in zip(parameters, lost, strict=True)]
    found = [1.0 if place is None else float(factors[place]) for place in scales]
    named = [(of, path, op, _NAMES[dtype], _NAMES[stored]) for of, path, op, dtype, stored in keys]
    return Sample(step, named, found, counts, updates)


def _only_moves(op: Any) -> bool:
    return bool(op.view or op.forward.module.startswith("shape."))
