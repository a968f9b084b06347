"""`nn.utils`: gradient clipping, weight and spectral norm, parameters as a vector, fusion, and `rnn`."""

from ampkit.optim.clip import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

from ..parameter_vector import parameters_to_vector, vector_to_parameters
from . import parametrizations, parametrize, prune, rnn, stateless
from .freezing import freeze
from .fusion import fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights
from .weights import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "freeze", "fuse_conv_bn_eval",
    "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights", "get_total_norm", "parameters_to_vector",
    "parametrizations", "parametrize", "remove_spectral_norm", "remove_weight_norm", "rnn", "spectral_norm",
    "stateless", "vector_to_parameters", "weight_norm",
]  # fmt: skip
