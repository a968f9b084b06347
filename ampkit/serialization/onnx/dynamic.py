"""Dynamic axes: what differs between the graphs of runs on inputs of several sizes, computed from the inputs' shapes.

The nodes must be the same at every size. A constant that differs is a number, or a vector of lengths, each a product of
dynamic sizes and a factor; an array that repeats along the axes that grew; or the integers from 0 up to such a size.
Nothing else is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from ...base.dtypes import FLOATS, int64
from ...base.errors import ArgumentError
from .graph import Constant, Graph, Node, Value
from .trace import WHERE


class Axis(NamedTuple):
    """A dynamic size: its name, the first input and axis that have it, its length in the first run and in its own."""

    name: str
    input: str
    axis: int
    length: int
    other: int


class Product(NamedTuple):
    """factor times the sizes of axes to their powers."""

    factor: Fraction
    powers: tuple[tuple[Axis, int], ...]


def product_of(lengths: Sequence[int], axes: Sequence[Axis]) -> Product | None:
    """The product that has the values `lengths`: in the first run, then in that of each of `axes`; None for none."""
    first, *others = lengths
    factor, powers = Fraction(first), []
    for length, axis in zip(others, axes, strict=True):
        if length == first:
            continue
        power = next((p for p in (1, 2, 3) if first * axis.other**p == length * axis.length**p), None)
        if power is None:
            return None
        powers.append((axis, power))
        factor /= axis.length**power
    return Product(factor, tuple(powers))


def generalize(graph: Graph, others: Sequence[Graph], axes: Sequence[Axis]) -> None:
    """Let `graph` compute the constants that differ in `others`, of a run for each of `axes`.

    Raises ArgumentError for nodes that differ, and for a constant that none of the rules explains.
    """
    for other, axis in zip(others, axes, strict=True):
        need_same_nodes(graph, other, f"every size of {axis.name}")
    maker = _Sizes(graph, axes)
    for name, constant in list(graph.constants.items()):
        several = [constant.array, *(other.constants[name].array for other in others)]
        if not all(same(several[0], one) for one in several[1:]):
            maker.replace(name, constant, several)
    graph.nodes[:0] = maker.made.nodes


def need_same_nodes(graph: Graph, other: Graph, when: str) -> None:
    """Raise ArgumentError, which names the first op that differs, unless both graphs have the same nodes."""
    pairs = zip([*graph.nodes, None], [*other.nodes, None], strict=False)
    differing = next(((a, b) for a, b in pairs if a != b), None)
    if differing is None:
        return
    label = next((node.label for node in differing if node is not None), "")
    needs = f"a model that runs the same ops, with the same arguments, for {when}"
    cure = "leave the branch out, compute both sides and take one by ops.where, or make the axis static"
    raise ArgumentError(WHERE, needs, f"one that differs at {label}", cure)


def same(a: Any, b: Any) -> bool:
    """Whether two constants are equal in dtype, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and (a is b or a.tobytes() == b.tobytes())


