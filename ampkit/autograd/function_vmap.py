"""A Function under `vmap`: by its own static method `vmap`, else by its forward, on batched tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..base.errors import ArgumentError, StateError
from ..core.arguments import shown
from ..core.dispatch.batching.array import Level, OneByOneError, UnmappedError, is_at
from ..core.dispatch.batching.boundary import enter, leave
from ..core.nested import tensors_in, with_tensors
from ..core.tensor import Tensor

__all__ = ["VmapInfo", "by_ops", "mapped"]


class VmapInfo(NamedTuple):
    """What a Function's `vmap` is told: how many samples there are, and what random ops do."""

    batch_size: int
    randomness: str


def mapped(function: Any, args: tuple[Any, ...], level: Level) -> Any:
    """The output of `function.vmap` for arguments of which some are batched at `level`, batched in its turn."""
    name = function.__name__
    if function.generate_vmap_rule:
        raise StateError(name, "a static method `vmap`, or generate_vmap_rule=True", "both", "leave one of them out")
    whole = tuple([with_tensors(a, iter([_whole(t, level) for t in tensors_in(a)])) for a in args])
    found = function.vmap(VmapInfo(level.size, level.randomness), tuple([_axes(a, level) for a in args]), *whole)
    if not isinstance(found, tuple) or len(found) != 2:
        raise ArgumentError(f"{name}.vmap", "a pair (output, out_dims)", shown(found))
    return _batched(name, *found, level)


def _whole(tensor: Tensor, level: Level) -> Tensor:
    return leave(tensor, 0, level) if is_at(tensor.array, level) else tensor


def _axes(value: Any, level: Level) -> Any:
    # In the structure of an argument.
    if isinstance(value, Tensor):
        return 0 if is_at(value.array, level) else None
    if isinstance(value, dict):
        return {key: _axes(item, level) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_axes(item, level) for item in value)
    return None


def _batched(name: str, out: Any, axes: Any, level: Level) -> Any:
    if isinstance(out, (list, tuple)):
        each = list(axes) if isinstance(axes, (list, tuple)) else [axes] * len(out)
        if len(each) != len(out):
            raise ArgumentError(f"{name}.vmap", f"out_dims with one entry for each of {len(out)} outputs", shown(axes))
        return type(out)(_batched(name, *pair, level) for pair in zip(out, each, strict=True))
    if isinstance(axes, (list, tuple)) and len(axes) == 1:
        (axes,) = axes
    if not isinstance(out, Tensor) or axes is None:
        return out
    if type(axes) is not int or not -out.ndim <= axes < out.ndim or out.shape[axes] != level.size:
        needs = f"out_dims as an axis of length {level.size} of an output {list(out.shape)}, or None"
        raise ArgumentError(f"{name}.vmap", needs, shown(axes))
    return enter(out, axes % out.ndim, level)


def by_ops(name: str, run: Callable[[], Any]) -> Any:
    """What `run` returns. Raises StateError for a Function of this name whose forward is not made of ops alone."""
    try:
        return run()
    except OneByOneError:
        raise
    except UnmappedError as error:
        cure = "give it a static method `vmap(info, in_dims, *args)`"
        raise UnmappedError("vmap", f"a rule for {name}, whose forward reads values", "none", cure) from error
