"""Computed: an attribute of a module that is no Parameter, but made of Parameters whenever it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.errors import ArgumentError, DTypeError, StateError
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from .to_device import bound

if TYPE_CHECKING:
    from .module import Module


class Computed:
    """What a module keeps by the name of such an attribute. It holds no tensor, so that a copied module has its own."""

    def of(self, module: Module) -> Tensor:
        """The value, on the tape."""
        raise NotImplementedError

    def assign(self, module: Module, value: Any) -> None:
        """Set the Parameters such that `value` comes of them. Raises StateError where that has no meaning."""
        cure = "set what it is computed of, or remove what computes it"
        raise StateError(type(module).__name__, "a Parameter to assign to", "one that is computed", cure)


def taken(where: str, module: Module, name: str) -> Any:
    """The Parameter or buffer `name`, which something computed is to replace.

    Raises ArgumentError where there is none, StateError for one that is computed already, DTypeError for no module.
    """
    if not hasattr(module, "_computed"):
        raise DTypeError(where, "a Module", f"a {type(module).__name__}")
    if name in module._computed:
        raise StateError(where, f"a plain {name!r}", "one that is computed already", "remove that first")
    found = module._parameters.get(name, module._buffers.get(name))
    if found is None:
        raise ArgumentError(where, f"the name of a Parameter of {type(module).__name__}", repr(name))
    return found


def need_free(where: str, tensor: Tensor) -> None:
    """Raise StateError for a Parameter that an optimizer holds: it would go on training what nobody reads."""
    if isinstance(tensor, Parameter) and bound(tensor):
        needs, cure = "a Parameter that no optimizer holds", "make the optimizer afterwards"
        raise StateError(where, needs, "one that an optimizer holds", cure)


def compute(module: Module, name: str, computed: Computed) -> None:
    """Let `module` have `computed` in the place of its Parameter or buffer `name`."""
    delattr(module, name)
    module._computed[name] = computed


def settle(module: Module, name: str, tensor: Tensor) -> None:
    """Let `module` have `tensor`, a Parameter or a buffer, in the place of what was computed by that name."""
    delattr(module, name)
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)
