"""What libraries tell PyTorch's exporter to ONNX of operators of their own, which ampkit's does not read."""

from __future__ import annotations

from typing import Any

from .decorators import same_with

__all__ = ["parse_args", "quantized_args", "register_custom_op_symbolic", "unregister_custom_op_symbolic"]

parse_args = quantized_args = same_with


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Any, opset_version: int) -> None:
    """Does nothing: the export of a model raises where it meets an op without a mapping of ampkit's."""


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Does nothing."""
