"""PyTorch's address of norms and some products: `ampkit.linalg.norm`."""

from .ops import chain_matmul, matmul, vecdot
from .ops import linalg_matrix_norm as matrix_norm
from .ops import linalg_norm as norm
from .ops import linalg_vector_norm as vector_norm

multi_dot = chain_matmul

__all__ = ["matmul", "matrix_norm", "multi_dot", "norm", "vecdot", "vector_norm"]
