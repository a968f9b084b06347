"""`jacrev`, `jacfwd` and `hessian`: whole Jacobians, one pass over the recorded call for each row or column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import backends, ops
from ..core.nested import with_tensors
from ..core.tensor import Tensor
from ..ops.argument_checks import check_all
from .call import Call, positions
from .derivatives import Argnums

__all__ = ["hessian", "jacfwd", "jacrev"]


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
    the argument's structure: [*output, *input]. With has_aux the function returns (Jacobian, aux). chunk_size is
    without an effect: passes run one after the other. Raises as `grad_and_value`, for any number of elements.
    """
    numbers = positions("jacrev", argnums)

    def derived(*args: Any, **kwargs: Any) -> Any:
        call = Call("jacrev", func, numbers, args, kwargs, has_aux)
        per_output = []
        for place, out in enumerate(call.outs):
            rows = []
            for seed in _units(out):
                seeds = [seed if i == place else ops.zeros_like(each) for i, each in enumerate(call.outs)]
                rows.append(call.gradients(seeds))
            columns = [_stacked(x, out, [row[i] for row in rows]) for i, x in enumerate(call.inputs)]
            per_output.append(_structured(call, columns, argnums))
        found = _nested(call.out, per_output)
        return (found, call.aux) if has_aux else found

    return derived


def _stacked(x: Tensor, out: Tensor, rows: Sequence[Tensor]) -> Tensor:
    if not rows:
        return x.new_zeros((*out.shape, *x.shape))
    return ops.stack(list(rows)).reshape(*out.shape, *x.shape)


def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that returns the Jacobian of `func`, by one forward pass per element of the inputs; see `jacrev`.

    The function itself runs once, so that random ops draw once, whatever `randomness` says.
    """
    numbers = positions("jacfwd", argnums)

    def derived(*args: Any, **kwargs: Any) -> Any:
        call = Call("jacfwd", func, numbers, args, kwargs, has_aux)
        columns: list[list[Tensor]] = [[] for _ in call.outs]  # per output, per input [*output, *input]
        for place, x in enumerate(call.inputs):
            found = []
            for unit in _units(x):
                directions = [unit if i == place else ops.zeros_like(each) for i, each in enumerate(call.inputs)]
                found.append(call.tangents(directions))
            for i, out in enumerate(call.outs):
                if found:
                    made = ops.stack([tangents[i] for tangents in found], -1).reshape(*out.shape, *x.shape)
                else:
                    made = out.new_zeros((*out.shape, *x.shape))
                columns[i].append(made)
        jacobian = _nested(call.out, [_structured(call, each, argnums) for each in columns])
        return (jacobian, call.aux) if has_aux else jacobian

    return derived


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """A function that returns the Hessian of `func`, forward mode over reverse mode: `jacfwd(jacrev(func))`."""
    return jacfwd(jacrev(func, argnums), argnums)


def _units(tensor: Tensor) -> list[Tensor]:
    # The unit vectors in the tensor's shape.
    backend = backends.backend_of(tensor.array)
    count = tensor.numel()
    rows = np.eye(count, dtype=np.float32).reshape(count, *tensor.shape)
    return [Tensor(backend.asarray(row)).to(tensor.dtype) for row in rows]


def _structured(call: Call, tensors: Sequence[Tensor], argnums: Argnums) -> Any:
    found = call.by_argument(tensors)
    return found[0] if isinstance(argnums, int) else tuple(found)


def _nested(out: Any, per_tensor: Sequence[Any]) -> Any:
    # The structure of the output with what belongs to each of its tensors in its place.
    return with_tensors(out, iter(per_tensor))


check_all(globals())
