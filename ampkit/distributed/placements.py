"""Placements: which part of a tensor each rank along a dimension of a mesh has; PyTorch's names."""

from __future__ import annotations

from dataclasses import dataclass


class Placement:
    """The base of Shard, Replicate and Partial."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether each rank has a part along an axis, along the axis `dim` where it is given."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Whether each rank has the whole tensor."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether each rank has a term of the tensor, of the reduction `reduce_op` where it is given."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Shard(Placement):
    """Each rank has a part of the tensor along the axis `dim`, the last one for -1."""

    dim: int


@dataclass(frozen=True)
class Replicate(Placement):
    """Each rank has the whole tensor."""


@dataclass(frozen=True)
class Partial(Placement):
    """Each rank has a term of the sum that is the tensor; reduce_op: "sum"."""

    reduce_op: str = "sum"
