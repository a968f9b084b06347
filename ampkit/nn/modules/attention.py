"""MultiheadAttention."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from ampkit import ops
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import checked

from .. import init
from ..factory import check_probability, check_sizes, new_parameter
from ..module import Module
from .fused import self_attention
from .linear import Linear

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Multi-head attention of projected query, key and value, and a projection of the result.

    in_proj_weight [3 embed_dim, embed_dim] stacks the projections of query, key and value (with kdim or vdim they are
    q_proj_weight, k_proj_weight, v_proj_weight), in_proj_bias [3 embed_dim], out_proj a Linear. Weights of the
    input projections start xavier-uniform, biases as zeros. batch_first=False takes [L, N, E], True [N, L, E].
    add_bias_kv appends a learned key and value, bias_k and bias_v [1, 1, embed_dim], xavier-normal; add_zero_attn
    appends zeros after them. No mask applies to these. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        where = "MultiheadAttention"
        check_sizes(where, embed_dim=embed_dim, num_heads=num_heads, kdim=kdim or embed_dim, vdim=vdim or embed_dim)
        if embed_dim % num_heads:
            raise ArgumentError(where, "embed_dim that num_heads divides", f"{embed_dim} and {num_heads}")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout, self.batch_first = check_probability(where, dropout), batch_first
        self.add_zero_attn = add_zero_attn
        self._make_weights(device, dtype)
        self.register_parameter("in_proj_bias", new_parameter((3 * embed_dim,), device, dtype) if bias else None)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, new_parameter((1, 1, embed_dim), device, dtype) if add_bias_kv else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    def _make_weights(self, device: Any, dtype: Any) -> None:
        size = self.embed_dim
        same = self.kdim == self.vdim == size
        for name, width in (("q", size), ("k", self.kdim), ("v", self.vdim)):
            self.register_parameter(
                f"{name}_proj_weight", None if same else new_parameter((size, width), device, dtype)
            )
        self.register_parameter("in_proj_weight", new_parameter((3 * size, size), device, dtype) if same else None)

    @property
    def _qkv_same_embed_dim(self) -> bool:  # PyTorch's name, which code around it reads
        return self.in_proj_weight is not None

    def reset_parameters(self) -> None:
        """Initialize the input projections again; biases become zeros."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
            init.xavier_normal_(self.bias_v)

    _reset_parameters = reset_parameters  # PyTorch's name

    @checked
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """query [N, L, E], key [N, S, kdim], value [N, S, vdim] -> ([N, L, E], weights [N, L, S] or None).

        Without a batch axis N is left out everywhere. key_padding_mask [N, S], attn_mask [L, S] or [N num_heads, L, S]:
        True masks out, floats are added to the scores, in their dtype. is_causal masks out later keys if there is no
        attn_mask.
        average_attn_weights=False gives weights [N, num_heads, L, S]; need_weights=False skips them and is faster.
        A query with every key masked out, by booleans or by -inf, gets weights 0 (in PyTorch NaN).
        Raises ShapeError or DTypeError for tensors that do not fit.
        """
        single = query.ndim == 2
        if single:
            query, key, value = _map_distinct(lambda t: ops.unsqueeze(t, 0), query, key, value)
            key_padding_mask = None if key_padding_mask is None else ops.unsqueeze(key_padding_mask, 0)
        elif not self.batch_first and query.ndim == key.ndim == value.ndim == 3:
            query, key, value = _map_distinct(_swap, query, key, value)
        self._check(query, key, value)
        plain = key_padding_mask is None and attn_mask is None and self.bias_k is None and not self.add_zero_attn
        if plain and not need_weights and query is key is value and self.in_proj_weight is not None:
            packed = ops.linear(query, self.in_proj_weight, self.in_proj_bias)
            joined, weights = self_attention(packed, self.num_heads, self._dropout_p(), is_causal), None
        else:
            heads, weights = self._attend(query, key, value, key_padding_mask, attn_mask, is_causal, need_weights)
            joined = ops.reshape(_swap(heads, 1, 2), (*query.shape[:2], self.num_heads * self.head_dim))
        out = self.out_proj(joined)
        if weights is not None and average_attn_weights:
            weights = ops.mean(weights, 1)
        if single:
            return ops.squeeze(out, 0), None if weights is None else ops.squeeze(weights, 0)
        return out if self.batch_first else _swap(out), weights

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = (self._split(t) for t in self._append_extra_keys(*self._project(query, key, value)))
        size, p = key.shape[1], self._dropout_p()
        causal = causal and mask is None
        fused = causal and not need_weights and padding is None and k.shape[2] == size
        if causal and not fused:
            mask = ops.triu(ops.ones((query.shape[1], size), dtype=dtypes.bool_, device=query.device), 1)
        blocked, added = self._masks(q, k, size, padding, mask)
        if need_weights:
            return _attention_with_weights(q, k, v, blocked, added, p)
        if blocked is not None:
            added = ops.logical_not(blocked) if added is None else ops.where(blocked, -math.inf, added)
        return ops.scaled_dot_product_attention(q, k, v, added, p, fused), None

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.ndim != 3:
            raise ShapeError("MultiheadAttention", "query [L, E] or a batch of 3 axes", f"query {list(query.shape)}")
        batch, length = query.shape[0], (key.shape[1:2] or (0,))[0]
        needs = ((batch, query.shape[1], self.embed_dim), (batch, length, self.kdim), (batch, length, self.vdim))
        for name, tensor, shape in zip(("query", "key", "value"), (query, key, value), needs, strict=True):
            if tensor.shape != shape:
                order = "batch, length, width"
                raise ShapeError("MultiheadAttention", f"{name} {list(shape)} ({order})", f"{list(tensor.shape)}")

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        if self.in_proj_weight is None:
            weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            return ops.chunk(ops.linear(query, self.in_proj_weight, self.in_proj_bias), 3, -1)
        else:
            weights = ops.chunk(self.in_proj_weight, 3)
        biases = [None] * 3 if self.in_proj_bias is None else ops.chunk(self.in_proj_bias, 3)
        return [ops.linear(t, w, b) for t, w, b in zip((query, key, value), weights, biases, strict=True)]

    def _dropout_p(self) -> float:
        return self.dropout if self.training else 0.0

    def _append_extra_keys(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        # Append the learned key and value, and zeros.
        n, size = k.shape[0], self.embed_dim
        extra = [] if self.bias_k is None else [(self.bias_k, self.bias_v)]
        if self.add_zero_attn:
            extra.append((ops.zeros((1, 1, size), dtype=k.dtype, device=k.device),) * 2)
        for pair in extra:
            k, v = (ops.cat([t, ops.expand(one, n, 1, size)], 1) for t, one in zip((k, v), pair, strict=True))
        return [q, k, v]

    def _split(self, t: Tensor) -> Tensor:
        return _swap(ops.reshape(t, (*t.shape[:2], self.num_heads, self.head_dim)), 1, 2)

    def _masks(self, q: Tensor, k: Tensor, size: int, padding: Tensor | None, mask: Tensor | None) -> Any:
        # (boolean mask, additive mask), each broadcasting to [N, heads, L, S], or None.
        (n, heads, length, _), masks = q.shape, []
        if padding is not None:
            masks.append(_reshaped_mask("key_padding_mask", padding, {(n, size): (n, 1, 1, size)}))
        if mask is not None:
            shapes = {(length, size): (1, 1, length, size), (n * heads, length, size): (n, heads, length, size)}
            masks.append(_reshaped_mask("attn_mask", mask, shapes))
        if k.shape[2] > size:  # extra keys are not masked
            masks = [ops.pad(m, (0, k.shape[2] - size)) for m in masks]
        blocked = [m for m in masks if m.dtype == dtypes.bool_]
        added = [ops.to(m, dtype=q.dtype) for m in masks if m.dtype != dtypes.bool_]
        return _combined(ops.logical_or, blocked), _combined(ops.add, added)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"


def _swap(t: Tensor, a: int = 0, b: int = 1) -> Tensor:
    return ops.transpose(t, a, b)


def _map_distinct(function: Callable[[Tensor], Tensor], *tensors: Tensor) -> list[Tensor]:
    # Map each distinct tensor once, so that `query is key` survives.
    mapped = {id(t): function(t) for t in tensors}
    return [mapped[id(t)] for t in tensors]


def _reshaped_mask(name: str, mask: Tensor, shapes: Mapping[tuple[int, ...], tuple[int, ...]]) -> Tensor:
    if mask.dtype != dtypes.bool_ and not mask.is_floating_point():
        raise DTypeError("MultiheadAttention", f"{name} of booleans or floats", mask.dtype.name)
    if tuple(mask.shape) not in shapes:
        needs = " or ".join(str(list(shape)) for shape in shapes)
        raise ShapeError("MultiheadAttention", f"{name} {needs}", f"{list(mask.shape)}")
    return ops.reshape(mask, shapes[tuple(mask.shape)])


def _combined(join: Callable[[Tensor, Tensor], Tensor], masks: list[Tensor]) -> Tensor | None:
    return functools.reduce(join, masks) if masks else None


def _attention_with_weights(
    q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None, added: Tensor | None, p: float
) -> tuple[Tensor, Tensor]:
    scores = ops.matmul(q * q.shape[-1] ** -0.5, _swap(k, -2, -1))
    if added is not None:
        scores, infinite = scores + added, ops.eq(added, -math.inf)
        blocked = infinite if blocked is None else ops.logical_or(blocked, infinite)
    if blocked is None:
        weights = ops.softmax(scores, -1)
    else:  # a finite fill, then exact zeros: no NaN in a row that is masked out entirely
        low = dtypes.finfo(scores.dtype).min
        weights = ops.masked_fill(ops.softmax(ops.masked_fill(scores, blocked, low), -1), blocked, 0.0)
    weights = ops.dropout(weights, p, p > 0)
    return ops.matmul(weights, v), weights
