"""Node: the record of one operation on the tape. GradientEdge: one of its outputs, as `ampkit.grad` takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ampkit.base.dtypes import FLOATS, Array, DType, float32
from ampkit.base.errors import StateError

from ..module_path import ModuleCall, current, following
from ..tensor import Edge, Tensor, tick
from .accumulate_grad import AccumulateGrad, accumulate_grad
from .hooks import Handle
from .node_hooks import NodeHooks, add_after, add_before
from .scale_tag import ScaleTag

if TYPE_CHECKING:
    from .backward_pass import BackwardPass


class Node:
    """One recorded call of an op.

    op: the object with the backward (`vjp`, `replay`, `needs`). edges: per input, where its gradient flows, or None.
    saved: what backward needs; None once freed. used: of a node that keeps no arrays, whether a backward pass that did
    not retain the graph has visited it. packed: the saved items that hooks packed (see core/autograd/saved_hooks.py).
    params: the other arguments. plan: the dtypes it ran in. kernel: the implementation that ran. outputs: (shape,
    dtype) of each of several outputs. versions, result, others: those of the inputs, of the first output and of further
    ones that were saved, to be compared with serial, the time of the recording. place: of a node that a task recorded,
    the time at which it would have been without threads (see core/autograd/tasks.py). tag: the loss scale, if this node
    multiplies by it. hooks: on the gradients of its outputs (see core/autograd/hooks.py). around: hooks of the node
    itself (see core/autograd/node_hooks.py). module_call: of the module whose forward recorded it, if calls of modules
    are followed (see core/module_path.py). again: how its last output is computed anew (see core/capture/anew.py).
    """

    outputs: tuple[Any, ...] = (None,)
    hooks: dict[int, Any] | None = None
    around: NodeHooks | None = None
    used: bool = False
    packed: dict[str, Any] | None = None
    result: Sequence[int] = (0,)
    others: Sequence[Sequence[int]] = ()
    tag: ScaleTag | None = None
    module_call: ModuleCall | None = None
    place: float | None = None
    again: Any = None
    _unrounded: bool = False

    def __init__(
        self,
        op: Any,
        edges: Sequence[Edge | None],
        saved: Any,
        params: Any = (),
        plan: Any = None,
        kernel: Any = None,
        versions: Sequence[Sequence[int]] = (),
    ):
        self.op, self.edges, self.saved, self.params, self.plan, self.kernel = op, edges, saved, params, plan, kernel
        self.versions = versions
        self.serial = tick()
        if following:
            self.module_call = current()

    def __repr__(self) -> str:
        return f"<{self.name()}>"

    @property
    def order(self) -> float:
        """When it was recorded, or would have been without threads: a backward pass visits later nodes first."""
        return self.serial if self.place is None else self.place

    # what scripts read of a graph, by PyTorch's names

    def __call__(self, *grad_outputs: Any) -> Any:
        """The gradients of its inputs, given those of its outputs: see `tape`, which runs it."""
        raise NotImplementedError

    def shown(self) -> Node:
        """The node itself, from now on of the type that is named after its op.

        Scripts look at few nodes, so that only those pay for it.
        """
        if type(self) is Node:
            from .saved_attributes import node_type_of

            self.__class__ = node_type_of(self.op)
        return self

    def name(self) -> str:
        """The name of its type, as `MulBackward0`, or `CubeBackward` of a Function `Cube`."""
        return type(self.shown()).__name__

    @property
    def next_functions(self) -> tuple[tuple[Node | AccumulateGrad | None, int], ...]:
        """Per input, the node that its gradient flows to and the index of that node's output; (None, 0) for none.

        Of a leaf it is its AccumulateGrad.
        """
        return tuple([(None, 0) if edge is None else (shown(edge[0]), edge[1]) for edge in self.edges])

    @cached_property
    def metadata(self) -> dict[Any, Any]:
        """A dict for anything that a script wants to keep with the node."""
        return {}

    def register_prehook(self, hook: Callable[[tuple[Tensor | None, ...]], Any]) -> Handle:
        """Call `hook(grad_outputs)` in every backward, before the node's; see `node_hooks.add_before`."""
        return add_before(self._hooks_around(), hook)

    def register_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call `hook(grad_inputs, grad_outputs)` in every backward, after the node's; see `node_hooks.add_after`."""
        return add_after(self._hooks_around(), hook)

    def _hooks_around(self) -> NodeHooks:
        if self.around is None:
            self.around = NodeHooks()
        return self.around


class WideNode(Node):
    """A node whose gradient is wanted unrounded, like a Parameter's, of which it is a part or another view."""

    _unrounded = True


def shown(source: Any) -> Node | AccumulateGrad:
    """What a script sees of the source of an edge: a node, or of a leaf its AccumulateGrad."""
    return source.shown() if isinstance(source, Node) else accumulate_grad(source)


@cache
def named_node_type(name: str, base: type[Node] = Node) -> type[Node]:
    """The type of nodes of this name."""
    return type(name, (base,), {"__module__": base.__module__})


def attach(array: Array, node: Node, index: int = 0) -> Tensor:
    """A tensor recorded as output `index` of `node`; integers and booleans carry no gradient."""
    out = Tensor(array)
    if array.dtype in FLOATS:
        out._tape_edge = (node, index, array.shape, array.dtype)
    return out


class _Alias:
    """The op of a node that passes its gradient on unchanged."""

    name = "alias"

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        return (dys[0],)

    replay = vjp

    def jvp(self, node: Node, tangents: Sequence[Tensor | None], traced: bool) -> Sequence[Tensor | None]:
        return tangents

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        return (None,)


_ALIAS = _Alias()


def alias(array: Array, edge: Edge) -> Tensor:
    """A traced tensor with the values of `array` whose gradient flows along `edge`."""
    return attach(array, Node(_ALIAS, (edge,), ()))


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
