"""What a rule of forward mode gets: a node of which it says the tangent in fewer passes than its backward would.

A rule is a function `(call, **params)` -> the tangent of the first output, or None where it does not know the call;
`op.tangent = rule` gives it to an op, and `ampkit/ops/tangents` has those of ampkit's ops. Rules read saved values as
constants, so they run where the tangents are not differentiated in their turn; `itself`, which reads none, always.
"""

from __future__ import annotations

from typing import Any

from ampkit import backends
from ampkit.base.dtypes import FLOATS, DType

from .. import dispatch
from ..autograd.node import Node
from ..autograd.saved import Saved
from ..autograd.traced_array import TracedArray
from ..casts import cast
from ..tensor import Tensor
from .batching.array import BatchedArray, innermost

__all__ = ["TangentCall", "itself"]


class TangentCall:
    """One node, and the tangents of its inputs as the op read them; None where an input has none.

    shape, dtype: of its first output. items: what it saved, by name.
    """

    def __init__(self, node: Node, tangents: list[Tensor | None], result: tuple[tuple[int, ...], DType]):
        self.node, self.op, self.plan, self.items = node, node.op, node.plan, vars(node.saved)
        self.params = dict(zip(node.op.signature.param_names, node.params, strict=True))
        self.tangents, (self.shape, self.dtype) = tangents, result
        self.batched = any(t is not None and type(t.array) is BatchedArray for t in tangents)

    def saved(self, name: str) -> Tensor | None:
        """What the call saved under a name as a constant, floats in the dtype in which it computed."""
        found = self.items.get(name)
        return None if found is None else self.wide(Tensor(found))

    def wide(self, tensor: Tensor) -> Tensor:
        """A tensor in the dtype in which the call computed."""
        dtype = self.plan.compute
        return tensor if dtype is None or tensor.array.dtype not in FLOATS else cast_to(tensor, dtype)

    def tangent(self, i: int) -> Tensor | None:
        """The tangent of input `i` in the dtype in which the call computed."""
        found = self.tangents[i]
        return None if found is None else self.wide(found)

    def given(self, i: int) -> bool:
        """Whether input `i` was passed to the call."""
        versions = self.node.versions
        return self.node.edges[i] is not None or (i < len(versions) and not isinstance(versions[i], tuple))

    def transposed(self, dy: Tensor, i: int, others: tuple[Any, ...] = (), **changed: Any) -> Tensor | None:
        """The gradient of input `i`, given that of the output, with some saved items changed; None under `vmap`.

        It is the tangent of the output where the Jacobian is its own transpose. others: the gradients of further
        outputs.
        """
        node, needs = self.node, [None] * len(self.tangents)
        if self.batched or node.kernel.own_backward is not None:
            return None
        needs[i] = dy.array.dtype
        saved, given = Saved(**{**self.items, **changed}), (dy.array, *others) if others else dy.array
        return Tensor(backward_of(self.op, given, saved, tuple(needs), self.plan.compute, **self.params)[i])


def itself(call: TangentCall, **params: Any) -> Tensor | None:
    """The rule of ops that are linear in their float tensors taken together: the op, of the tangents.

    Each float tensor must have a tangent. Indices are those that the call was given, unless they are of each sample.
    """
    signature, inputs, level = call.op.signature, [], call.node.kernel.level
    if level is not None and innermost(call.node.params) is not None:
        return None
    for i, (tangent, is_float) in enumerate(zip(call.tangents, signature.kinds(len(call.tangents)), strict=True)):
        index = None if is_float or level is not None else getattr(call.node.saved, signature.names[i], None)
        if tangent is None and (index is None if not is_float else call.given(i)):
            return None
        inputs.append(tangent if is_float else Tensor(index))
    return signature.call(call.op, inputs, call.node.params)


def backward_of(op: Any, dy: Any, saved: Saved, needs: tuple[Any, ...], compute: DType | None, **params: Any) -> Any:
    """The gradients that the backward of `op` gives for arrays, by its kernel where one applies."""
    primitive = op.backward_primitive
    like = dy if type(dy) is not tuple else next(each for each in dy if each is not None)
    kernel = primitive.choose(backends.backend_of(like).name, dispatch.call, (dy, saved, needs), params)
    versions, nothing = ((0,),) * len(needs), (None,) * len(needs)
    found, _ = dispatch.backward(op, kernel, dy, saved, needs, params, compute, versions, nothing)
    return found if isinstance(found, (tuple, list)) else (found,)


def cast_to(tensor: Tensor, dtype: DType) -> Tensor:
    """A tensor in another dtype, differentiable where the tape records."""
    if tensor.array.dtype == dtype:
        return tensor
    made: Any = cast(TracedArray(tensor), dtype)
    return made.tensor
