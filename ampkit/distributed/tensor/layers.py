"""Layers whose parameters the ranks of a group divide: what their forward adds to that of the layers that they were."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import ops
from ...base.errors import ArgumentError
from ...core.autograd.traced_array import plain
from ...core.tensor import Tensor
from ...nn.modules.attention import MultiheadAttention
from ...nn.modules.dropout import Dropout
from ...nn.modules.embedding import Embedding
from ...nn.modules.linear import Linear
from ...nn.modules.norm import LayerNorm, RMSNorm
from ...ops.nn.embedding import check_indices
from ..device_mesh import Partial, Placement, Replicate, Shard
from ..process_group import ProcessGroup
from .redistribute import redistribute

REPLICATED, TERMS = Replicate(), Partial()


class Layout(NamedTuple):
    """The placements of a parallel layer's input and output over the ranks of its group."""

    group: ProcessGroup
    input: Placement
    output: Placement

    def __deepcopy__(self, memo: dict[int, Any]) -> Layout:  # averages of models copy them
        return self


def shared_by_ranks(parameter: Any, group: ProcessGroup, layout: Placement) -> Any:
    """A replicated parameter for activations of placement `layout`: the ranks' gradients are added up."""
    if parameter is None or not isinstance(layout, Shard):
        return parameter
    return redistribute(parameter, group, REPLICATED, REPLICATED, TERMS)


class ColwiseLinear(Linear):
    """A Linear of which each rank has some rows of weight and bias, and computes these features of the output."""

    _layout: Layout

    def forward(self, input: Tensor) -> Tensor:
        group, given, wanted = self._layout
        whole = redistribute(input, group, given, REPLICATED, TERMS)
        length = self.out_features if wanted == REPLICATED else None
        return redistribute(ops.linear(whole, self.weight, self.bias), group, Shard(-1), wanted, length=length)


class RowwiseLinear(Linear):
    """A Linear of which each rank has some columns of the weight, and computes a term of the output."""

    _layout: Layout

    def forward(self, input: Tensor) -> Tensor:
        group, given, wanted = self._layout
        part = redistribute(input, group, given, Shard(-1))
        out = redistribute(ops.linear(part, self.weight), group, TERMS, wanted)
        if self.bias is None:
            return out
        return (out + shared_by_ranks(self.bias, group, wanted)).to(out.dtype)  # the bias as it is: so is its gradient


class ColwiseEmbedding(Embedding):
    """An Embedding of which each rank has some columns of the table."""

    _layout: Layout

    def forward(self, input: Tensor) -> Tensor:
        group, given, wanted = self._layout
        index = redistribute(input, group, given, REPLICATED)
        return redistribute(super().forward(index), group, Shard(-1), wanted)


class RowwiseEmbedding(Embedding):
    """An Embedding of which each rank has some rows of the table, and zeros for other indices."""

    _layout: Layout

    def forward(self, input: Tensor) -> Tensor:
        group, given, wanted = self._layout
        index = redistribute(input, group, given, REPLICATED)
        check_indices(plain(index.array), self.num_embeddings)
        rows: slice = self.weight._sharding.rows
        mine = (index >= rows.start) & (index < rows.stop)
        padding = self.padding_idx
        padding = padding - rows.start if padding is not None and rows.start <= padding < rows.stop else None
        found = ops.embedding(ops.where(mine, index - rows.start, 0), self.weight, padding)
        return redistribute(ops.where(mine.unsqueeze(-1), found, 0.0), group, TERMS, wanted)


class SequenceLayerNorm(LayerNorm):
    """A LayerNorm of activations of which each rank has some positions; the gradients of its parameters are summed."""

    _layout: Layout

    def forward(self, input: Tensor) -> Tensor:
        group, given, _ = self._layout
        weight, bias = (shared_by_ranks(each, group, given) for each in (self.weight, self.bias))
        return ops.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class SequenceRMSNorm(RMSNorm):
    """An RMSNorm of activations of which each rank has some positions; the gradient of its weight is summed."""

    _layout: Layout

    def forward(self, input: Tensor) -> Tensor:
        weight = shared_by_ranks(self.weight, self._layout.group, self._layout.input)
        return ops.rms_norm(input, self.normalized_shape, weight, self.eps)


class SequenceDropout(Dropout):
    """A Dropout of activations of which each rank has some positions."""


class ColwiseAttention(MultiheadAttention):
    """A MultiheadAttention of which each rank computes some heads; its `out_proj` is a RowwiseLinear."""

    _layout: Layout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        need_weights = kwargs.get("need_weights", args[1] if len(args) > 1 else True)
        if need_weights:
            got = "need_weights=True, and each rank has some of the heads"
            raise ArgumentError("MultiheadAttention", "need_weights=False in tensor parallelism", got)
        group, given, _ = self._layout
        whole = {id(t): redistribute(t, group, given, REPLICATED, TERMS) for t in (query, key, value)}
        return super().forward(whole[id(query)], whole[id(key)], whole[id(value)], *args, **kwargs)
