"""`vmap`: a function of one sample, called once for the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import ops
from ..base.errors import ArgumentError, RangeError, ShapeError, check_choice
from ..core import random
from ..core.arguments import shown
from ..core.dispatch.batching import draws
from ..core.dispatch.batching.array import Level, OneByOneError, is_at
from ..core.dispatch.batching.boundary import enter, leave
from ..core.dispatch.batching.call import note_loop
from ..core.nested import leaves, tensors_in, with_tensors
from ..core.tensor import Tensor
from ..nn import Module
from ..ops.argument_checks import check_all
from ..ops.indexing.getitem import narrow

__all__ = ["functionalize", "stack_module_state", "vmap"]


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that maps `func` over an axis of its tensors.

    in_dims: the axis of each positional argument, None for one that all samples share: a number for all, or a tuple of
    the arguments' structure. All samples share keyword arguments. out_dims: where the results of the samples are
    stacked, a number, or a tuple, list or dict with one per output; None for one that all samples share. randomness:
    what random ops do: "error", "different" numbers for each sample, or the "same". chunk_size: how many run at once,
    by default all of them. func runs once for these, on tensors that show the shapes of one sample; ops without a rule
    run once per sample (see docs/transforms.md).
    Of a batch of length 0 the results have that length; their other axes are those of a made-up sample.
    Raises ArgumentError for axes that do not fit, ShapeError for axes of several lengths, StateError for
    a random op with randomness="error", for values read in func, as by `if x > 0:`, and for a tensor that all samples
    share and one of them changes in place.
    """
    check_choice("vmap", "randomness", randomness, "error", "different", "same")
    need_chunk_size("vmap", chunk_size)

    def mapped(*args: Any, **kwargs: Any) -> Any:
        tensors, axes = _mapped_axes(in_dims, args, kwargs)
        count = _count(tensors, axes)
        if not count:
            return _of_none(mapped, (args, kwargs), tensors, axes, out_dims)
        size, start = chunk_size or count, random.get_rng_state()
        made = []
        for first in range(0, count, size):
            if randomness == "same":
                random.set_rng_state(start)
            part = slice(first, min(first + size, count))
            given = [
                t if axis is None or size >= count else narrow(t, axis, part.start, part.stop - part.start)
                for t, axis in zip(tensors, axes, strict=True)
            ]
            made.append(_Part(func, [list(args), kwargs], given, axes, part.stop - first, randomness).run(out_dims))
        return made[0] if len(made) == 1 else _joined(made, out_dims)

    return mapped


def need_chunk_size(where: str, chunk_size: Any) -> None:
    """Raise ArgumentError unless `chunk_size` is a number of samples, or None."""
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ArgumentError(where, "chunk_size as an integer from 1, or None", shown(chunk_size))


def _of_none(mapped: Any, given: Any, tensors: list[Tensor], axes: list[int | None], out_dims: Any) -> Any:
    # The results of no sample: of one that is made up, the part of length 0, which says shapes and dtypes.
    made_up = [t if a is None else _one_sample(t, a % t.ndim) for t, a in zip(tensors, axes, strict=True)]
    args, kwargs = with_tensors([list(given[0]), given[1]], iter(made_up))
    out = mapped(*args, **kwargs)
    outs = list(tensors_in(out))
    ends = _axes_of_outputs(out_dims, out, len(outs))
    return with_tensors(out, iter([t if a is None else narrow(t, a, 0, 0) for t, a in zip(outs, ends, strict=True)]))


def _one_sample(tensor: Tensor, axis: int) -> Tensor:
    shape = [1 if i == axis else n for i, n in enumerate(tensor.shape)]
    return tensor.new_ones(shape) if tensor.is_floating_point() else tensor.new_zeros(shape)


