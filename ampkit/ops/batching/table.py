"""Which rule each op has. An op that is not here, and whose author gave it none, runs once per sample under `vmap`.

Pointwise ops of ampkit broadcast, and have the rule `elementwise` unless they are named here.
"""

from __future__ import annotations

from typing import Any

from ampkit.base.memory_format import preserve_format
from ampkit.core.dispatch.batching.array import expand
from ampkit.core.dispatch.batching.call import Call, Done
from ampkit.core.dispatch.batching.rules import Rule, aligned_first, behind, elementwise, first_of, folded, leading
from ampkit.core.op import ops

from . import indexing, layers, losses, products, sequences


def order_of_axes(call: Call, arrays: list[Any]) -> tuple[Any, ...]:
    """The arguments of `permute`: the axis of the samples stays in front."""
    return call.with_params(dims=(0, *[d % call.arrays[0].ndim + 1 for d in call.param("dims")]))


def new_axis(call: Call, arrays: list[Any]) -> tuple[Any, ...]:
    """The arguments of `stack`, whose `dim` is one of the result."""
    return call.with_params(dim=call.param("dim") % (call.arrays[0].ndim + 1) + 1)


def planes(name: str) -> Rule:
    """The rule of an op on as many last axes as the argument `name` has entries, behind N and the channels."""
    return lambda call: folded({"input": 0}, rank=len(call.param(name)) + 2)(call)


def last_planes(call: Call) -> Done | None:
    """The rule of `fold_` and `unfold_`, of images or columns [N, C, ...]."""
    rank = 3 if call.op.name == "fold" else len(call.param("geometry").input_size) + 2
    return folded({"input": 0}, rank=rank)(call)


def copied(call: Call) -> Done | None:
    """The rule of `clone`, unless it chooses an order of the axes."""
    return elementwise(call) if call.param("memory_format") in (None, preserve_format) else None


def turned(call: Call) -> Done | None:
    """The rule of `rotary_embedding`, whose cos and sin have one shape, and whose result has that of the input."""
    given = list(call.arrays)
    call.arrays[0] = expand(given[0], call.level)
    if call.is_batched(1) or call.is_batched(2):
        call.arrays[1:] = [expand(angles, call.level) for angles in given[1:]]
    done = elementwise(call)
    call.arrays[:] = given
    return done


ONE_BY_ONE = "cast_to prelu to_device"  # their modules are those of pointwise ops
RULES: dict[str, Rule] = {
    "rotary_embedding": turned,
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
    "repeat_interleave": leading(behind("dim")),
    "clone": copied,
    "fold unfold": last_planes,
    # indices
    "basic_getitem advanced_getitem put_into_zeros": indexing.Indexed(),
    "index_select index_add": leading(behind("dim"), shared=("index",)),
    "gather scatter scatter_add scatter_reduce": leading(behind("dim")),
    # reductions, and functions along an axis
    "sum mean amax amin logsumexp all any count_nonzero std var norm": leading(behind("dim", every=True)),
    "argmax argmin max min prod sort topk place_in_order place_of_mode": leading(behind("dim")),
    "cumsum cumprod cummax cummin logcumsumexp": leading(behind("dim")),
    "softmax log_softmax glu normalize cosine_similarity cross": leading(behind("dim")),
    # products
    "linear": products.linear,
    "matmul mm bmm mv dot vdot tensordot": products.product,
    "outer": products.outer,
    "addmm": products.addmm,
    "baddbmm": products.baddbmm,
    "einsum": products.einsum,
    "cholesky inverse det slogdet eigh svd qr lu solve matrix_exp cdist pairwise_distance": leading(),
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
    "embedding_bag": sequences.embedding_bag,
    "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell": sequences.recurrent,
    "grid_sample": folded({"input": 0, "grid": 0}),
    "local_response_norm": folded({"input": 0}),
    "dropout": layers.dropout,
    "alpha_masked": elementwise,
    "scaled_dot_product_attention": layers.attention,
    "self_attention": layers.self_attention,
    # losses
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div": losses.of_elements,
    "binary_cross_entropy binary_cross_entropy_with_logits": losses.of_elements,
    "gaussian_nll_loss": losses.of_one_shape,
    "hinge_embedding_loss margin_ranking_loss poisson_nll_loss soft_margin_loss": losses.of_elements,
    "cross_entropy nll_loss cross_entropy_probabilities": losses.of_classes,
    "ctc_loss": sequences.ctc_loss,
}


def give_rules() -> None:
    """Give each op of the table its rule; once all ops are defined."""
    for names, rule in [*RULES.items(), (ONE_BY_ONE, None)]:
        for name in names.split():
            ops[name].batching = rule
