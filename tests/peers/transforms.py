"""Compare forward mode and `vmap` of one op with PyTorch's, on the samples of its OpInfo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import ampkit

from . import names
from .comparison import faults
from .translate import OutOfScope, copied, in_float64, leaves, tensors, to_ampkit

KINDS = ("jvp", "vmap")
COPIES = 2  # samples of a vmap: equal ones, as in PyTorch's own tests, since an op may need what a sample promises


class Library(NamedTuple):
    """A library's transforms."""

    module: Any
    weights: Callable[[Any, int], Any]


def dtypes(info: Any, kind: str, wanted: Sequence[str]) -> list[str]:
    """In which of these dtypes a transform of an op is compared."""
    if info.name in names.RANDOM or (kind == "jvp" and not info.supports_forward_ad):
        return []
    able = info.supported_backward_dtypes("cpu") if kind == "jvp" else info.supported_dtypes("cpu")
    return [name for name in wanted if name in ("float64", "float32") and getattr(torch, name) in able]


def compare(
    kind: str, variant: names.Variant, sample: Any, ours: Library, theirs: Library, refused: Any, lazily: Any
) -> list[tuple[str, str]]:
    """The faults of one sample. Raises OutOfScope where PyTorch raises."""
    transform = _jvp if kind == "jvp" else _vmap

    def given() -> Any:
        return copied(((sample.input, *sample.args), sample.kwargs))

    def pytorchs(args: Any) -> Any:
        return leaves(transform(theirs, variant.theirs, args))

    try:
        needed = pytorchs(given())
    except Exception as error:
        raise OutOfScope(f"PyTorch's {kind} raises {type(error).__name__}") from None
    wide, args = lazily(lambda: pytorchs(in_float64(given()))), to_ampkit(given())
    try:
        got = refused(lambda: transform(ours, variant.ours, args))
    except Exception as error:
        if not hasattr(error, "args") or len(error.args) != 2:
            raise
        return [error.args]
    return faults(leaves(got), needed, wide, True)


def _split(library: Library, op: Callable[..., Any], given: Any) -> tuple[Callable[..., Any], list[Any]]:
    # The op as a function of the float tensors among its arguments, and these; it returns its float results.
    kind = library.module.Tensor
    flat, structure = tree_flatten(given)
    places = [i for i, each in enumerate(flat) if isinstance(each, kind) and each.is_floating_point()]

    def function(*values: Any) -> Any:
        filled = list(flat)
        for i, value in zip(places, values, strict=True):
            filled[i] = value
        args, kwargs = tree_unflatten(filled, structure)
        return tuple(each for each in tensors(op(*args, **kwargs), kind) if each.is_floating_point())

    if not places:
        raise OutOfScope("no float tensors")
    return function, [flat[i].detach() for i in places]


def _jvp(library: Library, op: Callable[..., Any], given: Any) -> Any:
    function, values = _split(library, op, given)
    tangents = tuple(library.weights(value, 200 + i) for i, value in enumerate(values))
    return list(library.module.func.jvp(function, tuple(values), tangents)[1])


def _vmap(library: Library, op: Callable[..., Any], given: Any) -> Any:
    function, values = _split(library, op, given)
    whole = [library.module.stack([value] * COPIES) for value in values]
    return list(library.module.func.vmap(function)(*whole))


def libraries(ours: Any, theirs: Any) -> tuple[Library, Library]:
    """ampkit and PyTorch, with their functions that make weights."""
    return Library(ampkit, ours.weights), Library(torch, theirs.weights)