def samples_of(in_dims: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many samples a call of a mapped function has. Raises as `vmap`."""
    return _count(*_mapped_axes(in_dims, args, kwargs))


def _mapped_axes(in_dims: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], list[int | None]]:
    tensors = list(tensors_in([list(args), kwargs]))
    return tensors, [*_axes(_per_argument(in_dims, args), list(args)), *[None for _ in tensors_in(kwargs)]]


class _Part:
    """Some samples of a call: `func` on batched tensors, or a loop where it computes in ways that do not map."""

    def __init__(
        self, func: Callable[..., Any], structure: Any, tensors: list[Tensor], axes: list[int | None], count: int,
        randomness: str,
    ):  # fmt: skip
        self.func, self.structure, self.tensors, self.axes = func, structure, tensors, axes
        self.count, self.randomness = count, randomness

    def run(self, out_dims: Any) -> Any:
        start = random.get_rng_state()
        level = Level(self.count, self.randomness)
        try:
            with draws.level(level):
                parts = [t if a is None else enter(t, a, level) for t, a in zip(self.tensors, self.axes, strict=True)]
                out = self._call(parts)
            _need_tensors(out, out_dims)
            outs = list(tensors_in(out))
            axes = _axes_of_outputs(out_dims, out, len(outs))
            made = [_left(t, axis, level) for t, axis in zip(outs, axes, strict=True)]
        except OneByOneError:
            random.set_rng_state(start)
            return self._loop(out_dims)
        finally:
            level.open = False
        return with_tensors(out, iter(made))

    def _call(self, parts: list[Tensor]) -> Any:
        args, kwargs = with_tensors(self.structure, iter(parts))
        return self.func(*args, **kwargs)

    def _loop(self, out_dims: Any) -> Any:
        note_loop("vmap")
        found = []
        for sample in range(self.count):
            pairs = zip(self.tensors, self.axes, strict=True)
            found.append(self._call([t if axis is None else t.select(axis, sample) for t, axis in pairs]))
        return _stacked(found, out_dims)


def _left(tensor: Tensor, axis: int | None, level: Level) -> Tensor:
    if axis is None:
        if is_at(tensor.array, level):
            raise ArgumentError("vmap", "an axis in out_dims for an output of each sample", "None")
        return tensor
    if not -tensor.ndim - 1 <= axis <= tensor.ndim:
        raise RangeError("vmap", f"out_dims within the {tensor.ndim + 1} axes of an output", f"{axis}")
    return leave(tensor, axis, level)


def _joined(made: list[Any], out_dims: Any) -> Any:
    # The results of the chunks as one.
    outs = [list(tensors_in(each)) for each in made]
    axes = _axes_of_outputs(out_dims, made[0], len(outs[0]))
    columns = zip(zip(*outs, strict=True), axes, strict=True)
    joined = [column[0] if axis is None else ops.cat(list(column), axis) for column, axis in columns]
    return with_tensors(made[0], iter(joined))


def _per_argument(in_dims: Any, args: tuple[Any, ...]) -> list[Any]:
    if _is_axis(in_dims):
        return [in_dims] * len(args)
    if not isinstance(in_dims, tuple) or len(in_dims) != len(args):
        raise ArgumentError("vmap", f"in_dims as a number, or a tuple of {len(args)}, one per argument", shown(in_dims))
    return list(in_dims)


def _axes(dims: Any, values: Any) -> list[int | None]:
    # The axis of each tensor in `values`, to whose structure `dims` is a prefix.
    if isinstance(values, Tensor):
        if dims is not None and (not _is_axis(dims) or not -values.ndim <= dims < values.ndim):
            raise ArgumentError("vmap", f"in_dims within the {values.ndim} axes of a tensor, or None", shown(dims))
        return [dims]
    if dims is None:
        return [None for _ in tensors_in(values)]
    if _is_axis(dims):
        if foreign := [item for item in leaves(values) if not isinstance(item, Tensor)]:
            got = f"{dims} for {shown(foreign[0])}"
            raise ArgumentError("vmap", "in_dims=None for an argument that is no Tensor", got)
        return [axis for tensor in tensors_in(values) for axis in _axes(dims, tensor)]
    if isinstance(values, dict) and isinstance(dims, dict) and dims.keys() == values.keys():
        return [axis for key, value in values.items() for axis in _axes(dims[key], value)]
    alike = isinstance(values, (list, tuple)) and isinstance(dims, list if isinstance(values, list) else tuple)
    if alike and len(dims) == len(values):
        return [axis for dim, value in zip(dims, values, strict=True) for axis in _axes(dim, value)]
    raise ArgumentError("vmap", "in_dims of the arguments' structure", shown(dims))


def _count(tensors: Sequence[Tensor], axes: Sequence[int | None]) -> int:
    counts = {tensor.shape[axis] for tensor, axis in zip(tensors, axes, strict=True) if axis is not None}
    if len(counts) != 1:
        got = ", ".join(map(str, sorted(counts))) or "no tensor to map"
        raise ShapeError("vmap", "mapped axes of one length", got)
    return counts.pop()


def _stacked(found: list[Any], out_dims: Any) -> Any:
    outs = [list(tensors_in(each)) for each in found]
    _need_tensors(found[0], out_dims)
    axes = _axes_of_outputs(out_dims, found[0], len(outs[0]))
    for column in zip(*outs, strict=True):
        if len(shapes := {tuple(tensor.shape) for tensor in column}) > 1:
            got = " and ".join(map(str, map(list, sorted(shapes)[:2])))
            raise ShapeError("vmap", "results of one shape for all samples", got, "choose by ops.where, or fill up")
    columns = zip(*outs, strict=True)
    made = [
        column[0] if axis is None else ops.stack(list(column), axis) for column, axis in zip(columns, axes, strict=True)
    ]
    return with_tensors(found[0], iter(made))


def _need_tensors(out: Any, out_dims: Any) -> None:
    # Where out_dims is None, anything is returned as it is.
    if isinstance(out, (tuple, list)) and isinstance(out_dims, (tuple, list)) and len(out) == len(out_dims):
        for item, dims in zip(out, out_dims, strict=True):
            _need_tensors(item, dims)
    elif isinstance(out, dict) and isinstance(out_dims, dict) and out.keys() == out_dims.keys():
        for key, item in out.items():
            _need_tensors(item, out_dims[key])
    elif out_dims is not None and any(not isinstance(item, Tensor) for item in leaves(out)):
        raise ArgumentError("vmap", "a function that returns Tensors", shown(out), "give the others out_dims=None")


def _axes_of_outputs(out_dims: Any, out: Any, count: int) -> list[int | None]:
    if out_dims is None or _is_axis(out_dims):
        return [out_dims] * count
    if isinstance(out_dims, dict) and isinstance(out, dict) and out_dims.keys() == out.keys():
        out_dims, out = [out_dims[key] for key in out], list(out.values())
    if isinstance(out_dims, (tuple, list)) and isinstance(out, (tuple, list)) and len(out_dims) == len(out):
        pairs = zip(out_dims, out, strict=True)
        return [axis for dims, item in pairs for axis in _axes_of_outputs(dims, item, len(list(tensors_in(item))))]
    if isinstance(out_dims, (tuple, list)) and len(out_dims) == 1 and isinstance(out, Tensor):
        return _axes_of_outputs(out_dims[0], out, count)
    raise ArgumentError("vmap", "out_dims as a number, or as one per output", shown(out_dims))


def _is_axis(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(params, buffers) of models of one kind, each tensor stacked along a new first axis, for `vmap`.

    The stacked tensors are leaves that require grad as the models' Parameters do. Raises ArgumentError for no model,
    and for models of several classes or modes, as of `train()` and `eval()`, or with a Parameter frozen in some alone.
    """
    if not models:
        raise ArgumentError("stack_module_state", "at least one model", "none")
    first = models[0]
    if any(type(model) is not type(first) or model.training != first.training for model in models):
        got = ", ".join(sorted({f"{type(model).__name__}, training={model.training}" for model in models}))
        raise ArgumentError("stack_module_state", "models of one class and mode", got)
    params = _stacked_state([dict(model.named_parameters()) for model in models])
    for name, parameter in first.named_parameters():
        if any(model.get_parameter(name).requires_grad != parameter.requires_grad for model in models):
            raise ArgumentError("stack_module_state", "models whose Parameters all require grad, or none", name)
        params[name].requires_grad_(parameter.requires_grad)
    return params, _stacked_state([dict(model.named_buffers()) for model in models])


def _stacked_state(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: ops.stack([state[name].detach() for state in states]) for name in states[0]}


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """`func` itself: the tape records changes in place, so that nothing has to be rewritten."""
    check_choice("functionalize", "remove", remove, "mutations", "mutations_and_views")
    return func


check_all(globals())
