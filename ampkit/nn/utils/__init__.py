"""`nn.utils`: clipping, which lives in `optim`, parameters as a vector, and `rnn`, under PyTorch's names."""

from ...optim.clip import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from ..vector import parameters_to_vector, vector_to_parameters
from . import rnn

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "rnn",
    "vector_to_parameters",
]
