"""Node: the record of one operation on the tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ampkit.backends import Array
from ampkit.base.dtypes import FLOATS, DType

from ..module_path import ModuleCall, current, following
from ..tensor import Edge, Tensor, tick
from .scale_tag import ScaleTag

if TYPE_CHECKING:
    from .backward_pass import BackwardPass


class Node:
    """One recorded call of an op.

    op: the object with the backward (`vjp`, `replay`, `needs`). edges: per input, where its gradient flows, or None.
    saved: what backward needs; None once used. params: the other arguments. plan: the dtypes it ran in. kernel: the
    implementation that ran. outputs: (shape, dtype) of each of several outputs. versions, result: those of the inputs
    and of the first output, to be compared with serial, the time of the recording. tag: the loss scale, if this
    node multiplies by it. hooks: see core/autograd/hooks.py. module_call: of the module whose forward recorded it,
    if calls of modules are followed (see core/module_path.py).
    """

    outputs: tuple[Any, ...] = (None,)
    hooks: dict[int, Any] | None = None
    result: Sequence[int] = (0,)
    tag: ScaleTag | None = None
    module_call: ModuleCall | None = None

    def __init__(
        self,
        op: Any,
        edges: Sequence[Edge | None],
        saved: Any,
        params: Any = (),
        plan: Any = None,
        kernel: Any = None,
        versions: Sequence[list[int]] = (),
    ):
        self.op, self.edges, self.saved, self.params, self.plan, self.kernel = op, edges, saved, params, plan, kernel
        self.versions = versions
        self.serial = tick()
        if following:
            self.module_call = current()

    def __repr__(self) -> str:
        return f"<Node {self.op.name}>"


def attach(array: Array, node: Node, index: int = 0) -> Tensor:
    """A tensor recorded as output `index` of `node`; integers and booleans carry no gradient."""
    out = Tensor(array)
    if array.dtype in FLOATS:
        out.edge = (node, index, array.shape, array.dtype)
    return out


class _Alias:
    """The op of a node that passes its gradient on unchanged."""

    name = "alias"

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        return (dys[0],)

    replay = vjp

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        return (None,)


_ALIAS = _Alias()


def alias(array: Array, edge: Edge) -> Tensor:
    """A traced tensor with the values of `array` whose gradient flows along `edge`."""
    return attach(array, Node(_ALIAS, (edge,), ()))
