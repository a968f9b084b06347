"""torch.onnx.export: runs a model, and writes the ops that it called as an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from ...base.errors import ArgumentError
from . import arguments
from .dynamic import generalize, output_shapes
from .proto import model_proto, need_onnx, need_opset, write_model
from .runs import ModelCall, Runs
from .trace import WHERE
from .verify import compare


def export(
    model: Any,
    args: Any = (),
    f: str | os.PathLike[str] | IO[bytes] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool = False,
    dynamic_shapes: Any = None,
    dynamic_axes: Any = None,
    optimize: bool = True,
    verify: bool = False,
    export_params: bool = True,
    do_constant_folding: bool = True,
    keep_initializers_as_inputs: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Run `model` in eval mode on `args`, and write the ops that it called as the ONNX file `f`.

        ampkit.onnx.export(model, (x,), "model.onnx", input_names=["image"], dynamic_shapes={"image": {0: "batch"}})

    model: a module. args, kwargs: what it is called with: a Tensor, or a tuple of arguments. f: a path, whose file is
    replaced at once, or a binary file object. input_names, output_names: of tensors, in order; by default the
    parameters of `forward`, and output, or the keys of a dict. opset_version: of ONNX's operators, from 18, by default
    20. dynamic_shapes: by input, the names of axes that may have another length, `{"image": {0: "batch"}}`;
    dynamic_axes is its older name, where those of outputs may stand too, which follow from the inputs'. verify: also
    run the file in ONNX Runtime and compare. metadata: text by name, kept in the file. The other arguments are accepted
    for PyTorch's sake with values that change nothing.

    The file holds what this run computed: one path through Python code, and as constants what that code made without
    the inputs. Weights have the names of the state_dict; tied ones are stored once. Inside `autocast` casts are nodes:
    float16 products compute in float16, bfloat16 operands are rounded and computed in float32. The model runs again on
    other values, and for each dynamic axis on another length; what then differs and cannot be computed from the shapes
    of the inputs is an error.
    Raises ArgumentError for an op without a mapping, for what differs between these runs, and for arguments out of
    range; StateError for a model that reads values of tensors in Python, and where verify finds a difference;
    FileError without the package onnx and for a file that cannot be written.
    """
    from . import ops  # noqa: F401  # the mappings: `import ampkit` does without them

    need_onnx()
    if f is None or not (hasattr(f, "write") or isinstance(f, (str, os.PathLike))):
        raise ArgumentError(WHERE, "`f`, a path or a binary file object", repr(f)[:80])
    if not export_params or keep_initializers_as_inputs:
        raise ArgumentError(WHERE, "weights as constants of the file", "export_params or keep_initializers_as_inputs")
    opset = need_opset(opset_version)
    dynamic = dynamic_shapes or arguments.of_inputs(dynamic_axes, output_names)
    runs = Runs(ModelCall.of(model, args, kwargs), input_names, dynamic, opset)
    first, others = runs.all()
    axes = [axis for axis, _ in others]
    generalize(first.graph, [run.graph for _, run in others], axes)
    ends = arguments.chosen_names("output_names", output_names, arguments.output_names(first.returned), runs.names)
    shapes = output_shapes([run.output_shapes() for run in (first, *(run for _, run in others))], axes)
    outputs = list(zip(first.ends, ends, shapes, strict=True))
    made = model_proto(first.graph, runs.input_values(first), outputs, metadata or {})
    if verify:
        compare(made, [run.values(runs.names) for run in (first, *(run for _, run in others))], ends)
    write_model(made, f)
