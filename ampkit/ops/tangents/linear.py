"""Tangents of ops that are linear in their float tensors taken together: the op itself, of the tangents."""

from __future__ import annotations

from typing import Any

from ampkit.core.dispatch.forward_rules import TangentCall
from ampkit.core.tensor import Tensor


def itself(call: TangentCall, **params: Any) -> Tensor | None:
    """The op of the tangents, with the indices that it was given. Each float tensor must have a tangent."""
    signature, inputs = call.op.signature, []
    if call.node.kernel.level is not None:  # whose indices may be of each sample
        return None
    for i, (tangent, is_float) in enumerate(zip(call.tangents, signature.kinds(len(call.tangents)), strict=True)):
        index = None if is_float else getattr(call.node.saved, signature.names[i], None)
        if tangent is None and (index is None if not is_float else call.given(i)):
            return None
        inputs.append(tangent if is_float else Tensor(index))
    return signature.call(call.op, inputs, call.node.params)


def rows(call: TangentCall, padding_idx: int | None) -> Tensor | None:
    """`embedding`, unless it has a row without a gradient."""
    return None if padding_idx is not None else itself(call)
