"""`nn.utils`: gradient clipping, which lives in `optim`, and parameters as a vector, under PyTorch's names."""

from ..optim.clip import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from .vector import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "vector_to_parameters",
]
