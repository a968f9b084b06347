"""Which ONNX nodes an op is: a registry of functions, one for each op, by its name.

    @onnx_op("silu")
    def silu(g, input):
        return g.Mul(input, g.Sigmoid(input))

Such a function takes the graph and the arguments of the op's reference, in its order: a `Value` for each tensor, and
for a number in place of one; None; and the other parameters as they are. It returns the value of the result, or a list
of values where the op has several results. The op's floating-point tensors come in the dtype that the op computes in,
as in its reference, and the result is rounded to the dtype that the op returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from ...base.dtypes import LOW, DType, float16

FLOAT16 = frozenset({float16})  # of nodes that round once: arithmetic of one node, products
MOVED = LOW  # of nodes that move values, which runtimes have for every dtype


class Mapping(NamedTuple):
    """How an op becomes nodes: `build(graph, *arguments)`, and the 16-bit dtypes that its nodes compute in."""

    build: Callable[..., Any]
    low: Collection[DType]


MAPPINGS: dict[str, Mapping] = {}


def onnx_op(*names: str, low: Collection[DType] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the function that makes ONNX nodes of the ops of these names; see the head of the file.

    low: the 16-bit dtypes in which the nodes themselves compute; for others they compute in float32. A name that has a
    mapping gets the new one.
    """

    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        ours = build.__module__.startswith(f"{__package__}.")  # loaded by the first export, perhaps after a user's
        MAPPINGS.update({name: Mapping(build, low) for name in names if not (ours and name in MAPPINGS)})
        return build

    return register


def map_formulas(formulas: dict[str, str | Callable[..., Any]], low: Collection[DType] = ()) -> None:
    """`onnx_op` for a table: by op the name of the one node that it is, or a function that makes its nodes."""
    for name, formula in formulas.items():
        onnx_op(name, low=low)(_one_node(formula) if isinstance(formula, str) else formula)


def _one_node(kind: str) -> Callable[..., Any]:
    return lambda g, *inputs: getattr(g, kind)(*inputs)
