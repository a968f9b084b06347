"""The runs of a model that an export compares: on its arguments, on other values, and on other lengths of axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ... import backends
from ...base.errors import AmpkitError, ArgumentError, DTypeError
from ...core import random
from ...core.autograd.grad_mode import no_grad
from ...core.nested import tensors_in, with_tensors
from ...core.tensor import Tensor
from . import arguments
from .dynamic import Axis, need_same_nodes, same
from .graph import Graph, Value
from .trace import WHERE, Trace, recording
from .translate import translate


@dataclass
class ModelCall:
    """A model with its arguments, (args, kwargs), and the tensors among them."""

    model: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    inputs: list[Tensor]

    @classmethod
    def of(cls, model: Any, args: Any, kwargs: Mapping[str, Any] | None) -> ModelCall:
        """The call model(*args, **kwargs). Raises ArgumentError for no module, DTypeError for no Tensor."""
        if not callable(model) or not hasattr(model, "named_parameters"):
            raise ArgumentError(WHERE, "a module as `model`", f"a {type(model).__name__}")
        both = tuple(args) if isinstance(args, (tuple, list)) else (args,), dict(kwargs or {})
        inputs = list(tensors_in(list(both)))
        if not inputs:
            raise DTypeError(WHERE, "a Tensor among args", "none", "wrap arrays with ampkit.tensor(...)")
        return cls(model, both, [tensor.detach() for tensor in inputs])

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        args, kwargs = with_tensors(self.arguments, iter(inputs))
        return self.model(*args, **kwargs)


@dataclass
class TracedRun:
    """A run: what it read and returned, its graph, and the values of the graph that are its outputs."""

    inputs: list[Tensor]
    returned: Any
    outputs: list[Any]
    graph: Graph
    ends: list[Value]

    def output_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the outputs."""
        return [array.shape for array in self.outputs]

    def values(self, names: Sequence[str]) -> tuple[dict[str, Any], list[Any]]:
        """The inputs by name, and the outputs, as NumPy arrays."""
        return {name: _to_numpy(t.array) for name, t in zip(names, self.inputs, strict=True)}, self.outputs


def _to_numpy(array: Any) -> Any:
    return backends.backend_of(array).to_numpy(array)


class Runs:
    """Makes the runs. names: of the inputs; dynamic: the names of their dynamic axes."""

    def __init__(self, call: ModelCall, input_names: Sequence[str] | None, dynamic: Any, opset: int):
        self._call, self._opset = call, opset
        parameters = list(arguments.parameter_names(call.model, *call.arguments))
        self.names = arguments.chosen_names("input_names", input_names, parameters)
        self.dynamic = arguments.dynamic_axes_of(dynamic, self.names, parameters, call.inputs)

    def all(self) -> tuple[TracedRun, list[tuple[Axis, TracedRun]]]:
        """The first run, and for each dynamic size one on another length. Raises ArgumentError where a run on other
        values of the inputs differs from the first, and for a model that takes no other length."""
        with _as_in_use(self._call.model):
            inputs = self._of_two_at_least()
            first = self._run(inputs)
            self._need_same_values(first)
            sizes = arguments.sizes_of(self.dynamic, dict(zip(self.names, inputs, strict=True)))
            return first, [self._on_other_length(inputs, size, places) for size, places in sizes.items()]

    def input_values(self, run: TracedRun) -> list[tuple[Value, list[int | str]]]:
        """The inputs as values of the graph, each with its shape, which has names for dynamic axes."""
        found = []
        for name, tensor in zip(self.names, run.inputs, strict=True):
            axes, shape = self.dynamic.get(name, {}), tensor.array.shape
            found.append((Value(name, tensor.array.dtype, shape), [axes.get(i, n) for i, n in enumerate(shape)]))
        return found

    def _run(self, inputs: list[Tensor]) -> TracedRun:
        model, copies = self._call.model, [tensor.clone() for tensor in inputs]  # the model may change its inputs
        weights = dict(model.named_parameters()) | dict(model.named_buffers())
        trace = Trace(dict(zip(self.names, copies, strict=True)), weights)
        with recording(trace):
            returned = self._call(copies)
        arrays = [tensor.array for tensor in tensors_in(returned)]
        if not arrays:
            raise DTypeError(WHERE, "a model that returns Tensors", f"a {type(returned).__name__}")
        trace.end(arrays)
        return TracedRun(inputs, returned, [_to_numpy(array) for array in arrays], *translate(trace, self._opset))

    def _of_two_at_least(self) -> list[Tensor]:
        """The inputs with dynamic axes of at least two: an axis of one broadcasts, and shows nothing of others."""
        found = list(self._call.inputs)
        for i, name in enumerate(self.names):
            for axis in self.dynamic.get(name, {}):
                if found[i].array.shape[axis] < 2:
                    found[i] = arguments.resized(found[i], axis, 2)
        return found

    def _need_same_values(self, first: TracedRun) -> None:
        try:
            other = self._run([arguments.with_other_values(tensor) for tensor in first.inputs])
        except AmpkitError as error:
            got = f"one that refuses their elements in reverse order: {_first_line(error)}"
            raise ArgumentError(WHERE, "a model that takes other values of its inputs", got) from error
        need_same_nodes(first.graph, other.graph, "all values of its inputs")
        for name, constant in first.graph.constants.items():
            if not same(constant.array, other.graph.constants[name].array):
                needs = "a model that computes all that depends on its inputs by ops, and draws no random numbers"
                cure = "replace what reads arrays of NumPy, numbers or random numbers on the way by ops"
                got = f"a constant that changed with the inputs, which {constant.label} reads"
                raise ArgumentError(WHERE, needs, got, cure)

    def _on_other_length(
        self, inputs: Sequence[Tensor], size: str, places: Sequence[tuple[str, int, int]]
    ) -> tuple[Axis, TracedRun]:
        (name, at, length), refused = places[0], None
        for other in (length + 1, 2 * length, length - 1):
            changed = list(inputs)
            for place, axis, _ in places:
                i = self.names.index(place)
                changed[i] = arguments.resized(changed[i], axis, other)
            try:
                return Axis(size, name, at, length, other), self._run(changed)
            except AmpkitError as error:
                refused = refused or error
        assert refused is not None
        got = f"one that refuses {length + 1}: {_first_line(refused)}"
        raise ArgumentError(WHERE, f"a model that takes other lengths of {size} than {length}", got) from refused


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
