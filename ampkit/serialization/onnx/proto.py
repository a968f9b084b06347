"""The file: a Graph as an ONNX ModelProto, by the package onnx, checked and written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...base.atomic_file import write
from ...base.dtypes import DType
from ...base.errors import ArgumentError, FileError, StateError
from .graph import Graph, Node, Value
from .trace import WHERE

OLDEST, DEFAULT = 18, 20  # of operators: the first with axes of reductions as inputs, and PyTorch's default
_IR_VERSION = 10  # of the file format, with the operators of version 21: runtimes refuse newer ones than their own
_LIMIT = 2**31 - 1  # bytes of a protobuf message


def need_onnx() -> Any:
    """The package onnx. Raises FileError without it."""
    try:
        import onnx
    except ImportError:
        raise FileError(WHERE, "the package onnx", "none", "pip install 'ampkit[onnx]'") from None
    return onnx


def need_opset(opset_version: Any) -> int:
    """The version of the operators. Raises ArgumentError for one before 18 or that the package does not know."""
    opset, newest = DEFAULT if opset_version is None else opset_version, need_onnx().defs.onnx_opset_version()
    if type(opset) is not int or not OLDEST <= opset <= newest:
        got, cure = repr(opset), f"leave it out: {DEFAULT} is the default"
        raise ArgumentError(WHERE, f"opset_version from {OLDEST} to {newest}", got, cure)
    return opset


def model_proto(
    graph: Graph,
    inputs: Sequence[tuple[Value, Sequence[Any]]],
    outputs: Sequence[tuple[Value, str, Sequence[Any]]],
    metadata: Mapping[str, str],
) -> Any:
    """The ModelProto of a graph.

    inputs: values with their shapes, which hold names for dynamic lengths. outputs: the same with the name of each.
    Raises ArgumentError for more than 2 GiB, the most that such a file holds.
    """
    onnx = need_onnx()
    helper = onnx.helper
    nodes = [_node(helper, node) for node in graph.nodes]
    nodes += [helper.make_node("Identity", [value.name], [name], name=name) for value, name, _ in outputs]
    used = {name for node in nodes for name in node.input}
    constants = {name: constant.array for name, constant in graph.constants.items() if name in used}
    if (size := sum(array.nbytes for array in constants.values())) > _LIMIT:
        raise ArgumentError(WHERE, "weights of at most 2 GiB, which a file holds", f"{size / 2**30:.1f} GiB")
    made = helper.make_graph(
        nodes,
        "ampkit",
        [helper.make_tensor_value_info(value.name, _type(value.dtype), shape) for value, shape in inputs],
        [helper.make_tensor_value_info(name, _type(value.dtype), shape) for value, name, shape in outputs],
        [_tensor(name, array) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", graph.opset)]
    model = helper.make_model(made, opset_imports=opsets, producer_name="ampkit")
    model.ir_version = _IR_VERSION if graph.opset <= 21 else helper.find_min_ir_version_for(opsets)
    helper.set_model_props(model, dict(metadata))
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # of its checker and its inference, of several types
        got = str(error).strip().partition("\n")[0]
        cure = "an axis without elements may be why; otherwise this is a mistake in ampkit"
        raise StateError(WHERE, "a graph that onnx.checker accepts", got, cure) from error
    return model


def _node(helper: Any, node: Node) -> Any:
    attributes = {name: _type(value) if isinstance(value, np.dtype) else value for name, value in node.attributes}
    return helper.make_node(node.kind, node.inputs, node.outputs, name=node.outputs[0], doc_string=None, **attributes)


_TYPES = {"float16": 10, "float64": 11, "bfloat16": 16, "float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6}
_TYPES |= {"int64": 7, "bool": 9}  # TensorProto.DataType, by the names of dtypes


def _type(dtype: DType | None) -> int:
    assert dtype is not None
    return _TYPES[dtype.name]


def _tensor(name: str, array: Any) -> Any:
    made = need_onnx().TensorProto(dims=array.shape, data_type=_type(array.dtype), name=name)
    made.raw_data = np.ascontiguousarray(array).tobytes()
    return made


def write_model(model: Any, f: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write a ModelProto to a file, which is replaced at once, or to a file object. Raises FileError."""
    data = model.SerializeToString()
    if hasattr(f, "write"):
        f.write(data)
    else:
        write(WHERE, Path(f), data)
