"""GradientEdge: the place of a tensor in a graph, which outlives changes in place of the tensor."""

from __future__ import annotations

from typing import NamedTuple

from ampkit.base.dtypes import float32
from ampkit.base.errors import StateError

from ..tensor import Edge, Tensor
from .accumulate_grad import AccumulateGrad
from .node import Node, shown


class GradientEdge(NamedTuple):
    """An output of a node, or the AccumulateGrad of a leaf: `ampkit.grad` takes it in place of a tensor."""

    node: Node | AccumulateGrad
    output_nr: int

    @property
    def _tape_edge(self) -> Edge:
        """The edge by which a backward pass knows it. Its shape and dtype are not known."""
        source = self.node.variable if isinstance(self.node, AccumulateGrad) else self.node
        return source, self.output_nr, (), float32


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The place of a tensor in its graph. Raises StateError for one that requires no grad."""
    if tensor._tape_edge is None:
        raise StateError("get_gradient_edge", "a tensor that requires grad", "one that does not")
    source, index = tensor._tape_edge[:2]
    return GradientEdge(shown(source), index)
