"""CPU kernels of fused ops: the kernels of their parts, one after the other.

oneDNN can apply GELU to a product, but does not return the product, which the gradient needs; its fused ReLU turns NaN
into 0.
"""

from ampkit.kernels.shared.linalg import register_by_op

register_by_op("cpu")
