"""Which rule each op has. An op that is not here, and whose author gave it none, runs once per sample under `vmap`.

Pointwise ops broadcast, and so have the rule of all of them, but for those that are named otherwise here.
"""

from __future__ import annotations

from typing import Any

from ampkit.core.dispatch.batching.call import Call
from ampkit.core.dispatch.batching.rules import Rule, aligned_first, behind, elementwise, first_of, folded, leading
from ampkit.core.op import ops

from . import indexing, layers, losses, products


def order_of_axes(call: Call, arrays: list[Any]) -> tuple[Any, ...]:
    """The arguments of `permute`: the axis of the samples stays in front."""
    return call.with_params(dims=(0, *[d % call.arrays[0].ndim + 1 for d in call.param("dims")]))


def new_axis(call: Call, arrays: list[Any]) -> tuple[Any, ...]:
    """The arguments of `stack`, whose `dim` is one of the result."""
    return call.with_params(dim=call.param("dim") % (call.arrays[0].ndim + 1) + 1)


def planes(name: str) -> Rule:
    """The rule of an op on as many last axes as the argument `name` has entries, behind N and the channels."""
    return lambda call: folded({"input": 0}, rank=len(call.param(name)) + 2)(call)


ONE_BY_ONE = "cast_to prelu to_device clone polygamma"  # pointwise ops by module that are not so by argument
RULES: dict[str, Rule] = {
    # shapes
    "permute": leading(order_of_axes),
    "reshape": leading(first_of("shape")),
    "broadcast_to": leading(aligned_first("shape")),
    "repeat": leading(aligned_first("sizes", 1)),
    "split unbind": leading(behind("dim")),
    "pad": leading(first_of("widths", (0, 0))),
    "pad_from_input pad_from_input_transpose": leading(first_of("widths", (0, 0))),
    "flip": leading(behind("dims")),
    "roll": leading(behind("dims")),
    "cat": leading(behind("dim")),
    "stack": leading(new_axis),
    "diagonal": leading(behind("dim1", "dim2")),
    "tril triu": leading(),
    # indices
    "basic_getitem advanced_getitem put_into_zeros": indexing.Indexed(),
    "index_select": leading(indexing.along),
    "gather scatter scatter_add": leading(behind("dim")),
    # reductions, and functions along an axis
    "sum mean amax amin logsumexp all any count_nonzero std var": leading(behind("dim", every=True)),
    "argmax argmin max min prod sort topk cumsum cumprod cummax cummin logcumsumexp": leading(behind("dim")),
    "softmax log_softmax glu normalize cosine_similarity": leading(behind("dim")),
    # products
    "linear": products.linear,
    "matmul mm bmm mv dot vdot tensordot": products.product,
    "outer": products.outer,
    "addmm": products.addmm,
    "baddbmm": products.baddbmm,
    "einsum": products.einsum,
    "cholesky inverse det slogdet eigh svd qr": leading(),
    # layers
    "layer_norm rms_norm": layers.scaled,
    "add_layer_norm": layers.add_layer_norm,
    "group_norm": layers.group_norm,
    "batch_norm": layers.batch_norm,
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d": layers.convolution,
    "avg_pool2d max_pool2d lp_pool2d": folded({"input": 0}, rank=4),
    "avg_pool3d max_pool3d lp_pool3d": folded({"input": 0}, rank=5),
    "adaptive_avg_pool2d": folded({"input": 0}, rank=4),
    "adaptive_avg_pool3d": folded({"input": 0}, rank=5),
    "adaptive_max_pool": planes("output_size"),
    "interpolate": planes("axes"),
    "linear_gelu_linear": layers.feed_forward,
    "embedding": layers.embedding,
    "sum_rows": layers.sum_rows,
    "dropout": layers.dropout,
    "scaled_dot_product_attention": layers.attention,
    "self_attention": layers.self_attention,
    # losses
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div": losses.of_elements,
    "binary_cross_entropy binary_cross_entropy_with_logits": losses.of_elements,
    "gaussian_nll_loss": losses.of_one_shape,
    "hinge_embedding_loss margin_ranking_loss poisson_nll_loss soft_margin_loss": losses.of_elements,
    "cross_entropy nll_loss": losses.of_classes,
}


def give_rules() -> None:
    """Give each op of the table its rule; once all ops are defined."""
    for op in ops.values():
        if op.forward.module.startswith("pointwise.") and op.name not in ONE_BY_ONE.split():
            op.batching = elementwise
    for names, rule in RULES.items():
        for name in names.split():
            ops[name].batching = rule
