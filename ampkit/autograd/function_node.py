"""The node that a call of a Function records, and the op with its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .. import backends
from ..base import observe
from ..base.array_kinds import on_device
from ..base.errors import ArgumentError, DeviceError, DTypeError, StateError
from ..core.autograd.node import Node
from ..core.autograd.traced_array import TracedArray
from ..core.dispatch.batching.array import device_of
from ..core.tensor import Tensor

if TYPE_CHECKING:
    from .function import Function, FunctionCtx

__all__ = ["Call", "FunctionNode", "Once"]


class FunctionNode(Node):
    """The node of a call of a Function: it has the attributes of the call's context, as PyTorch's is that context."""

    ctx: FunctionCtx

    @property
    def saved(self) -> FunctionCtx | None:
        """The context; None once its tensors are freed."""
        return None if self.ctx._freed else self.ctx

    @saved.setter
    def saved(self, ctx: FunctionCtx | None) -> None:
        if ctx is None:
            self.used = True
            self.ctx._free()
        else:
            self.ctx = ctx

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "ctx":
            raise AttributeError(name)
        return getattr(self.ctx, name)


class Call:
    """The op of the node that a call of a Function records."""

    def __init__(self, function: type[Function]):
        self.function, self.name = function, function.__name__
        self.changes = False  # whether forward changes an argument in place
        self.inputs: list[Any] = []  # of a Function with a `jvp`: (shape, dtype) of each float argument, None of others

    def needs(self, node: Node) -> tuple[None, ...]:
        return (None,) * len(node.edges)

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> list[Any]:
        given = [None if dy is None else Tensor(dy) for dy in dys]
        gradients = [None if found is None else found.array for found in self._gradients(node, given)]
        if observe.observers:
            read, what = [dy for dy in dys if dy is not None], {"operands": tuple(dys), "node": node}
            what["tag"] = backward_pass.tag
            observe.notify_end(f"{self.name}_backward", tuple(read), tuple(gradients), observe.BACKWARD, **what)
        return gradients

    def replay(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> list[Any]:
        given = [None if dy is None else dy.tensor for dy in dys]
        return [None if found is None else TracedArray(found) for found in self._gradients(node, given)]

    def jvp(self, node: Node, tangents: Sequence[Tensor | None], traced: bool) -> Sequence[Tensor | None] | None:
        """The tangents of the outputs by the Function's own `jvp`; None if it has none, or is differentiated.

        It reads constants: where the tangents are differentiated in their turn, its backward is, if it has one.
        """
        from .function import Function  # which imports this file

        has_backward = (self.function.backward, self.function.vjp) != (Function.backward, Function.vjp)
        if self.function.jvp is Function.jvp or (traced and has_backward):
            return None
        ctx: Any = node.saved
        if ctx._materializes:
            backend = backends.backend_of(on_device(next(t.array for t in tangents if t is not None)))
            pairs = zip(tangents, self.inputs, strict=True)
            tangents = [t if t is not None or one is None else Tensor(backend.zeros(*one)) for t, one in pairs]
        if self.changes:  # `jvp` changes tangents in place, which may be those of other tensors too
            tangents = [None if t is None else t.clone() for t in tangents]
        ctx._runs_jvp = True
        try:
            found = self.function.jvp(ctx, *tangents)
        finally:
            ctx._runs_jvp = False
        return found if isinstance(found, (tuple, list)) else (found,)

    def _gradients(self, node: Node, dys: list[Any]) -> list[Tensor | None]:
        ctx, backend = node.saved, backends.backend_of(next(dy.array for dy in dys if dy is not None))
        if ctx._materializes:
            pairs = zip(dys, node.outputs, strict=True)
            dys = [Tensor(backend.zeros(*out)) if dy is None and out is not None else dy for dy, out in pairs]
        ctx._node = node
        try:
            found = self.function._pull(ctx, *dys)
        finally:
            ctx._node = None
        device = device_of(next(dy.array for dy in dys if dy is not None))
        return self._check_gradients(found if isinstance(found, (tuple, list)) else (found,), node, device)

    def _check_gradients(self, found: Sequence[Any], node: Node, device: Any) -> list[Tensor | None]:
        where, count = f"{self.name}.backward", len(node.edges)
        if len(found) < count or any(extra is not None for extra in found[count:]):
            needs = f"{count} gradient{'s' * (count != 1)}, one per argument of forward, None where there is none"
            raise ArgumentError(where, needs, str(len(found)))
        for position, item in enumerate(found[:count]):
            if item is not None and not isinstance(item, Tensor):
                raise DTypeError(where, "Tensors or None", f"a {type(item).__name__} as gradient {position}")
            if item is not None and device_of(item.array) is not device:
                raise DeviceError(where, f"gradients on {device.name}", f"gradient {position} on {item.device}")
        return [None if edge is None else item for edge, item in zip(node.edges, found, strict=False)]


class Once:
    """The op of a node that no gradient may pass."""

    def __init__(self, name: str):
        self.name = name

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: Any) -> NoReturn:
        needs = "a backward that can be differentiated"
        raise StateError(self.name, needs, "one that is marked with @once_differentiable")

    replay = vjp

    def needs(self, node: Node) -> tuple[None, ...]:
        return (None,) * len(node.edges)
