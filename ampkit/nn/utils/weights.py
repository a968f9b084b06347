"""weight_norm and spectral_norm in PyTorch's older form, with Parameters of the layer itself."""

from __future__ import annotations

from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from ..computed_attribute import ComputedAttribute, attribute_to_replace, check_unbound, compute, restore
from ..module import Module
from .parametrizations import (
    axis_for,
    checked_iterations,
    divide_by_sigma,
    initial_vectors,
    iterate,
    norms,
    scale_to_norm,
)

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Make `module.<name>` g v / |v|, of new Parameters `<name>_g`, the norms, and `<name>_v`; returns the module.

    The norm is taken over all axes but `dim`, or over all of them for None. The weight keeps its values, and is
    computed whenever it is read. Create the optimizer afterwards.
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
    singular vectors are the buffers `<name>_u` and `<name>_v`, updated by n_power_iterations steps of the power
    method in each forward in training mode; the second run of `recompute` does not update them.
    Raises ArgumentError for an unknown name or a count below 1, RangeError for a wrong dim.
    Miyato et al. 2018, arXiv:1802.05957, section 2.1 and algorithm 1.
    """
    weight, axis = attribute_to_replace("spectral_norm", module, name), axis_for(module, dim)
    attribute = _SpectralNorm(name, checked_iterations(n_power_iterations), axis, eps)
    u, v = initial_vectors(weight, axis, eps)
    compute(module, name, attribute)
    module.register_parameter(f"{name}_orig", weight)
    module.register_buffer(f"{name}_u", u)
    module.register_buffer(f"{name}_v", v)
    module.register_forward_pre_hook(attribute)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make `module.<name>` a Parameter of its present value again. Raises ArgumentError for one without it."""
    return _remove("spectral_norm", _SpectralNorm, module, name)


class _WeightNorm(ComputedAttribute):
    suffixes = ("_g", "_v")

    def __init__(self, name: str, dim: int | None):
        self.name, self.dim = name, dim

    def of(self, module: Module) -> Tensor:
        return scale_to_norm(getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v"), self.dim)


class _SpectralNorm(ComputedAttribute):
    suffixes = ("_orig", "_u", "_v")

    def __init__(self, name: str, steps: int, dim: int, eps: float):
        self.name, self.steps, self.dim, self.eps = name, steps, dim, eps

    def _tensors(self, module: Module) -> tuple[Tensor, Tensor, Tensor]:
        weight, u, v = (getattr(module, self.name + suffix) for suffix in self.suffixes)
        return weight, u, v

    def of(self, module: Module) -> Tensor:
        return divide_by_sigma(*self._tensors(module), self.dim)

    def __call__(self, module: Module, args: Any) -> None:
        """The forward pre-hook: update the singular vectors."""
        if module.training:
            iterate(*self._tensors(module), self.dim, self.eps, self.steps, u_first=False)


def _remove(what: str, kind: type[Any], module: Module, name: str) -> Module:
    attribute = module._computed_attributes.get(name)
    if not isinstance(attribute, kind):
        raise ArgumentError(f"remove_{what}", f"the name of a Parameter with {what}", repr(name))
    originals = [getattr(module, name + suffix) for suffix in kind.suffixes]
    with no_grad():
        value = attribute.of(module)
    original = originals[0]
    if kind is _SpectralNorm:
        original._write(value)  # the same Parameter, which an optimizer may hold
    else:
        original = Parameter(value, original.requires_grad)
    restore(module, name, original)
    for suffix in kind.suffixes:
        delattr(module, name + suffix)
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is attribute:
            del module._forward_pre_hooks[key]
    return module


check_all(globals())
