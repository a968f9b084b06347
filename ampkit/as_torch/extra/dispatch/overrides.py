"""`torch.overrides`: no class takes over ampkit's functions, so that nothing is overridden."""

from __future__ import annotations

from typing import Any

from ....core.tensor import Tensor


def has_torch_function(relevant_args: Any) -> bool:
    """False."""
    return False


has_torch_function_unary = has_torch_function


def has_torch_function_variadic(*relevant_args: Any) -> bool:
    """False."""
    return False


def is_tensor_like(inp: Any) -> bool:
    """Whether it is a Tensor."""
    return isinstance(inp, Tensor)
