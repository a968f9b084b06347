"""CPU kernels of fused ops: the kernels of their parts, one after the other.

oneDNN can apply GELU to a product, but does not return the product, which the gradient needs; its fused ReLU turns NaN
into 0.
"""

from __future__ import annotations

from ampkit.ops.nn.fused import (
    linear_gelu_linear,
    linear_gelu_linear_backward_by_op,
    linear_gelu_linear_by_op,
    saved_hidden,
)

linear_gelu_linear.on("cpu", wants_cache=True)(linear_gelu_linear_by_op)
linear_gelu_linear.on_backward("cpu", when=saved_hidden, wants_cache=True)(linear_gelu_linear_backward_by_op)
