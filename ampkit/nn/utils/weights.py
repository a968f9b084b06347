"""weight_norm and spectral_norm as they were before parametrizations: with Parameters of the layer's own."""

from __future__ import annotations

from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from ..computed_attribute import ComputedAttribute, attribute_to_replace, check_unbound, compute, restore
from ..module import Module
from .parametrizations import axis_for, divided, drawn, iterate, need_iterations, normed, norms

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Make `module.<name>` g v / |v|, of new Parameters `<name>_g`, the norms, and `<name>_v`; returns the module.

    The norm is taken over all axes but `dim`, or over all of them for None. The weight keeps its values, and is
    computed whenever it is read. An optimizer is to be made afterwards.
    Raises ArgumentError for an unknown name, RangeError for a wrong dim, StateError if an optimizer holds the weight.
    Salimans and Kingma 2016, arXiv:1602.07868, eq. 2.
    """
    weight = attribute_to_replace("weight_norm", module, name)
    check_unbound("weight_norm", weight)
    g, v = norms(weight, dim), weight.detach().clone()
    compute(module, name, _WeightNorm(name, dim))
    module.register_parameter(f"{name}_g", Parameter(g, weight.requires_grad))
    module.register_parameter(f"{name}_v", Parameter(v, weight.requires_grad))
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make `module.<name>` a Parameter of its present value again. Raises ArgumentError for one without weight_norm."""
    return _remove("weight_norm", _WeightNorm, module, name)


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Make `module.<name>` W / sigma, sigma the largest singular value of W [n, rest]; returns the module.

    W is the Parameter `<name>_orig`, n its axis `dim`, by default 1 for transposed convolutions and 0 for others. The
    singular vectors are the buffers `<name>_u` and `<name>_v`, which move by n_power_iterations steps of the power
    method in each forward in training; the second run of `recompute` finds them where the first left them.
    Raises ArgumentError for an unknown name or a count below 1, RangeError for a wrong dim.
    Miyato et al. 2018, arXiv:1802.05957, section 2.1 and algorithm 1.
    """
    weight, axis = attribute_to_replace("spectral_norm", module, name), axis_for(module, dim)
    made = _SpectralNorm(name, need_iterations(n_power_iterations), axis, eps)
    u, v = drawn(weight, axis, eps)
    compute(module, name, made)
    module.register_parameter(f"{name}_orig", weight)
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module.register_forward_pre_hook(made)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make `module.<name>` a Parameter of its present value again. Raises ArgumentError for one without it."""
    return _remove("spectral_norm", _SpectralNorm, module, name)


class _WeightNorm(ComputedAttribute):
    made_of = ("_g", "_v")

    def __init__(self, name: str, dim: int | None):
        self.name, self.dim = name, dim

    def of(self, module: Module) -> Tensor:
        return normed(getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v"), self.dim)


class _SpectralNorm(ComputedAttribute):
    made_of = ("_orig", "_u", "_v")

    def __init__(self, name: str, steps: int, dim: int, eps: float):
        self.name, self.steps, self.dim, self.eps = name, steps, dim, eps

    def _held(self, module: Module) -> list[Any]:
        return [getattr(module, self.name + part) for part in self.made_of]

    def of(self, module: Module) -> Tensor:
        return divided(*self._held(module), self.dim)

    def __call__(self, module: Module, args: Any) -> None:
        """The hook before a forward."""
        if module.training:
            iterate(*self._held(module), self.dim, self.eps, self.steps, u_first=False)


def _remove(what: str, kind: type[Any], module: Module, name: str) -> Module:
    made = module._computed.get(name)
    if not isinstance(made, kind):
        raise ArgumentError(f"remove_{what}", f"the name of a Parameter with {what}", repr(name))
    grad_buffers = [getattr(module, name + part) for part in kind.made_of]
    with no_grad():
        value = made.of(module)
    home = grad_buffers[0]
    if kind is _SpectralNorm:
        home.data = value  # the same Parameter, which an optimizer may hold
    else:
        home = Parameter(value, home.requires_grad)
    restore(module, name, home)
    for part in kind.made_of:
        delattr(module, name + part)
    for key, (hook, _) in list(module._forward_pre_hooks.items()):
        if hook is made:
            del module._forward_pre_hooks[key]
    return module


check_all(globals())
