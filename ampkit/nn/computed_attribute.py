"""Computed attributes: tensors of a module that are recomputed from its Parameters each time they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.errors import ArgumentError, DTypeError, StateError
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from .to_device import is_bound

if TYPE_CHECKING:
    from .module import Module


class ComputedAttribute:
    """The rule that computes an attribute. It holds no tensor, so a copied module computes from its own Parameters."""

    def of(self, module: Module) -> Tensor:
        """Compute the value from the Parameters of `module`; recorded on the tape."""
        raise NotImplementedError

    def assign(self, module: Module, value: Any) -> None:
        """Set the Parameters so that the attribute becomes `value`. Raises StateError unless a subclass supports it."""
        cure = "set what it is computed of, or remove what computes it"
        raise StateError(type(module).__name__, "a Parameter to assign to", "one that is computed", cure)


def attribute_to_replace(where: str, module: Module, name: str) -> Any:
    """Return the Parameter or buffer `name` of `module`, which a computed attribute will replace.

    Raises ArgumentError if there is none, StateError if it is computed already, DTypeError if `module` is no Module.
    """
    if not hasattr(module, "_computed_attributes"):
        raise DTypeError(where, "a Module", f"a {type(module).__name__}")
    if name in module._computed_attributes:
        raise StateError(where, f"a plain {name!r}", "one that is computed already", "remove that first")
    found = module._parameters.get(name, module._buffers.get(name))
    if found is None:
        raise ArgumentError(where, f"the name of a Parameter of {type(module).__name__}", repr(name))
    return found


def check_unbound(where: str, tensor: Tensor) -> None:
    """Raise StateError if an optimizer holds `tensor`: it would go on training a tensor that is no longer used."""
    if isinstance(tensor, Parameter) and is_bound(tensor):
        needs, cure = "a Parameter that no optimizer holds", "make the optimizer afterwards"
        raise StateError(where, needs, "one that an optimizer holds", cure)


def compute(module: Module, name: str, computed: ComputedAttribute) -> None:
    """Replace the Parameter or buffer `name` of `module` by `computed`."""
    delattr(module, name)
    module._computed_attributes[name] = computed


def restore(module: Module, name: str, tensor: Tensor) -> None:
    """Replace the computed attribute `name` of `module` by `tensor`, a Parameter or a buffer."""
    delattr(module, name)
    register(module, name, tensor)


def register(module: Module, name: str, tensor: Tensor) -> None:
    """Register a tensor of `module`: a Parameter, or else a buffer."""
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)
