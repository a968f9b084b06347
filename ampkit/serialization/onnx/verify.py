"""verify=True: the file in ONNX Runtime beside the model, on the inputs of the export and on those of other sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...base.dtypes import bfloat16, float32, float64
from ...base.errors import FileError, StateError
from .trace import WHERE

# The largest difference, as a share of the largest value: sums in another order, and 16-bit values rounded elsewhere.
TOLERANCE, TOLERANCE_LOW = 1e-4, 2e-2


def compare(model: Any, runs: Sequence[tuple[Mapping[str, Any], Sequence[Any]]], names: Sequence[str]) -> None:
    """Run a ModelProto on the inputs of `runs`, and compare its outputs, of these names, with those of ampkit.

    Raises FileError without ONNX Runtime, StateError for an output that differs by more than TOLERANCE of its largest
    value, or by TOLERANCE_LOW where the graph has 16-bit values.
    """
    try:
        import onnxruntime
    except ImportError:
        cure = "pip install onnxruntime, or leave verify out"
        raise FileError(WHERE, "the package onnxruntime, for verify=True", "none", cure) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    data = _with_readable_ends(model).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    allowed = TOLERANCE_LOW if _is_low(model) else TOLERANCE
    given = [info.name for info in session.get_inputs()]
    for inputs, wanted in runs:
        feed = {name: _readable(array) for name, array in zip(given, inputs.values(), strict=True)}
        for name, got, want in zip(names, session.run(None, feed), wanted, strict=True):
            _need_close(name, got, want, allowed)


def _readable(array: Any) -> Any:
    return array.astype(float32) if array.dtype == bfloat16 else array


def _with_readable_ends(model: Any) -> Any:
    """A copy whose bfloat16 inputs and outputs, which ONNX Runtime does not give to NumPy, are float32."""
    from onnx import ModelProto, TensorProto, helper

    made = ModelProto()
    made.CopyFrom(model)
    for infos, is_input in ((made.graph.input, True), (made.graph.output, False)):
        for info in infos:
            if (kind := info.type.tensor_type).elem_type == TensorProto.BFLOAT16:
                inner, outer = info.name, f"{info.name}/float32"
                info.name, kind.elem_type = outer, TensorProto.FLOAT
                ends = (outer, inner, TensorProto.BFLOAT16) if is_input else (inner, outer, TensorProto.FLOAT)
                node = helper.make_node("Cast", [ends[0]], [ends[1]], to=ends[2])
                made.graph.node.insert(0 if is_input else len(made.graph.node), node)
    return made


def _is_low(model: Any) -> bool:
    from onnx import TensorProto

    low = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    casts = (a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute)
    return bool(low & {*casts, *(info.type.tensor_type.elem_type for info in model.graph.input)})


def _need_close(name: str, got: Any, want: Any, allowed: float) -> None:
    if got.shape != want.shape:
        raise StateError(WHERE, f"output {name} of shape {list(want.shape)} in ONNX Runtime", f"{list(got.shape)}")
    a, b = got.astype(float64), want.astype(float64)
    finite = np.isfinite(b)
    scale = float(np.max(np.abs(b[finite]), initial=0.0))
    off = float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
    if not off <= allowed * max(scale, 1e-3) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        needs = f"output {name} of ONNX Runtime within {allowed:g} of the largest value, {scale:.3g}"
        raise StateError(WHERE, needs, f"a difference of {off:.3g}")
