"""`torch.library`: operators of one's own, by name, with a gradient where one is registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.policy import autocast
from ....core.tensor import Tensor
from ...refused import refused
from . import schema as schemas
from .operators import Operator, _defined, operator

__all__ = [
    "CustomOpDef", "Library", "_scoped_library", "custom_op", "define", "fallthrough_kernel", "get_ctx", "impl",
    "impl_abstract", "infer_schema", "opcheck", "register_autocast", "register_autograd", "register_fake",
    "register_kernel", "register_torch_dispatch", "register_vmap", "triton_op", "wrap_triton",
]  # fmt: skip

_EAGER = "shapes are those of the results: leave it out"
get_ctx, opcheck = refused("torch.library.get_ctx", _EAGER), refused("torch.library.opcheck", _EAGER)
wrap_triton = refused("torch.library.wrap_triton", "an op with kernels of its own: docs/add-an-op.md")
Fn = Callable[..., Any]


class CustomOpDef(Operator):
    """An operator of a Python function."""

    def __init__(self, name: str, function: Fn):
        super().__init__(name, schemas.of_function(name, function))
        self.kernels[""] = function
        _defined[name] = self

    def register_fake(self, fn: Fn) -> Fn:
        """`fn` as it is: shapes are those of the results."""
        return fn

    def register_kernel(self, device_types: Any, func: Fn | None = None) -> Any:
        """Take `func` in the place of the function, on devices of the types."""
        return _take(self, device_types, func)

    def register_autograd(self, backward: Fn, *, setup_context: Any = None) -> None:
        """Have `backward(ctx, *gradients)` compute the gradients of all arguments."""
        self.differentiate(backward, setup_context)

    def register_vmap(self, func: Fn | None = None) -> Any:
        """`func` as it is."""
        return func if func is not None else lambda found: found

    def register_autocast(self, device_type: str, cast_inputs: Any) -> None:
        """Under autocast, cast floating-point tensors to a dtype, and run without autocast."""
        register_autocast(self, device_type, cast_inputs)


def custom_op(name: str, fn: Fn | None = None, /, **options: Any) -> Any:
    """An operator `namespace::name` of a function; `options` change nothing."""
    return CustomOpDef(name, fn) if fn is not None else lambda function: CustomOpDef(name, function)


triton_op = custom_op


def _of(op: Any) -> Operator:
    return operator(op) if isinstance(op, str) else op


def _keys(types: Any) -> list[str]:
    """Keys of kernels for device types or keys of PyTorch's dispatcher."""
    if types is None or types == "default":
        return [""]
    given = [types] if isinstance(types, str) else list(types)
    return [each.upper() if each.islower() else str(each) for each in given]


def _take(op: Any, types: Any, func: Fn | None) -> Any:
    def take(fn: Fn) -> Fn:
        _of(op).kernels.update(dict.fromkeys(_keys(types), fn))
        return fn

    return take if func is None else take(func)


class Library:
    """Operators of a namespace: `kind` "DEF" defines them, "IMPL" and "FRAGMENT" add to them."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = ""):
        self.ns, self.kind, self.dispatch_key = ns, kind, str(dispatch_key)
        self._names: list[str] = []

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Define the operator of a schema, `name(Tensor x) -> Tensor`; returns its name."""
        found = schemas.parse(schema)
        name = found.name.rpartition("::")[2]
        self._names.append(f"{self.ns}::{name}")
        operator(self._names[-1]).schema = found._replace(name=self._names[-1])
        return name

    def impl(self, op_name: Any, fn: Fn, dispatch_key: str = "", *, with_keyset: bool = False,
             allow_override: bool = False) -> None:  # fmt: skip
        """Register a kernel of an operator, for a key of PyTorch's dispatcher: "CPU", "Autograd", "AutocastCUDA"."""
        key = str(dispatch_key or self.dispatch_key)
        if fn is not fallthrough_kernel:
            self._op(op_name).kernels[key] = fn

    def _op(self, name: Any) -> Operator:
        short = name.name() if isinstance(name, Operator) else str(name)
        short = short.rpartition("::")[2].partition(".")[0]
        return operator(f"{self.ns}::{short}")

    def fallback(self, fn: Fn, dispatch_key: str = "", *, with_keyset: bool = False) -> None:
        """Does nothing: a kernel of all operators at once."""

    def _register_fake(self, op_name: Any, fn: Fn, *args: Any, **options: Any) -> None:
        """Does nothing: shapes are those of the results."""

    def _destroy(self) -> None:
        for name in self._names:
            _defined.pop(name, None)
        self._names.clear()


class _scoped_library:
    """A Library whose operators are gone after the block."""

    def __init__(self, *args: Any, **options: Any):
        self._library = Library(*args, **options)

    def __enter__(self) -> Library:
        return self._library

    def __exit__(self, *error: object) -> None:
        self._library._destroy()


def fallthrough_kernel(*args: Any, **kwargs: Any) -> Any:
    """For `Library.impl`: no kernel for this key."""
    raise NotImplementedError("fallthrough_kernel is no kernel")


def define(qualname: str, schema: Any, *, lib: Library | None = None, tags: Any = ()) -> Any:
    """Define the operator `namespace::name` of a schema without its name, `(Tensor x) -> Tensor`."""
    space, _, name = qualname.partition("::")
    (lib or Library(space, "FRAGMENT")).define(f"{name}{schema}", tags=tags)


def impl(qualname: Any, types: Any, func: Any = None, *, lib: Library | None = None) -> Any:
    """Register a kernel of an operator for device types, or "default" for all.

    As `impl(library, name, key)` a decorator, as in former versions.
    """
    if isinstance(qualname, Library):
        library, name, key = qualname, types, func or ""

        def take(fn: Fn) -> Fn:
            library.impl(name, fn, key)
            return fn

        return take
    return _take(qualname, types, func)


def register_fake(op: Any, func: Fn | None = None, /, **options: Any) -> Any:
    """`func` as it is, of an operator that may not be defined yet: shapes are those of the results."""
    return func if func is not None else lambda found: found


impl_abstract = register_fake


def register_kernel(op: Any, device_types: Any, func: Fn | None = None, /, **options: Any) -> Any:
    """See CustomOpDef."""
    return _take(op, device_types, func)


def register_autograd(op: Any, backward: Fn, /, *, setup_context: Any = None, **options: Any) -> None:
    """See CustomOpDef."""
    _of(op).differentiate(backward, setup_context)


def register_vmap(op: Any, func: Fn | None = None, /, **options: Any) -> Any:
    """See CustomOpDef."""
    return func if func is not None else lambda found: found


def register_torch_dispatch(op: Any, torch_dispatch_class: Any, func: Fn | None = None, /, **options: Any) -> Any:
    """`func` as it is: no class of ampkit's tensors takes over the dispatch of kernels."""
    return func if func is not None else lambda found: found


def register_autocast(op: Any, device_type: str, cast_inputs: Any, /, **options: Any) -> None:
    """See CustomOpDef."""
    found = _of(op)

    def cast(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(cast(each) for each in value)
        real = isinstance(value, Tensor) and value.dtype.is_floating_point and value.dtype.itemsize < 8
        return value.to(cast_inputs) if real else value

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}
        with autocast(device_type, enabled=False):
            return found(*args, **kwargs)

    found.kernels[f"Autocast{device_type.upper()}"] = run


def infer_schema(prototype_function: Fn, /, *, mutates_args: Any = (), op_name: str | None = None) -> str:
    """The schema of a function, `(x, n)`: types are those of the values."""
    return schemas.of_function("", prototype_function).text
