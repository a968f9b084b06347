"""Trace: the calls of ops in one run of a model, and where each array that they read comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import backends
from ...base.errors import StateError
from ...base.observe import FORWARD, Event, observing
from ...core.capture.recorder import Recorder, recorders
from ...core.cast_plan import CastPlan
from ...core.module_path import current, follow, path_in_words
from ...core.op import ops
from ...core.tensor import Tensor

WHERE = "onnx.export"


@dataclass(eq=False)
class Source:
    """Where an array comes from: an input or a weight by its name, the result `index` of a call, or neither.

    varies: whether its values depend on the inputs.
    """

    array: Any
    name: str = ""
    call: Call | None = None
    index: int = 0
    varies: bool = False
    overwritten: str = ""  # by which in-place change, if that is why the file cannot have the values


@dataclass(eq=False)
class Call:
    """A call of an op: what it read, as Sources, numbers and None, and what it returned.

    params: its other arguments, with Sources in place of arrays. path: of the module that called it, in words.
    """

    op: Any
    path: str
    operands: tuple[Any, ...]
    params: tuple[Any, ...]
    plan: Any
    results: list[Source] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The op and the module, as errors name them."""
        return f"{self.op.name} in {self.path}"

    def sources(self) -> Iterator[Source]:
        """What it read, index arrays among its parameters included."""
        yield from sources_in(self.operands)
        yield from sources_in(self.params)


def sources_in(values: Any) -> Iterator[Source]:
    """The Sources in tuples and lists of values."""
    for value in values:
        if isinstance(value, Source):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from sources_in(value)


class Trace(Recorder):
    """An observer of a run; `recorded` runs one.

    calls: in the order of the run. inputs, outputs: the Sources of the model's.
    """

    def __init__(self, inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]):
        self.calls: list[Call] = []
        self.outputs: list[Source] = []
        self._known: dict[int, tuple[Any, Source]] = {}  # by the id of an array, which is kept, as ids are used again
        for name, tensor in weights.items():
            if id(tensor.array) not in self._known:  # of tied weights the first name
                self._add(tensor.array, Source(tensor.array, name))
        self.inputs = [self._add(t.array, Source(t.array, name, varies=True)) for name, t in inputs.items()]
        self._written: Tensor | None = None

    def _add(self, array: Any, source: Source) -> Source:
        self._known[id(array)] = array, source
        return source

    def _find(self, array: Any) -> Source | None:
        found = self._known.get(id(array))
        return None if found is None else found[1]

    def __call__(self, event: Event) -> None:
        if event.phase != FORWARD or event.op is None:
            return
        operands = tuple([self.source_of(o.array) if isinstance(o, Tensor) else o for o in event.operands])
        params = tuple([self._param(p) for p in event.params])
        outs = event.output if isinstance(event.output, tuple) else (event.output,)
        self._add_call(Call(event.op, path_in_words(current()), operands, params, event.plan), outs)

    def converted(self, tensor: Tensor, made: Tensor) -> None:
        before, after = tensor.array.dtype, made.array.dtype
        plan = CastPlan((), None, after, (before,), False, False, "", [], False, ())
        self._add_call(
            Call(ops["to"], path_in_words(current()), (self.source_of(tensor.array),), (None,), plan), (made.array,)
        )

    def _add_call(self, call: Call, outs: Sequence[Any]) -> None:
        for source in call.sources():
            _need_current(source, call.label)
        varies = any(source.varies for source in call.sources())
        call.results = [Source(array, call=call, index=i, varies=varies) for i, array in enumerate(outs)]
        for source in call.results:
            self._add(source.array, source)
        self.calls.append(call)

    def source_of(self, array: Any) -> Source:
        """Where an array comes from; one that no op made is a constant, with the values that it has now."""
        return self._find(array) or self._add(array, Source(array.copy()))

    def _param(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)([self._param(item) for item in value])
        return self.source_of(value) if backends.is_array(value) else value

    def end(self, outputs: Sequence[Any]) -> None:
        """Note the arrays that the model returned."""
        self.outputs = [self.source_of(array) for array in outputs]
        for source in self.outputs:
            _need_current(source, "the output")

    # in-place changes

    def written(self, tensor: Tensor, values: Any) -> None:
        """A whole tensor is about to get `values`: from now on it is the same result as they are."""
        self._written = tensor
        array = tensor.array
        found = self._find(values) if backends.is_array(values) else None
        self._overwrite(array)
        if found is not None and values.shape == array.shape and values.dtype == array.dtype:
            self._add(array, found)
        elif found is not None and found.varies:
            self._lose(array, "a tensor that was overwritten by one of another shape or dtype")
        else:
            self._known.pop(id(array), None)

    def changed(self, tensor: Tensor) -> None:
        if self._written is tensor:
            self._written = None
            return
        known = self._find(tensor.array)
        self._overwrite(tensor.array)
        if known is not None and known.call is not None:
            self._lose(tensor.array, "a tensor of which a part was overwritten")
        else:
            self._known.pop(id(tensor.array), None)

    def moved(self, tensor: Tensor, before: Any) -> None:
        if (known := self._find(before)) is not None:
            self._add(tensor.array, known)

    def _overwrite(self, array: Any) -> None:
        # Others that share its memory have values now that no op of the file computes.
        for other, source in list(self._known.values()):
            if other is not array and (source.varies or source.call) and np.may_share_memory(other, array):
                self._lose(other, "a view of a tensor that was overwritten")

    def _lose(self, array: Any, why: str) -> None:
        self._add(array, Source(array, overwritten=why))

    def read_on_host(self, tensor: Tensor) -> None:
        source = self._find(tensor.array)
        if source is not None and source.varies:
            what = f"the input {source.name}" if source.call is None else f"the result of {source.call.label}"
            needs = "a model whose Python code reads no values of tensors, such as `if x > 0` or `x.item()`"
            cure = "compute it by ops, such as ops.where; the file holds one path for all inputs"
            raise StateError(WHERE, needs, f"{what}, whose values were read", cure)


def _need_current(source: Source, reader: str) -> None:
    if source.overwritten:
        needs = "a model without assignments to parts of tensors, or to tensors that share memory"
        cure = "make a new tensor instead, by ops.where or ops.cat"
        raise StateError(WHERE, needs, f"{reader}, which reads {source.overwritten}", cure)


@contextmanager
def recording(trace: Trace) -> Iterator[None]:
    """Within the block, `trace` sees the calls of ops, in-place changes and what is read on the host."""
    recorders.append(trace)
    try:
        with follow(), observing(trace):
            yield
    finally:
        recorders.remove(trace)


def is_in_onnx_export() -> bool:
    """Whether a model is being exported, so that its code may take a path that ONNX has nodes for."""
    return any(isinstance(recorder, Trace) for recorder in recorders)


def live_calls(trace: Trace, ends: Sequence[Source]) -> list[Call]:
    """The calls that `ends` depend on, in order."""
    needed, waiting = set[int](), [source.call for source in ends if source.call is not None]
    while waiting:
        call = waiting.pop()
        if id(call) not in needed:
            needed.add(id(call))
            waiting += [source.call for source in call.sources() if source.call is not None]
    return [call for call in trace.calls if id(call) in needed]
