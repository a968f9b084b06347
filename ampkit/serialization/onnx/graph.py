"""Graph: ONNX nodes and the constants they read, without the package onnx."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...base.dtypes import FLOATS, DType, bool_, float32, int64

LARGEST = 2**63 - 1  # of int64: the end of a slice that has none


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: its name, and what is known of its dtype and shape."""

    name: str
    dtype: DType | None = None
    shape: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Node(NamedTuple):
    """A node. label: the op that it is part of, and the module that called it."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]
    label: str


class Constant(NamedTuple):
    """An array that nodes read. label: the op that reads it first. is_size: whether it holds lengths of axes."""

    array: Any
    label: str
    is_size: bool = False


@dataclass
class Graph:
    """Nodes in the order in which they run.

    `graph.Mul(a, b)` adds a node of that kind and returns its output: inputs are values, None where one is left out,
    and keywords are attributes; `outputs=2` returns that many. opset: the version of the operators that the file will
    name. label, prefix: of the op whose nodes are being added. dtype: what it computes in. out: the dtype of its first
    result. results: how many it has.
    """

    opset: int
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    label: str = ""
    prefix: str = ""
    dtype: DType = float32
    out: DType = float32
    results: int = 1
    _names: dict[str, int] = field(default_factory=dict)
    _casts: dict[tuple[str, DType], Value] = field(default_factory=dict)
    _known: dict[Any, Value] = field(default_factory=dict)

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if not kind[:1].isupper():
            raise AttributeError(kind)
        return lambda *inputs, **attributes: self._add(kind, inputs, attributes)

    def _add(self, kind: str, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> Any:
        count = attributes.pop("outputs", 1)
        made = [Value(self.name(f"{self.prefix}/{kind}")) for _ in range(count)]
        names = ["" if value is None else value.name for value in inputs]
        while names and not names[-1]:
            names.pop()
        given = tuple(sorted((name, value) for name, value in attributes.items() if value is not None))
        self.nodes.append(Node(kind, tuple(names), tuple(value.name for value in made), given, self.label))
        return made if count > 1 else made[0]

    def name(self, wanted: str) -> str:
        """`wanted`, with a number where that is taken."""
        count = self._names.get(wanted, 0)
        self._names[wanted] = count + 1
        return f"{wanted}_{count}" if count else wanted

    def constant(self, value: Any, dtype: DType | None = None, name: str = "", is_size: bool = False) -> Value:
        """An array or a number as a value, by default in the dtype that the op computes in; equal numbers are one."""
        array = np.asarray(value, dtype or getattr(value, "dtype", self.dtype))
        key = (array.dtype, array.shape, array.tobytes()) if array.size < 8 and not is_size and not name else None
        if key in self._known:
            return self._known[key]
        made = Value(self.name(name or f"{self.prefix}/constant"), array.dtype, array.shape)
        self.constants[made.name] = Constant(array, self.label, is_size)
        if key is not None:
            self._known[key] = made
        return made

    def ints(self, *numbers: int) -> Value:
        """Axes, steps and the like as a vector of int64."""
        return self.constant(np.array(numbers, int64))

    def sizes(self, *numbers: int) -> Value:
        """Lengths of axes, or positions along them, as a vector of int64; those that change with a dynamic axis are
        computed from the inputs' shapes in the file."""
        return self.constant(np.array(numbers, int64), is_size=True)

    def cast(self, value: Value, dtype: DType) -> Value:
        """A value in `dtype`: itself if it has it, else by a Cast node, one for all that read it."""
        if value.dtype == dtype:
            return value
        key = value.name, dtype
        if key not in self._casts:
            self._casts[key] = Value(self._add("Cast", (value,), {"to": dtype}).name, dtype, value.shape)
        return self._casts[key]

    def boolean(self, value: Value) -> Value:
        return self.cast(value, bool_)

    # nodes that many ops need, with axes as vectors

    def reshape(self, value: Value, *shape: int) -> Any:
        """`value` in another shape; a length of 0 is kept, so no axis of `value` may be empty."""
        return self.Reshape(value, self.sizes(*shape))

    def transpose(self, value: Value, *order: int) -> Any:
        return self.Transpose(value, perm=order)

    def unsqueeze(self, value: Value, *axes: int) -> Any:
        return self.Unsqueeze(value, self.ints(*axes)) if axes else value

    def squeeze(self, value: Value, *axes: int) -> Any:
        return self.Squeeze(value, self.ints(*axes)) if axes else value

    def slice(self, value: Value, axis: int, start: int, end: int, step: int = 1) -> Any:
        return self.Slice(value, self.sizes(start), self.sizes(end), self.ints(axis), self.ints(step))

    def reduce(self, kind: str, value: Value, axes: Sequence[int], keepdims: bool = False) -> Any:
        """A reduction such as ReduceSum over `axes`; over none, the values themselves."""
        if not axes:
            return self.Identity(value)
        return self._add(kind, (value, self.ints(*axes)), {"keepdims": int(keepdims)})

    def number_of(self, dtype: DType, value: float) -> Value:
        """A number in a dtype: that of a value beside it."""
        return self.constant(np.asarray(value, dtype))


def readers(graph: Graph) -> Iterator[tuple[str, Node]]:
    """The names that nodes read, each with the node."""
    for node in graph.nodes:
        for name in node.inputs:
            yield name, node


def is_float(dtype: DType | None) -> bool:
    return dtype in FLOATS
