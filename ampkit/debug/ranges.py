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
from ..backends import Array
from ..base.dtypes import FLOATS, DType, float32, int64
from ..base.errors import ArgumentError, StateError
from ..base.observe import ACCUMULATE, BACKWARD, FORWARD, Event, observing
from ..core.fp_errors import ignore_fp_errors
from ..core.module_path import ModuleCall, current, follow
from ..core.parameter import Parameter
from ..nn import Module
from .range_rows import ACTIVATION, GRADIENT, PARAMETER, PARAMETER_GRADIENT, Range, Sample, Updates
from .range_words import recommendations, table

Key = tuple[str, str, str, DType, DType]  # of, path, op, dtype, stored: see Range
ROWS = 64  # of counts, that are allocated at once


class Ranges:
    """Samples every `every`-th step, and the first: what ranges the values of a model's layers have.

    samples: the sampled steps that the device has finished, in order; a caller may take them out, which leaves the
    summary as it is. Between sampled steps nothing is observed, and a step costs nothing more. A sampled step holds a
    copy of the master weights. It must run eagerly: a launch of a compiled step shows no ops.
    Raises ArgumentError for a model that is no module, and an interval that is not positive.
    """

    def __init__(self, model: Module, every: int = 20):
        if not isinstance(model, Module):
            raise ArgumentError("Ranges", "a module as `model`", f"a {type(model).__name__}")
        if type(every) is not int or every < 1:
            raise ArgumentError("Ranges", "`every` from 1", repr(every))
        self.model, self.every, self.steps = model, every, 0
        self.samples: list[Sample] = []
        self._ranges: dict[Any, Range] = {}
        self._updates: dict[str, Updates] = {}
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
        collector.finish(partial(self._add, self.steps))

    def _add(self, step: int, ranges: list[Range], updates: list[Updates]) -> None:
        self.samples.append(Sample(step, ranges, updates))
        for found in ranges:
            self._ranges[found.key] = self._ranges[found.key].merged(found) if found.key in self._ranges else found
        for update in updates:
            held = self._updates.get(update.path)
            self._updates[update.path] = update if held is None else held.merged(update)

    def ranges(self) -> list[Range]:
        """Per kind, layer, op and dtype, the values of all sampled steps together. Waits for the device."""
        self._synchronize()
        return list(self._ranges.values())

    def updates(self) -> list[Updates]:
        """Per parameter, the updates of all sampled steps together. Waits for the device."""
        self._synchronize()
        return list(self._updates.values())

    def recommendations(self) -> list[str]:
        """What the numbers recommend, the most important first; empty if nothing is lost. Waits for the device."""
        return recommendations(self.ranges(), self.updates())

    def __str__(self) -> str:
        found = table(self.ranges())
        return "\n".join([found, *(f"- {advice}" for advice in self.recommendations())])

    def _synchronize(self) -> None:
        for backend in {backends.backend_of(p.array) for p in self.model.parameters()}:
            backend.synchronize()


