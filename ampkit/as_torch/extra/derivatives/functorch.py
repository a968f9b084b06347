"""`functorch`, of which PyTorch's wheel keeps the names of `torch.func`, and functions that modules are made to."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from .... import func, nn
from ....base.missing_names import PYTORCH_VERSION
from ....core.tensor import Tensor
from ...refused import refused

__all__ = [
    "FunctionalModule", "FunctionalModuleWithBuffers", "__version__", "combine_state_for_ensemble", "functionalize",
    "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "make_functional", "make_functional_with_buffers",
    "make_fx", "vjp", "vmap",
]  # fmt: skip

__version__ = PYTORCH_VERSION
make_fx = refused("functorch.make_fx", "Python code runs directly: leave it out")


def _deprecated(function: Callable[..., Any], successor: str) -> Callable[..., Any]:
    """`function`, with PyTorch's warning."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        name = f"functorch.{function.__name__}"
        warnings.warn(f"`{name}` is deprecated. Please use `{successor}` instead", FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    return called


class FunctionalModuleWithBuffers(nn.Module):
    """A module that is called as `f(parameters, buffers, *args)`, in the order of `make_functional_with_buffers`."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.stateless_model = copy.deepcopy(model)
        self.param_names = [name for name, _ in model.named_parameters()]
        self.buffer_names = [name for name, _ in model.named_buffers()]

    def forward(self, params: Sequence[Tensor], buffers: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """What the module gives with these parameters and buffers."""
        given = dict(zip([*self.param_names, *self.buffer_names], [*params, *buffers], strict=True))
        return func.functional_call(self.stateless_model, given, args, kwargs)


class FunctionalModule(FunctionalModuleWithBuffers):
    """A module without buffers that is called as `f(parameters, *args)`."""

    def forward(self, params: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """What the module gives with these parameters."""
        return super().forward(params, (), *args, **kwargs)


def _make_functional(model: nn.Module, disable_autograd_tracking: bool = False) -> tuple[Any, tuple[Tensor, ...]]:
    """A function of the parameters of a module without buffers, and the parameters, copied.

    disable_autograd_tracking: they do not require grad. Raises RuntimeError for a module with buffers.
    """
    if any(True for _ in model.buffers()):
        raise RuntimeError("make_functional: needs a module without buffers; use make_functional_with_buffers")
    return FunctionalModule(model), _copies(model, disable_autograd_tracking)


def _make_functional_with_buffers(
    model: nn.Module, disable_autograd_tracking: bool = False
) -> tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A function of the parameters and buffers of a module, and these, copied."""
    buffers = tuple(buffer.clone() for buffer in model.buffers())
    return FunctionalModuleWithBuffers(model), _copies(model, disable_autograd_tracking), buffers


def _combine_state_for_ensemble(models: Sequence[nn.Module]) -> tuple[Any, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A function for `vmap`, and the parameters and buffers of modules of one kind, each stacked along a new axis 0."""
    params, buffers = func.stack_module_state(list(models))
    return FunctionalModuleWithBuffers(models[0]), tuple(params.values()), tuple(buffers.values())


def _copies(model: nn.Module, constant: bool) -> tuple[Tensor, ...]:
    return tuple(parameter.detach().clone().requires_grad_(not constant) for parameter in model.parameters())


for _function in (_make_functional, _make_functional_with_buffers, _combine_state_for_ensemble):
    _function.__name__ = _function.__name__.lstrip("_")
vmap = _deprecated(func.vmap, "torch.vmap")
grad, grad_and_value, vjp, jvp, jacrev, jacfwd, hessian, functionalize = (
    _deprecated(function, f"torch.func.{function.__name__}")
    for function in (
        func.grad, func.grad_and_value, func.vjp, func.jvp, func.jacrev, func.jacfwd, func.hessian, func.functionalize,
    )
)  # fmt: skip
make_functional = _deprecated(_make_functional, "torch.func.functional_call")
make_functional_with_buffers = _deprecated(_make_functional_with_buffers, "torch.func.functional_call")
combine_state_for_ensemble = _deprecated(_combine_state_for_ensemble, "torch.func.stack_module_state")
