"""Module: the base class of layers and models."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Self

from ..base import dtypes, html
from ..base.byte_sizes import bytes_in_words
from ..base.errors import ArgumentError, DTypeError, StateError, UndefinedError, switch
from ..base.missing_names import missing_module_attribute
from ..core.arguments import checked_constructor
from ..core.capture.recorder import recorders
from ..core.module_path import following, new_call
from ..core.parameter import Buffer, Parameter
from ..core.policy import module_running
from ..core.tensor import Tensor
from ..ops.argument_checks import check_methods
from . import hooks
from . import state_dict as state
from .module_hooks import ModuleHooks
from .to_device import change, destination, move
from .uninitialized import Uninitialized

_TABLES = ("_parameters", "_buffers", "_modules", "_computed_attributes", *hooks.TABLES)


_TABLES = ("_parameters", "_buffers", "_modules", "_computed_attributes", *hooks.TABLES)


class Module(ModuleHooks):
    """The base of every layer and model.

    Assigning a Parameter, a buffer (`register_buffer`) or a Module to an attribute registers it under that name; a
    subclass calls `super().__init__()` first and defines `forward`. `state_dict` has PyTorch's names and layouts.
    """

    training: bool
    _version = 1  # of what `state_dict` holds of the module itself; saved in its `_metadata`
    _stays_in_eval = False  # see nn.utils.freeze
    _wraps_model = False  # whether paths begin at the module in it, as in a DistributedDataParallel
    _runs_fused = False  # whether it computes the activation after it and the sum with a residual: see nn.quantization

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked_constructor(cls)

    def __init__(self) -> None:
        self.__dict__.update(
            {name: {} for name in _TABLES}, training=True, _non_persistent_buffers_set=set(), _has_own_hooks=False
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        # What subclasses call that change what they load.
        self.__dict__.update({name: {} for name in _TABLES if name not in self.__dict__}, **state)

    # call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if following and not self._wraps_model:
            with module_running(new_call(self)):
                return hooks.call(self, args, kwargs)
        if self._has_own_hooks or hooks.everywhere or recorders:
            return hooks.call(self, args, kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; subclasses define it."""
        raise UndefinedError(type(self).__name__, "a method `forward`", "a class without one")

    # attributes

    def __setattr__(self, name: str, value: Any) -> None:
        computed = self.__dict__.get("_computed_attributes")
        if computed and name in computed:
            computed[name].assign(self, value)
            return
        table = self._table_for(name, value)
        if table is None:
            object.__setattr__(self, name, value)
            return
        for other in (self.__dict__, self._parameters, self._buffers, self._modules):
            if other is not table:
                other.pop(name, None)
        self._set_member(table, name, value)

    def _table_for(self, name: str, value: Any) -> dict[str, Any] | None:
        tables: dict[str, dict[str, Any]]
        if "_modules" not in self.__dict__:
            if isinstance(value, (Parameter, Module)):
                raise _uninitialized(f"{type(self).__name__}.{name}")
            return None
        if isinstance(value, Parameter):
            return self._parameters
        if isinstance(value, Module):
            return self._modules
        if isinstance(value, Buffer):
            unsaved = self._non_persistent_buffers_set
            (unsaved.discard if value.persistent else unsaved.add)(name)
            return self._buffers
        tables = {"a Parameter": self._parameters, "a Module": self._modules, "a Tensor": self._buffers}
        for kind, table in tables.items():
            if name in table:
                if value is None or (table is self._buffers and isinstance(value, Tensor)):
                    return table
                cure = f"to set its values: {name}.data = ..." if table is self._parameters else f"`del` {name} first"
                raise DTypeError(f"{type(self).__name__}.{name}", f"{kind} or None", f"a {type(value).__name__}", cure)
        return None

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if "_modules" in own:
            for table in (own["_parameters"], own["_modules"], own["_buffers"]):
                if name in table:
                    return table[name]
            if name in own["_computed_attributes"]:
                return own["_computed_attributes"][name].of(self)
        raise missing_module_attribute(self, name)

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules, self._computed_attributes):
            if name in table:
                del table[name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        members = (*self._parameters, *self._buffers, *self._modules, *self._computed_attributes)
        return sorted({*super().__dir__(), *(name for name in members if not name[0].isdigit())})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a Parameter, or None for one that is optional."""
        self._register_member(name, param, Parameter, self._parameters)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is part of the module but not trained; out of `state_dict` unless `persistent`."""
        self._register_member(name, tensor, Tensor, self._buffers)
        unsaved = self._non_persistent_buffers_set
        (unsaved.discard if persistent else unsaved.add)(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Register a module, or None; the same as `add_module`."""
        self._register_member(name, module, Module, self._modules)

    add_module = register_module

    def _register_member(self, name: str, value: Any, kind: type, table: dict[str, Any]) -> None:
        where = f"{type(self).__name__}: registering"
        if "_modules" not in self.__dict__:
            raise _uninitialized(where)
        if not isinstance(name, str) or not name or "." in name:
            error = MemberError if isinstance(name, str) else DTypeError
            raise error(where, "a name without a dot", repr(name))
        if value is not None and not isinstance(value, kind):
            raise DTypeError(where, f"a {kind.__name__} or None as {name!r}", f"a {type(value).__name__}")
        if name not in table and hasattr(self, name):
            raise MemberError(where, "a name that is free", repr(name))
        self._set_member(table, name, value)

    def _set_member(self, table: dict[str, Any], name: str, value: Any) -> None:
        for kind, registering in hooks.registration.items():
            if registering and table is self.__dict__[kind] and value is not None:
                value = hooks.registered(self, kind, name, value)
        table[name] = value

    # recursive changes

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every module below, then on this one; returns self."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Put this module and all below it into training mode (dropout drops, batch norm uses the batch)."""
        for module in self.modules():
            module.training = mode and not module._stays_in_eval
        return self

    def eval(self) -> Self:
        """`train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set requires_grad of every Parameter; False freezes the module."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of every Parameter, or fill them with zeros."""
        for _, parameter in self._named_tensors("_parameters", "", True, True):
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move parameters and buffers to a device, cast the floating-point ones to a dtype, or both; in place.

        `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`, or by keyword. Tied parameters stay tied.
        non_blocking and memory_format have no effect.
        Raises StateError, with nothing changed, if an optimizer holds parameters that would move.
        """
        device, dtype = destination("to", args, kwargs)
        move(self, device, dtype)
        for part in self.modules():  # of others, which move tensors that are no buffers
            if type(part)._apply is not Module._apply:
                part._apply(lambda t: t.to(device, dtype if t.is_floating_point() else None))
        return self

    def _get_name(self) -> str:
        return type(self).__name__

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """`to(device)`: PyTorch leaves the values of parameters and buffers undefined, here they stay."""
        return self.to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Replace the values of the Parameters and buffers by what `fn` makes of them.
        for name, tensor in [
            *self._named_tensors("_parameters", "", recurse, True),
            *self.named_buffers(recurse=recurse),
        ]:
            change(name, tensor, fn)
        return self

    def share_memory(self) -> Self:
        """Move parameters and buffers into memory that processes share (see `Tensor.share_memory_`). -> self."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.share_memory_()
        return self

    def half(self) -> Self:
        """`to(float16)`."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """`to(bfloat16)`."""
        return self.to(dtypes.bfloat16)

    def float(self) -> Self:
        """`to(float32)`."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """`to(float64)`."""
        return self.to(dtypes.float64)

    def cpu(self) -> Self:
        """`to("cpu")`."""
        return self.to("cpu")

    def cuda(self, device: int | str | None = None) -> Self:
        """`to("cuda")`, or to the GPU with that index."""
        return self.to("cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)

    # state

    def state_dict(
        self, *, destination: MutableMapping[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Any]:
        """Every Parameter and persistent buffer by its dotted name; the tensors share the module's memory.

        keep_vars=True returns the Parameters themselves, else detached tensors. The result of a submodule's
        `get_extra_state` is stored as `_extra_state` after its tensors. The dict's `_metadata` has the version of each
        module by its path, as in PyTorch.
        """
        result: Any = OrderedDict() if destination is None else destination
        where = f"{type(self).__name__}.state_dict"
        if destination is not None and not isinstance(destination, MutableMapping):
            raise DTypeError(where, "destination as a mapping", f"a {type(destination).__name__}")
        if type(prefix) is not str:
            raise DTypeError(where, "prefix as text", f"a {type(prefix).__name__}")
        keep_vars = switch(where, "keep_vars", keep_vars)
        if destination is None:
            result._metadata = OrderedDict()
        local_metadata = {"version": self._version}
        if hasattr(result, "_metadata"):
            result._metadata[prefix[:-1]] = local_metadata
        self.run_state_hooks("save_pre", prefix, keep_vars)
        self._save_to_state_dict(result, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=result, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        replaced = self.run_state_hooks("save", result, prefix, local_metadata)
        return result if replaced is None else replaced

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        # What of this module alone goes into the state_dict; a subclass may add to it.
        for name, value in state.own_entries(self, prefix):
            destination[name] = value.detach() if isinstance(value, Tensor) and not keep_vars else value

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: Any, unexpected_keys: Any,
        error_msgs: Any,
    ) -> None:  # fmt: skip
        # Called before the values of this module are read from `state_dict`, which an override may change. An override
        # that does not call this one has loaded itself what the module holds.
        state.leave_to_load(state_dict, prefix)

    def get_extra_state(self) -> Any:
        """Further state for `state_dict`; a subclass that has some defines this and `set_extra_state`."""
        raise StateError(type(self).__name__, "a method `get_extra_state`", "a class without one")

    def set_extra_state(self, state: Any) -> None:
        """Restore the result of `get_extra_state`; called by `load_state_dict`; subclasses define it."""
        raise StateError(type(self).__name__, "a method `set_extra_state`", "a class without one")

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> state.Keys:
        """Copy the values of `state_dict` in, cast to this module's dtypes; returns (missing_keys, unexpected_keys).

        strict=True accepts a missing key whose tensor is tied to one that is present. A submodule's `_extra_state` goes
        to its `set_extra_state` after all tensors are loaded. assign=True gives the module's tensors, which stay the
        same objects, the memory and dtypes of the state's (`p.data = ...`).
        Raises StateError, with nothing changed, that lists every missing and unexpected key (unless strict=False) and
        every tensor of a wrong shape; DTypeError for values that are not numeric arrays.
        """
        return state.load(self, state_dict, strict, assign)

    # repr

    def extra_repr(self) -> str:
        """The text between the brackets of the repr; subclasses define it."""
        return ""

    def __repr__(self) -> str:
        rows = [f"({name}): {_indented(repr(module))}" for name, module in self._modules.items()]
        extra = self.extra_repr()
        if not rows:
            return f"{type(self).__name__}({_indented(extra)})"
        return "\n  ".join([f"{type(self).__name__}(", *extra.splitlines(), *rows]) + "\n)"

    def _repr_html_(self) -> str:
        rows = [
            (name, type(module).__name__, _size(module)) for name, module in self._modules.items() if module is not None
        ]
        children = html.table(("module", "class", "parameters"), rows) if rows else ""
        title = f"{type(self).__name__}, parameters: {_size(self) or 'none'}"
        return html.heading(title) + children + html.folded("layers", repr(self))


check_methods(Module, but=["state_dict"])


class MemberError(ArgumentError, KeyError):
    """A name that a module cannot register or does not have; a KeyError too, which the methods of Mapping catch."""

    __str__ = Exception.__str__


def _uninitialized(where: str) -> StateError:
    return StateError(where, "an initialized Module", "one that is not", "call super().__init__() first in __init__")


def _size(module: Module) -> str:
    """How many parameters of which dtypes a module has, and their bytes."""
    counts: dict[str, int] = {}
    known = [each for each in module.parameters() if not isinstance(each, Uninitialized)]
    for parameter in known:
        counts[parameter.dtype.name] = counts.get(parameter.dtype.name, 0) + parameter.numel()
    size = f" ({bytes_in_words(sum(parameter.nbytes for parameter in known))})" if known else ""
    without_shape = len(list(module.parameters())) - len(known)
    words = [f"{count:,} in {dtype}" for dtype, count in counts.items()]
    words += [f"{without_shape} without a shape yet"] if without_shape else []
    return " and ".join(words) + size


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
