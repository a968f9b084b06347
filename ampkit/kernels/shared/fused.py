"""Registers linear_gelu_linear as the kernels of its parts, one after the other, which saves the hidden layer."""

from __future__ import annotations

from ampkit.ops.nn import fused

from .registration import on


def register_by_op(backend: str) -> None:
    """Register both directions, for what kernels that the backend registered before do not take."""
    op = fused.linear_gelu_linear
    on(op, backend, fused.linear_gelu_linear_by_op, wants_cache=True)
    on(op.backward_primitive, backend, fused.linear_gelu_linear_backward_by_op, fused.saved_hidden, wants_cache=True)
