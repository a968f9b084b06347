"""The arguments of an export: names of inputs and outputs, dynamic axes, and inputs of other sizes and values."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ... import backends
from ...base.dtypes import FLOATS
from ...base.errors import ArgumentError
from ...base.near_names import did_you_mean
from ...core.nested import tensors_in
from ...core.tensor import Tensor
from .trace import WHERE

Dynamic = dict[str, dict[int, str]]


def parameter_names(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[str]:
    """A name for each tensor among the arguments: that of the parameter of `model.forward`, numbered in a list."""
    positional = [
        p for p in inspect.signature(model.forward).parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    for i, value in enumerate(args):
        p = positional[min(i, len(positional) - 1)] if positional else None
        name = f"input_{i}" if p is None or p.kind is inspect.Parameter.VAR_POSITIONAL else p.name
        yield from numbered(name, list(tensors_in(value)), value)
    for name, value in kwargs.items():
        yield from numbered(name, list(tensors_in(value)), value)


def numbered(name: str, tensors: Sequence[Tensor], value: Any) -> Iterator[str]:
    """`name` for one tensor, `name_0`, `name_1` ... for those of a list or dict."""
    if value is not None and isinstance(value, Tensor):
        yield name
        return
    yield from (f"{name}_{i}" for i in range(len(tensors)))


def output_names(out: Any) -> list[str]:
    """A name for each tensor that a model returned: the keys of a dict, else output, or output_0, output_1 ..."""
    if isinstance(out, Tensor):
        return ["output"]
    if isinstance(out, Mapping) and all(isinstance(value, Tensor) for value in out.values()):
        return [str(name) for name in out]
    return [f"output_{i}" for i in range(len(list(tensors_in(out))))]


def chosen_names(
    what: str, given: Sequence[str] | None, defaults: Sequence[str], taken: Sequence[str] = ()
) -> list[str]:
    """The names that the caller gave, in order, and the defaults for the rest. Raises ArgumentError for two alike."""
    if given is not None and (isinstance(given, str) or any(not isinstance(n, str) or not n for n in given)):
        raise ArgumentError(WHERE, f"{what} as a list of names", repr(given)[:80])
    names = [*(given or ())]
    if len(names) > len(defaults):
        raise ArgumentError(WHERE, f"at most {len(defaults)} {what}, of {', '.join(defaults)}", str(len(names)))
    names += defaults[len(names) :]
    if len({*names, *taken}) < len(names) + len(taken):
        raise ArgumentError(WHERE, f"{what} that differ", ", ".join([*taken, *names]))
    return names


def of_inputs(dynamic_axes: Any, output_names: Sequence[str] | None) -> Any:
    """PyTorch's dynamic_axes without those of outputs, which follow from the inputs'."""
    if not isinstance(dynamic_axes, Mapping):
        return dynamic_axes
    return {name: axes for name, axes in dynamic_axes.items() if name not in (output_names or ())}


def dynamic_axes_of(given: Any, names: Sequence[str], parameters: Sequence[str], inputs: Sequence[Tensor]) -> Dynamic:
    """The names of dynamic sizes, by input and axis.

    given: PyTorch's dynamic_shapes or dynamic_axes: by the name of an input or of a parameter, or in the order of the
    inputs, for each dynamic axis a name or an object with one, such as torch.export.Dim; or a list of axes.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = dict(zip(names, given, strict=False)) if isinstance(given, (tuple, list)) else {"": given}
    found: Dynamic = {}
    for key, axes in given.items():
        if key not in names and key not in parameters:
            cure = did_you_mean(str(key), [*names, *parameters])
            raise ArgumentError(WHERE, f"dynamic_shapes of {', '.join(names)}", repr(key), cure)
        at = names.index(key) if key in names else parameters.index(key)
        if axes:
            found[names[at]] = dict(_axes(names[at], axes, inputs[at].ndim))
    return found


def _axes(name: str, axes: Any, ndim: int) -> Iterator[tuple[int, str]]:
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif isinstance(axes, (tuple, list)) and all(type(axis) is int for axis in axes):
        pairs = [(axis, f"{name}_dim_{axis}") for axis in axes]
    elif isinstance(axes, (tuple, list)):
        pairs = list(enumerate(axes))
    else:
        raise ArgumentError(WHERE, 'dynamic axes such as {0: "batch"}', repr(axes)[:80])
    for axis, size in pairs:
        if type(axis) is not int or not -ndim <= axis < ndim:
            raise ArgumentError(WHERE, f"an axis of {name}, which has {ndim}", repr(axis))
        text = size if isinstance(size, str) else getattr(size, "__name__", None)
        if size is not None and (not isinstance(text, str) or not text.isidentifier()):
            raise ArgumentError(WHERE, 'the name of a dynamic axis, such as {0: "batch"}', repr(size)[:80])
        if text is not None:
            yield axis % ndim, text


def sizes_of(dynamic: Dynamic, inputs: Mapping[str, Tensor]) -> dict[str, list[tuple[str, int, int]]]:
    """By the name of a dynamic size: the inputs and axes that have it, with their length, which is one for all."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for name, axes in dynamic.items():
        for axis, size in axes.items():
            found.setdefault(size, []).append((name, axis, inputs[name].array.shape[axis]))
    for size, places in found.items():
        if len({length for _, _, length in places}) > 1:
            got = ", ".join(f"{length} in {name}" for name, _, length in places)
            raise ArgumentError(WHERE, f"one length for {size}", got)
    return found


def resized(tensor: Tensor, axis: int, length: int) -> Tensor:
    """A tensor with another length of an axis: its elements along it, from the first again after the last."""
    array = backends.backend_of(tensor.array).to_numpy(tensor.array)
    index = np.arange(length) % max(array.shape[axis], 1)
    return Tensor(backends.backend_of(tensor.array).asarray(np.take(array, index, axis)))


def with_other_values(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and kind with other values: in reverse order, and floats made smaller."""
    array = backends.backend_of(tensor.array).to_numpy(tensor.array)
    other = np.flip(array).copy()
    if other.dtype in FLOATS:
        other = (other * np.float32(0.75) + np.float32(0.125)).astype(other.dtype)
    return Tensor(backends.backend_of(tensor.array).asarray(other))
