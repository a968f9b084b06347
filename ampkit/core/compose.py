"""Ops inside the body of another: run by the best of their bodies, on plain arrays, and not recorded."""

from __future__ import annotations

from typing import Any

from .. import backends
from .dtypes import DType, accumulator
from .saved import Saved, widen, widen_saved


def forward(op: Any, *given: Any, dtype: DType, versions: tuple[Any, ...] = ()) -> Any:
    """What `op` makes of arrays, in `dtype`; versions: those of its tensor inputs."""
    backend = backends.of(given[0])
    body, out = op.forward.pick(backend.name, *given), NotImplemented
    if body is not op.forward.reference:
        out = body.run(*given, dtype=dtype, **({"versions": versions} if body.keeps else {}))
    if out is NotImplemented:
        out = op.forward.reference.run(*[widen(each, accumulator(dtype)) for each in given])
    return widen(out[0], dtype)


def backward(
    op: Any, dy: Any, saved: Saved, needs: tuple[Any, ...], versions: Any = (), homes: Any = (), **params: Any
) -> tuple[Any, ...]:
    """The gradients of `op`'s tensor inputs, in the dtypes that `needs` names; saved: as its reference saves it."""
    primitive = op.backward_primitive
    body = primitive.pick(backends.of(dy).name, dy, saved, needs, **params)
    found: Any = NotImplemented
    if body is not primitive.reference:
        more = {"versions": versions, "homes": homes} if body.keeps else {}
        found = body.run(dy, saved, needs, **params, **more)
    if found is NotImplemented:
        wide = accumulator(dy.dtype)
        found = primitive.reference.run(widen(dy, wide), widen_saved(saved, wide), needs, **params)
    found = found if isinstance(found, tuple) else (found,)
    return tuple([None if need is None else widen(each, need) for each, need in zip(found, needs, strict=False)])