class Collector:
    """Counts the values of one step on the device."""

    def __init__(self, model: Module):
        self.parameters = {name: p for name, p in model.named_parameters() if p.array.dtype in FLOATS}
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.counts: dict[Key, Array] = {}
        self._backend: Any = None
        self._unused: list[Array] = []  # rows of zeros on this backend
        self.factors: dict[Key, Array] = {}
        for name, parameter in self.parameters.items():
            segment = parameter.segment
            array = parameter.array if segment is None else segment.master_weights()
            self._count((PARAMETER, name, "", array.dtype, parameter.array.dtype), array)
        arenas = {id(p.segment.arena): p.segment.arena for p in self.parameters.values() if p.segment is not None}
        self.before = {key: (arena, arena.master.copy()) for key, arena in arenas.items() if arena.master.itemsize > 2}

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
            self._count_new(ACTIVATION, _path(current()), event.name, outputs, None, event.inputs)

    def _observe_cast(self, event: Event) -> None:
        (source,), made = event.inputs, event.output
        if made.dtype.itemsize >= source.dtype.itemsize or made.dtype not in FLOATS or source.dtype not in FLOATS:
            return
        if event.phase is BACKWARD:
            key = GRADIENT, _path(event.node.module_call), "cast", source.dtype, made.dtype
            self._count(key, source, event.tag)
        elif not isinstance(event.operands[0], Parameter):
            self._count((ACTIVATION, _path(current()), "cast", source.dtype, made.dtype), source)

    def _observe_backward(self, event: Event) -> None:
        if event.op is not None and _only_moves(event.op):
            return
        edges = zip(event.output, event.node.edges, strict=False)
        found = [g for g, edge in edges if edge is not None and not isinstance(edge[0], Parameter)]
        name = event.name.removesuffix("_backward")
        self._count_new(GRADIENT, _path(current()), name, found, event.tag, event.inputs[:1])

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
            held = self.counts[key] = self._row(backends.backend_of(array))
        with backends.device_guard(held):
            exponents.count_exponents(backends.to_device_of(array, held), held)
        if tag is not None and tag.factor is not None:
            self.factors[key] = tag.factor

    def _row(self, backend: Any) -> Array:
        if backend is not self._backend:
            self._backend, self._unused = backend, []
        if not self._unused:
            self._unused = list(backend.zeros((ROWS, exponents.SIZE), int64))
        return self._unused.pop()

    def finish(self, then: Callable[[list[Range], list[Updates]], None]) -> None:
        """Count lost updates, and call `then(ranges, updates)` once the device has the counts, without waiting."""
        updates = self._lost_updates()
        keys, counts = list(self.counts), list(self.counts.values())
        if not counts:
            return
        backend = backends.backend_of(counts[0])
        with backends.device_guard(counts[0]), ignore_fp_errors():
            one = backend.asarray(np.ones((), float32))
            factors = [self.factors.get(key, one) for key in keys]
            rows = [*counts, *updates.values()]
            flat = np.concatenate([backends.to_device_of(row, counts[0]) for row in rows])
            scales = np.stack([backends.to_device_of(factor, counts[0]).astype(float32) for factor in factors])
        sizes = [self.parameters[name].array.size for name in updates]
        names = list(zip(updates, sizes, strict=True))
        backend.call_when_ready((flat, scales), lambda flat, scales: then(*_read(keys, names, flat, scales)))

    def _lost_updates(self) -> dict[str, Array]:
        found = {}
        for name, parameter in self.parameters.items():
            segment = parameter.segment
            if segment is None or id(segment.arena) not in self.before:
                continue
            arena, before = self.before[id(segment.arena)]
            place = slice(segment.start, segment.stop)
            with backends.device_guard(before):
                found[name] = arena.backend.zeros((3,), int64)
                exponents.count_lost_updates(before[place], arena.master[place], found[name])
        return found


def _read(
    keys: list[Key], parameters: list[tuple[str, int]], flat: np.ndarray[Any, Any], scales: Any
) -> tuple[list[Range], list[Updates]]:
    # What `finish` sent, on the host: rows of counts, then three numbers for each parameter.
    size = len(keys) * exponents.SIZE
    rows, found = flat[:size].reshape(-1, exponents.SIZE), flat[size:].reshape(-1, 3)
    factors = np.reshape(scales, (-1,))
    ranges = [
        Range(of, path, op, dtype.name, stored.name, float(factor), row)
        for (of, path, op, dtype, stored), factor, row in zip(keys, factors, rows, strict=True)
    ]
    updates = [Updates(*p, *(int(n) for n in three)) for p, three in zip(parameters, found, strict=True)]
    return ranges, updates


def _only_moves(op: Any) -> bool:
    return bool(op.view or op.forward.module.startswith("shape."))


def _path(call: ModuleCall | None) -> str:
    return "(outside modules)" if call is None else call.path or "(model)"
