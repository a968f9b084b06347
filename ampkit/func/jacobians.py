"""`jacrev`, `jacfwd` and `hessian`: Jacobians, by passes over the recorded call for all rows or columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .. import backends, ops
from ..core.dispatch.batching import draws
from ..core.dispatch.batching.array import Level, UnmappedError
from ..core.dispatch.batching.boundary import enter, leave
from ..core.nested import tensors_in, with_tensors
from ..core.tensor import Tensor
from ..ops.argument_checks import check_all
from ..ops.shape.join_split import split_
from .batching import need_chunk_size
from .call import Call, positions
from .derivatives import Argnums

__all__ = ["hessian", "jacfwd", "jacrev"]

# Elements of an argument's tensors up to which one pass takes all of them: fewer ops then save more than zeros cost.
# Measured with perceptrons of 212 to 2,762 parameters: 1.3 to 2.3 times as fast up to 1,130, no faster from 2,074 on.
TOGETHER = 1000


def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """A function that returns the Jacobian of `func`, by one backward pass per element of the output.

    For each tensor of the output (in its structure), for each argument of argnums (a tuple of them gives a tuple), in
    the argument's structure: [*output, *input]. With has_aux the function returns (Jacobian, aux). The passes run at
    once, by `vmap`, or chunk_size of them at a time. Raises as `grad_and_value`, for any number of elements.
    """
    numbers = positions("jacrev", argnums)
    need_chunk_size("jacrev", chunk_size)

    def derived(*args: Any, **kwargs: Any) -> Any:
        call = Call("jacrev", func, numbers, args, kwargs, has_aux)
        per_output = []
        for place, out in enumerate(call.outs):

            def gradients(seed: Tensor, place: int = place) -> tuple[Tensor, ...]:
                seeds = [seed if i == place else None for i in range(len(call.outs))]
                return tuple(call.gradients(seeds))

            rows = _mapped(gradients, [out], 0, chunk_size)
            columns = [_shaped(x, out, None if rows is None else rows[i]) for i, x in enumerate(call.inputs)]
            per_output.append(_structured(call, columns, argnums))
        found = _nested(call.out, per_output)
        return (found, call.aux) if has_aux else found

    return derived


def _mapped(
    function: Callable[..., tuple[Tensor, ...]], of: Sequence[Tensor], axis: int, chunk_size: int | None
) -> tuple[Tensor, ...] | None:
    # The function of each unit vector of some tensors, stacked along an axis, of a single one as it is; None where they
    # have no elements.
    count = sum([each.numel() for each in of])
    if count <= 1:
        return function(*map(ops.ones_like, of)) if count else None
    units, start = [], 0
    for each in of:
        rows, n = np.zeros((count, *each.shape), each.array.dtype), each.numel()
        rows.reshape(-1)[start * n : (start + n) * n : n + 1] = 1
        units.append(Tensor(backends.backend_of(each.array).asarray(rows)))
        start += n
    size = min(chunk_size or count, count)
    parts = [units] if size == count else zip(*[ops.split(unit, size) for unit in units], strict=True)
    try:
        made = [_at_once(function, part, axis) for part in parts]
    except UnmappedError:  # of a Function that reads values in its backward
        made = [function(*[unit[row] for unit in units]) for row in range(count)]
        return tuple([ops.stack(list(column), axis) for column in zip(*made, strict=True)])
    return made[0] if len(made) == 1 else tuple([ops.cat(list(column), axis) for column in zip(*made, strict=True)])


def _at_once(function: Callable[..., tuple[Tensor, ...]], rows: Sequence[Tensor], axis: int) -> tuple[Tensor, ...]:
    # The function of the rows of some tensors as the samples of a `vmap`, stacked along an axis.
    level = Level(len(rows[0]), "same")
    try:
        with draws.level(level):
            made = function(*[enter(each, 0, level) for each in rows])
        return tuple([leave(each, axis, level) for each in made])
    finally:
        level.open = False


def _passes(call: Call) -> Iterator[list[int]]:
    # The places of the inputs whose unit vectors one pass takes: those of an argument, where they are few and small.
    first = 0
    for n in call.numbers:
        places = list(range(first, first + len(list(tensors_in(call.args[n])))))
        first += len(places)
        sizes = [call.inputs[place].numel() for place in places]
        yield from [places] if sum(sizes) <= TOGETHER else [[place] for place in places]


def _shaped(x: Tensor, out: Tensor, rows: Tensor | None) -> Tensor:
    shape = (*out.shape, *x.shape)
    return x.new_zeros(shape) if rows is None else rows if rows.shape == shape else rows.reshape(*shape)


def _apart(of: Sequence[Tensor], out: Tensor, made: Tensor | None) -> list[Tensor]:
    # The columns [*out, elements] of several inputs, for each of them.
    if made is None or len(of) == 1:
        return [_shaped(x, out, made) for x in of]
    made = made if made.ndim > out.ndim else made.unsqueeze(-1)
    ends = tuple(accumulate([x.numel() for x in of]))
    if made.requires_grad:
        return [_shaped(x, out, part) for x, part in zip(of, split_(made, ends, out.ndim), strict=True)]
    with backends.device_guard(made.array):
        parts = [made.array[..., start:end] for start, end in pairwise((0, *ends))]
        return [Tensor(part.reshape((*out.shape, *x.shape))) for x, part in zip(of, parts, strict=True)]


def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that returns the Jacobian of `func`, by one forward pass per element of the inputs; see `jacrev`.

    The function itself runs once, so that random ops draw once, whatever `randomness` says. The passes run at once, as
    in `jacrev`.
    """
    numbers = positions("jacfwd", argnums)
    need_chunk_size("jacfwd", chunk_size)

    def derived(*args: Any, **kwargs: Any) -> Any:
        call = Call("jacfwd", func, numbers, args, kwargs, has_aux)
        columns: list[list[Tensor]] = [[] for _ in call.outs]  # per output, per input [*output, *input]
        for places in _passes(call):

            def tangents(*units: Tensor, first: int = places[0]) -> tuple[Tensor, ...]:
                before, after = first, len(call.inputs) - first - len(units)
                return tuple(call.tangents([*[None] * before, *units, *[None] * after]))

            of = [call.inputs[place] for place in places]
            found = _mapped(tangents, of, -1, chunk_size)
            for i, out in enumerate(call.outs):
                columns[i] += _apart(of, out, None if found is None else found[i])
        jacobian = _nested(call.out, [_structured(call, each, argnums) for each in columns])
        return (jacobian, call.aux) if has_aux else jacobian

    return derived


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """A function that returns the Hessian of `func`, forward mode over reverse mode: `jacfwd(jacrev(func))`."""
    return jacfwd(jacrev(func, argnums), argnums)


def _structured(call: Call, tensors: Sequence[Tensor], argnums: Argnums) -> Any:
    found = call.by_argument(tensors)
    return found[0] if isinstance(argnums, int) else tuple(found)


def _nested(out: Any, per_tensor: Sequence[Any]) -> Any:
    # The structure of the output with what belongs to each of its tensors in its place.
    return with_tensors(out, iter(per_tensor))


check_all(globals())
