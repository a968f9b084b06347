"""`vmap`: a function of one sample, called for each sample of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import ops
from ..base.errors import ArgumentError, DTypeError, ShapeError, StateError, check_choice
from ..core import random
from ..core.arguments import shown
from ..core.nested import tensors_in, with_tensors
from ..core.tensor import Tensor
from ..nn import Module
from ..ops.argument_checks import check_all

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

    in_dims: the axis of each positional argument, None for one that all samples share: a number for all, or the
    structure of the arguments. Keyword arguments are mapped over axis 0. out_dims: where the results of the samples are
    stacked, a number or a tuple with one per output. randomness: what random ops do: "error", "different" numbers for
    each sample, or the "same". Samples run one after the other, each as without vmap in dtypes and bits, so that the
    time is that of a loop; chunk_size is without an effect.
    Raises ArgumentError for axes that do not fit, ShapeError for axes of several lengths or of length 0, StateError for
    a random op with randomness="error".
    """
    check_choice("vmap", "randomness", randomness, "error", "different", "same")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = [
            *_axes(_per_argument(in_dims, args), list(args)),
            *[0 for _ in tensors_in(kwargs)],
        ]
        tensors = list(tensors_in([list(args), kwargs]))
        found: list[Any] = []
        start = random.get_rng_state()
        for sample in range(_count(tensors, axes)):
            if randomness == "same":
                random.set_rng_state(start)
            parts = iter([t if axis is None else t.select(axis, sample) for t, axis in zip(tensors, axes, strict=True)])
            given = with_tensors([list(args), kwargs], parts)
            found.append(func(*given[0], **given[1]))
            if randomness == "error" and random.get_rng_state() != start:
                cure = 'pass randomness="different" or "same"'
                raise StateError("vmap", 'no random op with randomness="error"', "one", cure)
        return _stacked(found, out_dims)

    return mapped


def _per_argument(in_dims: Any, args: tuple[Any, ...]) -> list[Any]:
    if isinstance(in_dims, int):
        return [in_dims if next(tensors_in(arg), None) is not None else None for arg in args]
    if not isinstance(in_dims, (tuple, list)) or len(in_dims) != len(args):
        raise ArgumentError("vmap", f"in_dims as a number, or as {len(args)}, one per argument", shown(in_dims))
    return list(in_dims)


def _axes(dims: Any, values: Any) -> list[int | None]:
    # The axis of each tensor in `values`, to whose structure `dims` is a prefix.
    if isinstance(values, Tensor):
        if dims is not None and (not isinstance(dims, int) or not -values.ndim <= dims < values.ndim):
            raise ArgumentError("vmap", f"in_dims within the {values.ndim} axes of a tensor, or None", shown(dims))
        return [dims]
    if dims is None or isinstance(dims, int):
        return [axis for tensor in tensors_in(values) for axis in _axes(dims, tensor)]
    if isinstance(values, dict) and isinstance(dims, dict) and dims.keys() == values.keys():
        return [axis for key, value in values.items() for axis in _axes(dims[key], value)]
    if isinstance(values, (list, tuple)) and isinstance(dims, (list, tuple)) and len(dims) == len(values):
        return [axis for dim, value in zip(dims, values, strict=True) for axis in _axes(dim, value)]
    raise ArgumentError("vmap", "in_dims of the arguments' structure", shown(dims))


def _count(tensors: Sequence[Tensor], axes: Sequence[int | None]) -> int:
    counts = {tensor.shape[axis] for tensor, axis in zip(tensors, axes, strict=True) if axis is not None}
    if len(counts) != 1 or counts == {0}:
        got = ", ".join(map(str, sorted(counts))) or "no tensor to map"
        raise ShapeError("vmap", "mapped axes of one length above 0", got)
    return counts.pop()


def _stacked(found: list[Any], out_dims: Any) -> Any:
    outs = [list(tensors_in(each)) for each in found]
    if not isinstance(found[0], Tensor) and any(not isinstance(item, Tensor) for item in _leaves(found[0])):
        raise DTypeError("vmap", "a function that returns Tensors", shown(found[0]))
    axes = _axes_of_outputs(out_dims, found[0], len(outs[0]))
    columns = zip(*outs, strict=True)
    made = [
        column[0] if axis is None else ops.stack(list(column), axis) for column, axis in zip(columns, axes, strict=True)
    ]
    return with_tensors(found[0], iter(made))


def _leaves(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = list(values.values())
    return [leaf for item in values for leaf in _leaves(item)] if isinstance(values, (list, tuple)) else [values]


def _axes_of_outputs(out_dims: Any, out: Any, count: int) -> list[int | None]:
    if out_dims is None or isinstance(out_dims, int):
        return [out_dims] * count
    if isinstance(out_dims, (tuple, list)) and isinstance(out, (tuple, list)) and len(out_dims) == len(out):
        pairs = zip(out_dims, out, strict=True)
        return [axis for dims, item in pairs for axis in _axes_of_outputs(dims, item, len(list(tensors_in(item))))]
    if isinstance(out_dims, (tuple, list)) and len(out_dims) == 1:
        return _axes_of_outputs(out_dims[0], out, count)
    raise ArgumentError("vmap", "out_dims as a number, or as one per output", shown(out_dims))


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(params, buffers) of models of one kind, each tensor stacked along a new first axis, for `vmap`.

    The stacked tensors are leaves that require grad as the models' Parameters do. Raises ArgumentError for no model or
    for models of several classes or modes, as of `train()` and `eval()`.
    """
    if not models:
        raise ArgumentError("stack_module_state", "at least one model", "none")
    first = models[0]
    if any(type(model) is not type(first) or model.training != first.training for model in models):
        got = ", ".join(sorted({f"{type(model).__name__}, training={model.training}" for model in models}))
        raise ArgumentError("stack_module_state", "models of one class and mode", got)
    params = _stacked_state([dict(model.named_parameters()) for model in models])
    for name, parameter in first.named_parameters():
        params[name].requires_grad_(parameter.requires_grad)
    return params, _stacked_state([dict(model.named_buffers()) for model in models])


def _stacked_state(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: ops.stack([state[name].detach() for state in states]) for name in states[0]}


def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """`func` itself: the tape records changes in place, so that nothing has to be rewritten."""
    check_choice("functionalize", "remove", remove, "mutations", "mutations_and_views")
    return func


check_all(globals())
