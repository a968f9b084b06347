"""Derivatives of functions, as functions; PyTorch's names of `torch.func`.

A function takes tensors, and lists, tuples and dicts of tensors, and returns such. Transforms nest. Every op under a
transform runs in the dtypes and with the roundings that it has without one, also in an autocast region.
"""

from ..nn.utils.stateless import functional_call
from .batching import functionalize, stack_module_state, vmap
from .derivatives import grad, grad_and_value, jvp, linearize, vjp
from .jacobians import hessian, jacfwd, jacrev

__all__ = [
    "functional_call", "functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
    "stack_module_state", "vjp", "vmap",
]  # fmt: skip
