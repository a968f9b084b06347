"""Translation of a Trace to a Graph: each call by the mapping of its op, with the casts that the call made."""

from __future__ import annotations

from functools import partial
from typing import Any

from ... import backends
from ...base.dtypes import FLOATS, DType, accumulator, promote, rounded
from ...base.errors import ArgumentError
from .graph import Graph, Value
from .registry import MAPPINGS, Mapping
from .trace import WHERE, Call, Source, Trace, live_calls


def translate(trace: Trace, opset: int) -> tuple[Graph, list[Value]]:
    """The graph of a run, and the values of its outputs. Raises ArgumentError for an op without a mapping."""
    calls = live_calls(trace, trace.outputs)
    _need_mappings(calls)
    translator = _Translator(Graph(opset))
    for source in trace.inputs:
        translator.values[source] = Value(translator.graph.name(source.name), source.array.dtype, source.array.shape)
    for call in calls:
        translator.add(call)
    graph = translator.graph
    graph.label = graph.prefix = "output"
    return graph, [translator.value_of(source, "output") for source in trace.outputs]


def _need_mappings(calls: list[Call]) -> None:
    for call in calls:
        if call.op.name not in MAPPINGS:
            name = call.op.name
            cure = f"write it by other ops, or map it: @ampkit.onnx.onnx_op({name!r})"
            raise ArgumentError(WHERE, "ops that have a mapping to ONNX", call.label, cure)


class _Translator:
    """The graph as far as it is made, and the value of each Source met."""

    def __init__(self, graph: Graph):
        self.graph, self.values = graph, dict[Source, Value]()

    def value_of(self, source: Source, what: str) -> Value:
        """The value of a Source: of a result made before, else a constant, named as a weight or by `what`."""
        if source not in self.values:
            array = backends.backend_of(source.array).to_numpy(source.array)
            name = source.name or f"{self.graph.prefix}/{what}"
            self.values[source] = self.graph.constant(array, array.dtype, name)
        return self.values[source]

    def add(self, call: Call) -> None:
        """Add the nodes of a call."""
        graph, mapping, plan = self.graph, MAPPINGS[call.op.name], call.plan
        graph.label = call.label
        graph.prefix = f"{'' if call.path.startswith('(') else call.path}/{call.op.name}"
        graph.out, graph.results = call.results[0].array.dtype, len(call.results)
        graph.dtype = _computed_in(plan, mapping)
        inputs = [self._operand(call, mapping, i) for i in range(len(call.operands))]
        params = tuple([self._param(p, call.op.signature.param_names[i]) for i, p in enumerate(call.params)])
        made = call.op.signature.call(partial(mapping.build, graph), inputs, params)
        made = made if isinstance(made, (list, tuple)) else [made]
        for value, source in zip(made, call.results, strict=False):
            self.values[source] = self._result(value, source.array)

    def _operand(self, call: Call, mapping: Mapping, at: int) -> Value | None:
        operand, plan = call.operands[at], call.plan
        to = plan.casts[at] if plan.casts else None
        name = call.op.signature.name_of(at)
        if operand is None:
            return None
        counts = call.op.signature.kinds(len(call.operands))[at]
        if not isinstance(operand, Source):
            number = operand if to is None or isinstance(operand, bool) else rounded(operand, to)
            return self.graph.constant(number, self.graph.dtype, f"{self.graph.prefix}/{name}")
        value = self.value_of(operand, name)
        if to is not None:
            value = self.graph.cast(value, to)
        if counts and self.graph.dtype in FLOATS:
            value = self.graph.cast(value, self.graph.dtype)
        return value

    def _param(self, param: Any, name: str) -> Any:
        if isinstance(param, (tuple, list)):
            return type(param)([self._param(item, name) for item in param]) if type(param) in (tuple, list) else param
        return self.value_of(param, name) if isinstance(param, Source) else param

    def _result(self, value: Value, array: Any) -> Value:
        dtype = value.dtype or (self.graph.dtype if array.dtype in FLOATS else array.dtype)
        known = Value(value.name, dtype, array.shape)
        return self.graph.cast(known, array.dtype)


def _computed_in(plan: Any, mapping: Mapping) -> DType:
    """The dtype of a call's nodes: that of its operands, but float32 for 16-bit ones that the nodes do not take."""
    floats = [dtype for dtype in plan.stored if dtype in FLOATS]
    if plan.out in mapping.low and all(dtype == plan.out for dtype in floats):
        return plan.out
    if plan.compute is not None or not floats:
        return plan.compute or plan.out
    return accumulator(promote(*floats))
