"""Which rule of forward mode each op has. Ops without one have forward mode by the ways of `forward_pass.py`."""

from __future__ import annotations

from typing import Any

from ampkit.core.dispatch.forward_rules import itself
from ampkit.core.op import ops

from . import factors, layers, norms

RULES: dict[str, Any] = {
    # linear in their float tensors
    "sum mean cumsum cat stack flip roll repeat repeat_interleave tril triu": itself,
    "index_select gather scatter_add index_add fold unfold": itself,
    "basic_getitem advanced_getitem put_into_zeros": itself,
    "avg_pool2d avg_pool3d to_device": itself,
    "embedding": layers.embedding,
    "scatter": layers.scatter,
    # factorizations
    "eigh": factors.eigh,
    "svd": factors.svd,
    "qr": factors.qr,
    "lu": factors.lu,
    "singular_norm": factors.singular_norm,
    # layers
    "linear": layers.linear_bias,
    "layer_norm": norms.layer_norm,
    "rms_norm": norms.rms_norm,
    "group_norm": norms.group_norm,
    "batch_norm": norms.batch_norm,
    "add_layer_norm": norms.add_layer_norm,
    "rotary_embedding": layers.rotary,
    "softmax": layers.softmax,
    "log_softmax": layers.log_softmax,
    "scaled_dot_product_attention": layers.attention,
    "self_attention": layers.self_attention,
    "max_pool2d max_pool3d": layers.max_pool,
    "linear_gelu_linear": layers.feed_forward,
}


def give_rules() -> None:
    """Give each op of the table its rule; once all ops are defined."""
    for names, rule in RULES.items():
        for name in names.split():
            ops[name].tangent = rule
