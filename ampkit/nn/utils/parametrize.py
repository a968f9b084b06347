"""Parametrizations: modules that compute a tensor of another module from its original whenever it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ampkit import backends
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ampkit.base.scoped import ScopedVariable
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.parameter import Parameter
from ampkit.core.policy import autocast
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

from ..computed_attribute import ComputedAttribute, attribute_to_replace, check_unbound, compute, register, restore
from ..module import Module
from ..modules.container import ModuleDict, ModuleList

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
    "transfer_parametrizations_and_params", "type_before_parametrizations",
]  # fmt: skip

_cache: ScopedVariable[dict[Any, Tensor] | None] = ScopedVariable("ampkit.parametrizations", None)


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, in order, and the original.

    It is `original`, or `original0`, `original1`, ... if the first one has a `right_inverse` that returns several.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False):
        super().__init__(modules)
        self.unsafe = unsafe
        found = self._back(original, strict=False)
        self.is_tensor, self.ntensors = isinstance(found, Tensor), len(_several(found))
        if not unsafe:
            with no_grad(), autocast(enabled=False):
                _check_preserved(original, self._parametrized(_several(found)))
        if self.is_tensor and found.array.shape == original.array.shape and found.dtype == original.dtype:
            if found is not original:
                original._write(found)
            originals = [original]  # the same one, which an optimizer may hold
        else:
            check_unbound("register_parametrization", original)
            originals = [_like(tensor, original) for tensor in _several(found)]
        for name, tensor in zip(self._names(), originals, strict=True):
            register(self, name, tensor)

    def _names(self) -> list[str]:
        return ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]

    def _back(self, value: Tensor, strict: bool) -> Any:
        with no_grad():
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    value = module.right_inverse(value)
                elif strict:
                    needs = "a parametrization with a method `right_inverse`"
                    raise StateError("assignment", needs, type(module).__name__, "set `original` instead")
        return value

    @property
    def legacy_names(self) -> dict[str, str]:
        """For each original, the suffix of the Parameter's name in the state dicts of older versions."""
        return getattr(self[0], "legacy_names", {})

    def forward(self) -> Tensor:
        """The parametrizations applied to the originals."""
        return self._parametrized([getattr(self, name) for name in self._names()])

    def _parametrized(self, originals: Sequence[Tensor]) -> Tensor:
        first, *others = self
        value = first(*originals)
        for module in others:
            value = module(value)
        return value

    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the tensor becomes `value`, by the `right_inverse` of each parametrization.

        Raises StateError if one has none, ShapeError, with nothing changed, for a value of another shape.
        """
        found = _several(self._back(value, strict=True))
        originals = [getattr(self, name) for name in self._names()]
        if [t.array.shape for t in found] != [t.array.shape for t in originals]:
            needs = " and ".join(str(tuple(t.shape)) for t in originals)
            raise ShapeError("assignment", f"originals {needs}", " and ".join(str(tuple(t.shape)) for t in found))
        for original, tensor in zip(originals, found, strict=True):
            original._write(tensor)


class _Parametrized(ComputedAttribute):
    def __init__(self, name: str):
        self.name = name

    def of(self, module: Any) -> Tensor:
        found, cache = module.parametrizations[self.name], _cache.scope().value
        if cache is None:
            return found()
        if found not in cache:
            cache[found] = found()
        return cache[found]

    def assign(self, module: Any, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise DTypeError(f"{type(module).__name__}.{self.name}", "a Tensor", f"a {type(value).__name__}")
        module.parametrizations[self.name].right_inverse(value)


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute `module.<tensor_name>` by `parametrization` from the Parameter or buffer of that name.

    The Parameter itself is `module.parametrizations.<tensor_name>.original` from then on; a method `right_inverse` of
    the parametrization gives its first value, or a tuple of them, and makes the attribute assignable. Several are
    applied in order. unsafe=True skips the check that shape and dtype are preserved.
    Raises ArgumentError for a name that the module does not have and for another dtype, ShapeError for another shape,
    StateError if an optimizer holds a Parameter that several new ones replace.
    """
    where = "register_parametrization"
    if not isinstance(module, Module) or not isinstance(parametrization, Module):
        wrong = parametrization if isinstance(module, Module) else module
        raise DTypeError(where, "a Module and a Module as its parametrization", f"a {type(wrong).__name__}")
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        existing: Any = module.parametrizations[tensor_name]
        if not unsafe:
            with no_grad(), autocast(enabled=False):
                before = existing()
                _check_preserved(before, parametrization(before))
        existing.append(parametrization)
        existing.unsafe |= unsafe
        return module
    created = ParametrizationList([parametrization], attribute_to_replace(where, module, tensor_name), unsafe)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    compute(module, tensor_name, _Parametrized(tensor_name))
    module.parametrizations[tensor_name] = created
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether `module` has a parametrization of that tensor, or of any."""
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make `module.<tensor_name>` a Parameter (or buffer) again, of its present value or of the original's.

    An `original` stays the same Parameter, which an optimizer may hold.
    Raises ArgumentError for a tensor without parametrizations, or for leave_parametrized=False with several originals.
    """
    where = "remove_parametrizations"
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(where, "the name of a tensor with parametrizations", repr(tensor_name))
    parametrizations: Any = module.parametrizations[tensor_name]
    if not leave_parametrized and not parametrizations.is_tensor:
        raise ArgumentError(where, "leave_parametrized=True for several originals", "False")
    with no_grad(), autocast(enabled=False):
        value = getattr(module, tensor_name).detach() if leave_parametrized else None
    first = getattr(parametrizations, parametrizations._names()[0])
    if value is not None and parametrizations.is_tensor and value.shape == first.shape:
        first._write(value)
    elif value is not None:
        first = _like(value.clone(), first)
    restore(module, tensor_name, first)
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        del module.parametrizations
    return module


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give `to_module` the parametrizations of `from_module`, of one tensor or of all, and the values of the originals.

    The parametrizations are shared, the originals copies; a tensor that `to_module` lacks is made. Returns to_module.
    Raises ArgumentError for a tensor without parametrizations.
    """
    where = "transfer_parametrizations_and_params"
    if not is_parametrized(from_module, tensor_name):
        raise ArgumentError(where, "the name of a tensor with parametrizations", repr(tensor_name))
    given: Any = from_module.parametrizations
    for name in list(given) if tensor_name is None else [tensor_name]:
        parametrizations = given[name]
        if not hasattr(to_module, name):
            with no_grad(), autocast(enabled=False):
                first = getattr(parametrizations, parametrizations._names()[0])
                register(to_module, name, _like(getattr(from_module, name), first))
        for parametrization in parametrizations:
            register_parametrization(to_module, name, parametrization, unsafe=parametrizations.unsafe)
        made: Any = to_module.parametrizations
        for original in parametrizations._names():
            getattr(made[name], original)._write(getattr(parametrizations, original))
    return to_module


def type_before_parametrizations(module: Module) -> type:
    """The class of `module`, which parametrizations leave as it is."""
    return type(module)


@contextmanager
def cached() -> Iterator[None]:
    """Within the block, compute each parametrized tensor once, when it is first read."""
    outer = _cache.scope().value
    with _cache.holding({} if outer is None else outer):
        yield


def _several(found: Any) -> tuple[Tensor, ...]:
    tensors = (found,) if isinstance(found, Tensor) else found
    if not isinstance(tensors, (tuple, list)) or not all(isinstance(t, Tensor) for t in tensors):
        raise ArgumentError("right_inverse", "a Tensor or a tuple of them returned", f"a {type(found).__name__}")
    return tuple(tensors)


def _like(tensor: Tensor, original: Tensor) -> Tensor:
    # A copy, as a Parameter if the original is one.
    with backends.device_guard(tensor.array):
        copied = Tensor(tensor.array.copy())
    return Parameter(copied, original.requires_grad) if isinstance(original, Parameter) else copied


def _check_preserved(before: Tensor, after: Any) -> None:
    where, cure = "register_parametrization", "unsafe=True allows it"
    if not isinstance(after, Tensor):
        raise ArgumentError(where, "a parametrization that returns a Tensor", f"a {type(after).__name__}")
    if after.dtype != before.dtype:
        raise ArgumentError(where, f"a parametrization that keeps {before.dtype.name}", after.dtype.name, cure)
    if after.shape != before.shape:
        needs = f"a parametrization that keeps the shape {tuple(before.shape)}"
        raise ShapeError(where, needs, f"{tuple(after.shape)}", cure)


check_all(globals())
