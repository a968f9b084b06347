"""Activations of `torch.nn.functional` that change their input: `relu_` and its like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .... import ops

__all__ = ["celu_", "elu_", "hardtanh_", "leaky_relu_", "relu_", "rrelu_", "selu_", "threshold_"]


def _in_place(name: str) -> Callable[..., Any]:
    function = getattr(ops, name)

    def activation_(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, **kwargs, inplace=True)

    activation_.__name__ = activation_.__qualname__ = f"{name}_"
    activation_.__doc__ = f"`{name}(input, ..., inplace=True)`."
    return activation_


celu_, elu_, hardtanh_ = map(_in_place, ("celu", "elu", "hardtanh"))
leaky_relu_, relu_, rrelu_ = map(_in_place, ("leaky_relu", "relu", "rrelu"))
selu_, threshold_ = map(_in_place, ("selu", "threshold"))
