"""ModuleTree: iteration over the submodules, Parameters and buffers of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from ..base.errors import ArgumentError, DTypeError, switch
from ..core.capture.code_names import is_library
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from ..ops.argument_checks import check_methods
from . import hooks
from .state_dict import look_up

if TYPE_CHECKING:
    from .module import Module


class ModuleTree:
    """The base of Module that iterates over `modules`, `parameters` and `buffers`, with or without names."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Any]  # Modules or None; a name of another file could not be resolved by `get_type_hints`

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module and all below it, each once."""
        if memo is None:
            memo = set()
            if not isinstance(prefix, str):
                raise DTypeError(f"{type(self).__name__}.named_modules", "prefix as text", f"a {type(prefix).__name__}")
            remove_duplicate = switch(f"{type(self).__name__}.named_modules", "remove_duplicate", remove_duplicate)
        elif not isinstance(memo, set):
            raise DTypeError(f"{type(self).__name__}.named_modules", "memo as a set", f"a {type(memo).__name__}")
        if remove_duplicate and id(self) in memo:
            return
        memo.add(id(self))
        yield prefix, cast("Module", self)
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules directly below, each once."""
        seen = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly below, each once."""
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, Parameter) of this module and, with `recurse`, all below; tied ones once, by their first.

        Keeps, for messages, the longest name seen so far.
        """
        for name, parameter in self._named_tensors("_parameters", prefix, recurse, remove_duplicate):
            if len(name) > len(parameter._dotted_name):
                parameter._dotted_name = name
            yield name, parameter

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The Parameters of this module and, with `recurse`, all below it, each once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(dotted name, tensor) of the buffers, each once."""
        return self._named_tensors("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with `recurse`, all below it, each once."""
        return (tensor for _, tensor in self.named_buffers(recurse=recurse))

    def _named_tensors(self, table: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Any]]:
        seen = set()
        for path, module in self.named_modules(prefix=prefix, remove_duplicate=once) if recurse else [(prefix, self)]:
            for name, tensor in getattr(module, table).items():
                if tensor is not None and not (once and id(tensor) in seen):
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor

    def get_submodule(self, target: str) -> Module:
        """The module with the dotted name `target`; "" is this one. Raises ArgumentError for an unknown name."""
        if not target:
            return cast("Module", self)
        return look_up(dict(self.named_modules(remove_duplicate=False)), target, "module")

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put `module` in the place of the dotted name `target`; with `strict`, one must be there already.

        Raises ArgumentError for an unknown name above it, for "" and, with strict, for one that names no module.
        """
        above, _, name = target.rpartition(".")
        parent = self.get_submodule(above)
        if not name:
            raise ArgumentError("set_submodule", "the name of a module below this one", repr(target))
        if strict or name not in parent._modules:
            if strict or hasattr(parent, name):
                look_up(parent._modules, name, "module")
            parent.register_module(name, module)
        parent._modules[name] = module

    def read_by_steps(self, reads: Any) -> Iterator[Any]:
        """Where a step reads switches, numbers and names of the module on the host (see core/capture/host_reads.py)."""
        reads.attributes(self, every=is_library(type(self)))
        own = vars(self)
        for table in (self._parameters, self._buffers, self._modules, own["_computed_attributes"]):
            yield len, table
            yield from [(table.get, name) for name in table]
        yield own.get, "forward"  # a script may replace it, here or in the class
        yield vars(type(self)).get, "forward"
        yield hooks.numbers, self
        for name in hooks.TABLES:
            for hook in (*own[name].values(), *hooks.everywhere.get(name, {}).values()):
                reads.visit(hook)

    def get_parameter(self, target: str) -> Parameter:
        """The Parameter with the dotted name `target`. Raises ArgumentError for an unknown name."""
        return look_up(dict(self.named_parameters(remove_duplicate=False)), target, "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with the dotted name `target`. Raises ArgumentError for an unknown name."""
        return look_up(dict(self.named_buffers(remove_duplicate=False)), target, "buffer")


check_methods(ModuleTree, but=["named_modules"])
