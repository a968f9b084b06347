"""Divided layers computed shard by shard, with the bits that they have on any number of ranks: see shards.py."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...base.errors import ArgumentError, DTypeError
from ...core.autograd.traced_array import plain
from ...core.tensor import Tensor
from ...nn.modules.attention import MultiheadAttention
from ...nn.modules.embedding import Embedding
from ...nn.modules.linear import Linear
from ...ops.nn.embedding import check_indices
from .shards import Cut, Division, LocalShards, copied, gathered, parts_of, summed


class ColwiseLinear(Linear):
    """A Linear whose shards compute features of the output. gathers: whether it returns them all, joined."""

    _division: Division
    _cuts: dict[str, Cut]
    _gathers: bool

    def forward(self, input: Tensor) -> Any:
        bias = None if self.bias is None else parts_of(self.bias, self._cuts["bias"])
        out = ops.linear(copied(input, self._division), parts_of(self.weight, self._cuts["weight"]), bias)
        return gathered(out, self._division, self.out_features) if self._gathers else out


class RowwiseLinear(Linear):
    """A Linear whose shards compute terms of the output, from the features that those of a column-wise layer gave."""

    _division: Division
    _cuts: dict[str, Cut]

    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(input, LocalShards):
            got, cure = f"a {type(input).__name__}", "let a column-wise layer stand before it"
            raise DTypeError("RowwiseParallel with shards", "the shards of an activation", got, cure)
        return summed(ops.linear(input, parts_of(self.weight, self._cuts["weight"])), self._division, self.bias)


class ColwiseEmbedding(Embedding):
    """An Embedding whose shards have columns of the table. gathers: whether it returns them all, joined."""

    _division: Division
    _cuts: dict[str, Cut]
    _gathers: bool

    def forward(self, input: Tensor) -> Any:
        out: Any = ops.embedding(input, parts_of(self.weight, self._cuts["weight"]), self.padding_idx)
        return gathered(out, self._division, self.embedding_dim) if self._gathers else out


class RowwiseEmbedding(Embedding):
    """An Embedding whose shards have rows of the table, and zeros for other indices."""

    _division: Division
    _cuts: dict[str, Cut]

    def forward(self, input: Tensor) -> Tensor:
        check_indices(plain(input.array), self.num_embeddings)
        division, padding, found = self._division, self.padding_idx, []
        bounds = division.bounds(self.num_embeddings)
        for number, table in zip(division.mine, parts_of(self.weight, self._cuts["weight"]).tensors, strict=True):
            begin, end = bounds[number : number + 2]
            mine = (input >= begin) & (input < end)
            pad = padding - begin if padding is not None and begin <= padding < end else None
            rows = ops.embedding(ops.where(mine, input - begin, 0), table, pad)
            found.append(ops.where(mine.unsqueeze(-1), rows, 0.0))
        return summed(LocalShards(found, division.mine.start), division)


class ColwiseAttention(MultiheadAttention):
    """A MultiheadAttention whose shards compute heads; its `out_proj` is a RowwiseLinear."""

    _division: Division
    _cuts: dict[str, Cut]

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        need_weights = kwargs.get("need_weights", args[1] if len(args) > 1 else True)
        if need_weights:
            got = "need_weights=True, and each shard has some of the heads"
            raise ArgumentError("MultiheadAttention", "need_weights=False in tensor parallelism", got)
        whole = {id(t): copied(t, self._division) for t in (query, key, value)}
        forward: Any = MultiheadAttention.forward.__wrapped__  # without checks for Tensors
        return forward(self, whole[id(query)], whole[id(key)], whole[id(value)], *args, **kwargs)


def _shards_of(name: str) -> Any:
    def found(self: Any) -> Any:
        parameter = self._parameters[name]
        return None if parameter is None else parts_of(parameter, self._cuts[name])

    return property(found)


for _name in ("in_proj_weight", "in_proj_bias"):  # what the forward reads
    setattr(ColwiseAttention, _name, _shards_of(_name))
