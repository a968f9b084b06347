"""Flatten parameters into one vector and write one back."""

from __future__ import annotations

from collections.abc import Iterable

from .. import ops
from ..base.errors import DTypeError, ShapeError
from ..core.tensor import Tensor
from ..ops.argument_checks import check_all


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Concatenate the flattened Tensors, of one device: -> [total], differentiable, in the widest dtype among them.

    Raises DTypeError for anything but Tensors, ShapeError for none at all.
    """
    found = _tensors("parameters_to_vector", parameters)
    if not found:
        raise ShapeError("parameters_to_vector", "at least one Tensor", "none")
    return ops.cat([ops.reshape(p, (-1,)) for p in found])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Make the parameters views of `vec` [total], in their order; copies in another dtype or on another device.

    Raises DTypeError for anything but Tensors, ShapeError, with nothing written, for a vector of another length.
    """
    where = "vector_to_parameters"
    if not isinstance(vec, Tensor):
        raise DTypeError(where, "vec as a Tensor", f"a {type(vec).__name__}")
    found = _tensors(where, parameters)
    total = sum(p.numel() for p in found)
    if vec.shape != (total,):
        raise ShapeError(where, f"a vector of shape ({total},)", f"{tuple(vec.shape)}")
    start, flat = 0, vec.detach()
    for p in found:
        p.data = ops.to(ops.reshape(flat[start : start + p.numel()], p.shape), dtype=p.dtype, device=p.device)
        start += p.numel()


def _tensors(where: str, parameters: Iterable[Tensor]) -> list[Tensor]:
    found = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    for item in found:
        if not isinstance(item, Tensor):
            raise DTypeError(where, "Tensors", f"a {type(item).__name__}", "pass model.parameters()")
    return found


check_all(globals())
