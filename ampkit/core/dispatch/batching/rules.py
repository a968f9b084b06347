"""Rules that many ops share: how an op runs once over the samples of a `vmap`.

A rule takes a Call and returns Done, or None where it does not know the arguments: then the op runs once per sample.
`op.batching = elementwise` gives an op a rule. The ones here run the op itself, on arrays that show the axis of the
samples as one that the op treats element by element:

- `elementwise`: in front of the axes that broadcast;
- `leading(...)`: in front, with the arguments that name axes or shapes changed;
- `folded(...)`: merged with the axis N of the op's own batch, or beside its channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampkit.base.errors import ShapeError

from .array import BatchedArray, Level, aligned, expand, innermost
from .call import Call, Done, Ran, named_items

Rule = Callable[[Call], Done | None]
Arguments = Callable[[Call, list[Any]], "tuple[Any, ...] | None"]


def elementwise(call: Call) -> Done | None:
    """The rule of an op whose operands broadcast: each axis of a result is one of theirs, from the right."""
    level, arrays, name = call.level, call.arrays, call.op.name
    if not call.op.pointwise and hasattr(arrays[0], "dtype"):  # references write results into memory of its shape
        arrays = [expand(arrays[0], level), *arrays[1:]]
    rank = max([int(getattr(a, "ndim", 0)) for a in arrays])
    ran = Ran(call.op, aligned(arrays, level, rank), call.params, call.plan, call.wants)

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        found = ran.backward([dys[0].data], needs)
        return [None if g is None else _apart(name, level, g, rank, summing) for g in found]

    def apart(array: Any) -> Any:
        return BatchedArray(array, level) if array.shape[:1] == (level.size,) and array.ndim == rank + 1 else None

    return _done(call, ran, BatchedArray(ran.hand_out(), level), backward, apart)


def _over_samples(node: Any, shape: tuple[int, ...]) -> Any:
    # The op's own backward, if no input broadcasts to the result's shape, so that an axis in front of gradients does.
    alike = all(edge is None or edge[2] == shape for edge in node.edges)
    return node.op.backward_primitive.reference.run if alike else None


elementwise.over_samples = _over_samples  # type: ignore[attr-defined]  # see spread.py


def _apart(name: str, level: Level, gradient: Any, rank: int, summing: bool) -> Any:
    # A backward gives gradients in the shape of the result; one that it summed over the samples is right if all are.
    if gradient.ndim == rank + 1 and gradient.shape[0] == level.size:
        return BatchedArray(gradient, level)
    if not summing:
        needs = f"a gradient [{level.size}, ...] of its result's rank, as the op's rule promises"
        raise ShapeError(f"{name}_backward", needs, f"{tuple(gradient.shape)}", f"set {name}.batching = None")
    return gradient


def leading(arguments: Arguments | None = None, shared: Sequence[str] = ()) -> Rule:
    """A rule for an op along axes that its arguments name, or the last ones: the samples are a further first axis.

    arguments: (call, the arrays with that axis) -> the arguments for them, or None where that is not clear; it may
    also reshape the arrays, in their list. Tensors that the samples share are shown to each of them, but for those of
    the names `shared`, beside which they must be: where the gradient of one is wanted, or it is batched, the op loops.
    """

    def rule(call: Call) -> Done | None:
        arrays, ranks = [], set()
        for i, array in enumerate(call.arrays):
            if shared and call.op.signature.name_of(i) in shared:
                if call.is_batched(i) or call.wants[i]:
                    return None
            elif hasattr(array, "dtype"):
                ranks.add(array.ndim)
                array = expand(array, call.level).data
            arrays.append(array)
        if len(ranks) > 1:  # they broadcast
            return None
        params = call.params if arguments is None else arguments(call, arrays)
        if params is None:
            return None
        ran = Ran(call.op, arrays, params, call.plan, call.wants)
        return _in_front(call, ran)

    return rule


def _named(call: Call) -> list[tuple[int, str]]:
    return [(i, call.op.signature.name_of(i)) for i in range(len(call.arrays))]


def _in_front(call: Call, ran: Ran) -> Done | None:
    # The outcome of a call whose arrays all have the samples as their first axis.
    level, several, shapes = call.level, type(ran.out) is tuple, [getattr(a, "shape", None) for a in call.arrays]
    if any(shape[:1] != (level.size,) for shape, _ in ran.outputs):
        return None
    outs = ran.hand_out()
    made = tuple([BatchedArray(out, level) for out in (outs if several else (outs,))])

    def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
        found = ran.backward([None if dy is None else dy.data for dy in dys], needs)
        return [
            None if g is None else BatchedArray(_of_shape(g, level, s), level)
            for g, s in zip(found, shapes, strict=False)
        ]

    def apart(array: Any) -> Any:
        return BatchedArray(array, level) if array.shape[:1] == (level.size,) else None

    return _done(call, ran, made if several else made[0], backward, apart)


def _of_shape(gradient: Any, level: Level, shape: Any) -> Any:
    # A rule may have given a sample that is a number an axis of length 1.
    return gradient.reshape(level.size) if shape == () and gradient.size == level.size else gradient


def _done(call: Call, ran: Ran, out: Any, backward: Any, apart: Callable[[Any], Any]) -> Done:
    # The outcome of a call that ran as a call of the same op. apart: what masks and places that it saved are of each
    # sample, or None.
    if not call.records:
        return Done(out, backward, {})
    kept = ran.saved.__dict__
    first = out[0] if type(out) is tuple else out
    saved = named_items(call, kept, first)
    for name, value in kept.items():
        if name not in saved and hasattr(value, "dtype") and value.dtype.kind in "biu":
            each = apart(value)
            if each is not None:
                saved[name] = each
    replays = ran.kernel.replays or any(name not in saved and hasattr(value, "dtype") for name, value in kept.items())
    if replays:  # a second derivative runs the reference again
        saved |= named_items(call, [*call.op.signature.names, call.op.signature.variadic], first)
    return Done(out, backward, saved, replays)


# Folded: one of the op's own axes holds the samples, too.


def merge(array: Any, level: Any, axis: int) -> Any:
    """A batched array, or one to show to each sample, with the samples merged into `axis`, as its slower part."""
    data = expand(array, level).data
    data = np.moveaxis(data, 0, axis) if axis else data
    return data.reshape((*data.shape[:axis], data.shape[axis] * data.shape[axis + 1], *data.shape[axis + 2 :]))


def unmerge(data: Any, level: Any, axis: int) -> BatchedArray:
    """The inverse of `merge`."""
    data = data.reshape((*data.shape[:axis], level.size, data.shape[axis] // level.size, *data.shape[axis + 1 :]))
    return BatchedArray(np.moveaxis(data, axis, 0) if axis else data, level)


def folded(
    axes: dict[str, int], shared: Sequence[str] = (), rank: int | None = None, arguments: Arguments | None = None
) -> Rule:
    """A rule for an op with an axis over which it works element by element: the samples are merged into it.

    axes: by name of an input, that axis; the outputs have it where the first input does. shared: inputs that all
    elements of the axis have in common; where the gradient of one is wanted, or it is batched, the rule does not apply.
    rank: of the first input; one without the axis gets that of the samples in its place.
    """

    def rule(call: Call) -> Done | None:
        first, level = call.arrays[0], call.level
        if any(name in shared and (call.is_batched(i) or call.wants[i]) for i, name in _named(call)):
            return None
        if rank is not None and first.ndim == rank - 1 and not axes[call.op.signature.names[0]]:
            return leading(arguments, shared)(call)
        if rank is not None and first.ndim != rank:
            return None
        arrays = [
            merge(a, level, axes[name]) if name in axes and a is not None else a
            for a, (_, name) in zip(call.arrays, _named(call), strict=True)
        ]
        if any(type(a) is BatchedArray and a.level is level for a in arrays):
            return None
        params = call.params if arguments is None else arguments(call, arrays)
        if params is None:
            return None
        ran, at = Ran(call.op, arrays, params, call.plan, call.wants), axes[call.op.signature.names[0]]
        several, names = type(ran.out) is tuple, [name for _, name in _named(call)]
        outs = ran.hand_out()
        outs = outs if several else (outs,)
        # a further output, as a statistic per channel, has the axis alone
        places = [at if out.ndim > at else 0 for out in outs]
        made = tuple([unmerge(out, level, place) for out, place in zip(outs, places, strict=True)])

        def backward(dys: list[Any], needs: Any, summing: bool) -> Sequence[Any]:
            given = [None if dy is None else merge(dy, level, p) for dy, p in zip(dys, places, strict=True)]
            found = ran.backward(given, needs)
            return [
                g if g is None or name not in axes else unmerge(g, level, axes[name])
                for g, name in zip(found, names, strict=True)
            ]

        def apart(array: Any) -> Any:
            folds = not at and array.shape[:1] and not array.shape[0] % level.size
            return unmerge(array, level, 0) if folds else None

        return _done(call, ran, made if several else made[0], backward, apart)

    return rule


# What arguments become, where the arrays have one more axis in front.


def behind(*names: str, every: bool = False) -> Arguments:
    """Arguments in which `names`, axes, count that of the samples; every: None means all axes of a sample."""

    def arguments(call: Call, arrays: list[Any]) -> tuple[Any, ...] | None:
        ndim, changes = call.arrays[0].ndim, {}
        if every and not ndim and not call.keeps_axes():  # a number, as one along an axis
            arrays[0], ndim = arrays[0].reshape((call.level.size, 1)), 1
        for name in names:
            moved = _moved(call.param(name), ndim, every)
            if moved is None:
                return None
            changes[name] = moved
        return call.with_params(**changes)

    return arguments


def _moved(dim: Any, ndim: int, every: bool) -> Any:
    if dim is None:
        return tuple(range(1, ndim + 1)) if every and ndim else None
    if not ndim or dim == () or innermost((dim,)) is not None:
        return None
    if isinstance(dim, (tuple, list)):
        return tuple([d % ndim + 1 for d in dim])
    return dim % ndim + 1


def first_of(name: str, value: Any = None) -> Arguments:
    """Arguments in which `name`, with an entry per axis such as a shape, has one for the samples in front.

    value: that entry, by default their number.
    """

    def arguments(call: Call, arrays: list[Any]) -> tuple[Any, ...]:
        given = call.param(name)
        given = given if isinstance(given, (tuple, list)) else (given,)
        return call.with_params(**{name: (call.level.size if value is None else value, *given)})

    return arguments


def aligned_first(name: str, value: Any = None) -> Arguments:
    """`first_of` where the argument may have more entries than the first array axes: it gets axes of length 1."""

    def arguments(call: Call, arrays: list[Any]) -> tuple[Any, ...] | None:
        rank = len(call.param(name))
        (arrays[0],) = aligned([expand(call.arrays[0], call.level)], call.level, rank)
        return first_of(name, value)(call, arrays)

    return arguments
