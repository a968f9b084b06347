"""torch.onnx.export: runs a model, and writes the ops that it called as an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from ... import backends
from ...base.errors import AmpkitError, ArgumentError, DTypeError
from ...core import random
from ...core.autograd.grad_mode import no_grad
from ...core.nested import tensors_in
from ...core.tensor import Tensor
from . import arguments
from .dynamic import Axis, generalize, need_same_nodes, output_shapes, same
from .graph import Graph, Value
from .proto import model_proto, need_onnx, need_opset, write_model
from .trace import WHERE, Trace, recording
from .translate import translate
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
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Run `model` in eval mode on `args`, and write the ops that it called as the ONNX file `f`.

        ampkit.onnx.export(model, (x,), "model.onnx", input_names=["image"], dynamic_shapes={"image": {0: "batch"}})

    model: a module. args, kwargs: what it is called with: a Tensor, or a tuple of arguments. f: a path, whose file is
    replaced at once, or a binary file object. input_names, output_names: of tensors, in order; by default the
    parameters of `forward`, and output, or the keys of a dict. opset_version: of ONNX's operators, from 18, by default
    20. dynamic_shapes: by input, the names of axes that may have another length, `{"image": {0: "batch"}}`;
    dynamic_axes is its older name. verify: also run the file in ONNX Runtime and compare. metadata: text by name, kept
    in the file. The other arguments are accepted for PyTorch's sake and change nothing.

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
    opset = need_opset(opset_version)
    call = _Call.of(model, args, kwargs)
    made = _exported(call, opset, input_names, output_names, dynamic_shapes or dynamic_axes, metadata or {}, verify)
    write_model(made, f)


@dataclass
class _Call:
    """A model with its arguments: (args, kwargs), and the tensors among them."""

    model: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    inputs: list[Tensor]

    @classmethod
    def of(cls, model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> _Call:
        if not callable(model) or not hasattr(model, "named_parameters"):
            raise ArgumentError(WHERE, "a module as `model`", f"a {type(model).__name__}")
        both = tuple(args) if isinstance(args, (tuple, list)) else (args,), dict(kwargs or {})
        inputs = list(tensors_in(list(both)))
        if not inputs:
            cure = "wrap arrays with ampkit.tensor(...)"
            raise DTypeError(WHERE, "a Tensor among args", "none", cure)
        return cls(model, both, [tensor.detach().clone() for tensor in inputs])  # a model may change its inputs

    def run(self, names: Sequence[str], inputs: Sequence[Tensor]) -> tuple[Trace, Any]:
        """A trace of a run on `inputs`, and what the model returned."""
        weights = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        trace = Trace(dict(zip(names, inputs, strict=True)), weights)
        args, kwargs = arguments.replaced(self.arguments, inputs)
        with recording(trace):
            out = self.model(*args, **kwargs)
        trace.end([tensor.array for tensor in tensors_in(out)])
        if not trace.outputs:
            raise DTypeError(WHERE, "a model that returns Tensors", f"a {type(out).__name__}")
        return trace, out


@dataclass
class _Exporter:
    """Runs of a model on inputs of several sizes."""

    call: _Call
    names: list[str]
    opset: int

    def graph(self, inputs: Sequence[Tensor]) -> tuple[Graph, list[Value], Trace, Any]:
        """The graph of a run on `inputs`, the values of its outputs, the trace, and what the model returned."""
        trace, out = self.call.run(self.names, inputs)
        return *translate(trace, self.opset), trace, out

    def on_other_length(
        self, inputs: Sequence[Tensor], size: str, places: Sequence[tuple[str, int, int]]
    ) -> tuple[Axis, list[Tensor], Any]:
        """The axis with another length, the inputs of that length, and the graph of their run as `graph` returns it."""
        (name, at, length), refused = places[0], None
        for other in (length + 1, 2 * length, length - 1):
            changed = list(inputs)
            for place, axis, _ in places:
                i = self.names.index(place)
                changed[i] = arguments.resized(changed[i], axis, other)
            try:
                return Axis(size, name, at, length, other), changed, self.graph(changed)
            except AmpkitError as error:
                refused = refused or error
        got = f"one that refuses {length + 1}: {str(refused).partition(chr(10))[0]}"
        raise ArgumentError(WHERE, f"a model that takes other lengths of {size} than {length}", got) from refused


def _exported(
    call: _Call, opset: int, input_names: Any, output_names: Any, given: Any, metadata: Mapping[str, str], verify: bool
) -> Any:
    parameters = list(arguments.parameter_names(call.model, *call.arguments))
    names = arguments.chosen_names("input_names", input_names, parameters)
    dynamic = arguments.dynamic_axes_of(given, names, parameters, call.inputs)
    exporter = _Exporter(call, names, opset)
    with _as_in_use(call.model):
        inputs = _of_two_at_least(call.inputs, names, dynamic)
        graph, values, trace, out = exporter.graph(inputs)
        _need_same_values(graph, exporter.graph([arguments.with_other_values(t) for t in inputs])[0])
        sizes = arguments.sizes_of(dynamic, dict(zip(names, inputs, strict=True)))
        runs = [exporter.on_other_length(inputs, size, places) for size, places in sizes.items()]
    axes = [axis for axis, _, _ in runs]
    generalize(graph, [found[0] for _, _, found in runs], axes)
    shapes = output_shapes(*_shapes(trace, [found[2] for _, _, found in runs]), axes)
    ends = arguments.chosen_names("output_names", output_names, arguments.output_names(out))
    _need_free(ends, names)
    made = model_proto(
        graph,
        [(value, _with_names(value, dynamic)) for value in map(_input_value, names, trace.inputs)],
        list(zip(values, ends, shapes, strict=True)),
        metadata,
    )
    if verify:
        traces = [trace, *(found[2] for _, _, found in runs)]
        compare(made, [(_arrays(each.inputs, names), [_array(s) for s in each.outputs]) for each in traces], ends)
    return made


def _need_free(ends: Sequence[str], names: Sequence[str]) -> None:
    if both := sorted(set(ends) & set(names)):
        raise ArgumentError(WHERE, "output_names that no input has", ", ".join(both))


def _shapes(trace: Trace, others: Sequence[Trace]) -> Any:
    first, *more = ([tuple(source.array.shape) for source in each.outputs] for each in (trace, *others))
    return first, more


def _input_value(name: str, source: Any) -> Value:
    return Value(name, source.array.dtype, source.array.shape)


def _with_names(value: Value, dynamic: arguments.Dynamic) -> list[int | str]:
    names = dynamic.get(value.name, {})
    return [names.get(axis, length) for axis, length in enumerate(value.shape)]


def _array(source: Any) -> Any:
    return backends.backend_of(source.array).to_numpy(source.array)


def _arrays(sources: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: _array(source) for name, source in zip(names, sources, strict=True)}


def _of_two_at_least(inputs: Sequence[Tensor], names: Sequence[str], dynamic: arguments.Dynamic) -> list[Tensor]:
    """The inputs with dynamic axes of at least two: an axis of one would broadcast, and show nothing of others."""
    found = list(inputs)
    for i, name in enumerate(names):
        for axis in dynamic.get(name, {}):
            if found[i].array.shape[axis] < 2:
                found[i] = arguments.resized(found[i], axis, 2)
    return found


def _need_same_values(graph: Graph, other: Graph) -> None:
    """Raise ArgumentError for a constant that changes with the values of the inputs."""
    need_same_nodes(graph, other, "all values of its inputs")
    for name, constant in graph.constants.items():
        if not same(constant.array, other.constants[name].array):
            needs = "a model that computes all that depends on its inputs by ops, and draws no random numbers"
            cure = "replace what reads arrays of NumPy, numbers or random numbers on the way by ops"
            got = f"a constant that changed with the inputs, which {constant.label} reads"
            raise ArgumentError(WHERE, needs, got, cure)


@contextmanager
def _as_in_use(model: Any) -> Iterator[None]:
    """Within the block, `model` is in eval mode and nothing is recorded; afterwards modes and random state are back."""
    modes = [(module, module.training) for module in model.modules()]
    state = random.get_rng_state()
    try:
        model.eval()
        with no_grad():
            yield
    finally:
        random.set_rng_state(state)
        for module, mode in modes:
            module.training = mode


