"""`torch.nn.functional.multi_head_attention_forward`, by MultiheadAttention."""

from __future__ import annotations

from functools import partial
from typing import Any

from .... import ops
from ....base.errors import ArgumentError
from ....core.tensor import Tensor
from ....nn import Module, MultiheadAttention


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` computes, of its weights: query [L, N, E] -> ([L, N, E], weights [N, L, S] or None).

    Raises ArgumentError for an embed_dim_to_check that query does not have or num_heads does not divide, and for
    static_k and static_v, which are not supported.
    """
    where, size = "multi_head_attention_forward", query.shape[-1]
    if size != embed_dim_to_check or size % num_heads:
        needs = f"a query whose last axis is embed_dim_to_check {embed_dim_to_check}, which num_heads divides"
        raise ArgumentError(where, needs, f"{list(query.shape)} and {num_heads} heads")
    if static_k is not None or static_v is not None:
        raise ArgumentError(where, "static_k and static_v None", "a Tensor", "concatenate it with key and value")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else (None, None, None)
    layer: Any = MultiheadAttention.__new__(MultiheadAttention)
    Module.__init__(layer)
    vars(layer).update(
        embed_dim=size, num_heads=num_heads, head_dim=size // num_heads, kdim=key.shape[-1], vdim=value.shape[-1],
        dropout=dropout_p, batch_first=False, add_zero_attn=add_zero_attn, bias_k=bias_k, bias_v=bias_v,
        in_proj_weight=None if use_separate_proj_weight else in_proj_weight, in_proj_bias=in_proj_bias,
        q_proj_weight=separate[0], k_proj_weight=separate[1], v_proj_weight=separate[2],
        out_proj=partial(ops.linear, weight=out_proj_weight, bias=out_proj_bias),
    )  # fmt: skip
    layer.train(training)
    found: tuple[Tensor, Tensor | None] = layer(
        query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
    )
    return found