class _Sizes:
    """Makes the nodes that compute what depends on sizes, which run before all others."""

    def __init__(self, graph: Graph, axes: Sequence[Axis]):
        self.graph, self.axes = graph, axes
        self.made = Graph(graph.opset, constants=graph.constants, prefix="sizes", label="sizes")
        self._lengths: dict[Product, Value] = {}

    def replace(self, name: str, constant: Constant, several: Sequence[Any]) -> None:
        """Compute the constant `name`, whose values in the runs are `several`."""
        if constant.is_size and self._infer(name, several):
            return
        found = self._vector(several) or self._number(several) or self._repeated(several) or self._range(several)
        if found is None:
            shapes = " and ".join(str(list(one.shape)) for one in several)
            axes = ", ".join(axis.name for axis in self.axes)
            needs = f"constants that do not depend on {axes}, or a tensor made from the shape of an input"
            cure = "compute it by ops from the inputs, or leave the axis out of dynamic_shapes"
            raise ArgumentError(WHERE, needs, f"one of shape {shapes} that {constant.label} reads", cure)
        del self.graph.constants[name]
        self.made.nodes.append(Node("Identity", (found.name,), (name,), (), constant.label))

    def _infer(self, name: str, several: Sequence[Any]) -> bool:
        # The one length of a Reshape that changes, as -1.
        vector = several[0]
        readers = [node for node in self.graph.nodes if name in node.inputs]
        changed = np.flatnonzero(np.any([one != vector for one in several[1:]], axis=0))
        if len(changed) > 1 or (vector < 1).any() or any(node.kind != "Reshape" for node in readers):
            return False
        inferred = vector.copy()
        inferred[changed] = -1
        self.graph.constants[name] = self.graph.constants[name]._replace(array=inferred)
        return True

    def _vector(self, several: Sequence[Any]) -> Value | None:
        first = several[0]
        if first.dtype != int64 or first.ndim != 1 or any(one.shape != first.shape for one in several):
            return None
        lengths = [product_of([int(one[i]) for one in several], self.axes) for i in range(len(first))]
        if None in lengths:
            return None
        parts = [self._length(each) for each in lengths if each is not None]
        return self.made.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]

    def _number(self, several: Sequence[Any]) -> Value | None:
        # A number that code computed from a shape, such as a mean's divisor.
        first = several[0]
        if first.ndim or (first.dtype not in FLOATS and first.dtype.kind != "i"):
            return None
        if any(float(one) != int(one) for one in several):
            return None
        length = product_of([int(one) for one in several], self.axes)
        return None if length is None else self.made.cast(self.made.squeeze(self._length(length), 0), first.dtype)

    def _repeated(self, several: Sequence[Any]) -> Value | None:
        # An array whose values repeat along the axes whose length changes.
        first = several[0]
        if any(one.ndim != first.ndim or one.dtype != first.dtype for one in several):
            return None
        changed = [i for i in range(first.ndim) if any(one.shape[i] != first.shape[i] for one in several)]
        index = tuple([slice(0, 1) if i in changed else slice(None) for i in range(first.ndim)])
        kept = [one[index] for one in several]
        if not changed or any(not (one == least).all() for one, least in zip(several, kept, strict=True)):
            return None
        lengths = self._vector([np.array(one.shape, int64) for one in several])
        if lengths is None or not all(same(kept[0], one) for one in kept):
            return None
        return self.made.Expand(self.made.constant(kept[0], name="sizes/repeated"), lengths)

    def _range(self, several: Sequence[Any]) -> Value | None:
        first = several[0]
        if first.ndim != 1 or (first.dtype.kind != "i" and first.dtype not in FLOATS):
            return None
        if any(one.ndim != 1 or not np.array_equal(one, np.arange(len(one))) for one in several):
            return None
        length = product_of([len(one) for one in several], self.axes)
        if length is None:
            return None
        zero, one = (self.made.constant(n, int64) for n in (0, 1))
        found = self.made.Range(zero, self.made.squeeze(self._length(length), 0), one)
        return self.made.cast(Value(found.name, int64), first.dtype)

    def _length(self, length: Product) -> Value:
        """A product of sizes as a vector of one."""
        if length not in self._lengths:
            self._lengths[length] = self._compute(length)
        return self._lengths[length]

    def _compute(self, length: Product) -> Value:
        made = self.made
        found: Value | None = None
        for axis, power in length.powers:
            for _ in range(power):
                size = made.Shape(Value(axis.input), start=axis.axis, end=axis.axis + 1)
                found = size if found is None else made.Mul(found, size)
        factor = length.factor
        if found is None:
            return made.ints(factor.numerator)
        if factor.numerator != 1:
            found = made.Mul(found, made.ints(factor.numerator))
        return Value(found.name, int64) if factor.denominator == 1 else made.Div(found, made.ints(factor.denominator))


def output_shapes(runs: Sequence[Sequence[Sequence[int]]], axes: Sequence[Axis]) -> list[list[int | str | None]]:
    """The shapes of the outputs: a dynamic axis has the name of its size, or None if it is computed from one.

    runs: the shapes of the outputs in the first run, then in that of each of `axes`.
    """
    return [
        [_dimension(lengths, axes) for lengths in zip(*several, strict=True)] for several in zip(*runs, strict=True)
    ]


def _dimension(lengths: Sequence[int], axes: Sequence[Axis]) -> int | str | None:
    if len(set(lengths)) == 1:
        return lengths[0]
    product = product_of(lengths, axes)
    if product is not None and product.factor == 1 and len(product.powers) == 1 and product.powers[0][1] == 1:
        return product.powers[0][0].name
    return None
