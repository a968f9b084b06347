"""`torch.ops`: operators by name, and how a call chooses among the kernels that are registered for one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ....autograd import Function
from ....base.missing_names import MissingNameError, missing_name
from ....core.autograd.grad_mode import is_grad_enabled
from ....core.dispatch.overrides import flat
from ....core.policy import is_autocast_enabled
from ....core.tensor import Tensor
from . import schema as schemas

# What a kernel is registered for, by PyTorch's names. Shapes are those of results, so that kernels of Meta are not run.
_ANY_DEVICE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "BackendSelect", "Python", "")

_defined: dict[str, Operator] = {}
compiled: set[str] = (
    set()
)  # namespaces of libraries that are loaded: operators without a kernel raise as they are called


class Operator:
    """An operator `namespace::name` and the kernels that are registered for it.

    A kernel is recorded as it runs, or is one node once `register_autograd` gave its backward.
    """

    def __init__(self, name: str, schema: schemas.Schema | None = None):
        self._qualname, self.schema = name, schema
        self._name = self.__name__ = name
        self.namespace = name.partition("::")[0]
        self.kernels: dict[str, Callable[..., Any]] = {}
        self.differentiable = False  # its kernels are recorded: another gradient is not taken
        self._node: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        positional, by_name = (list(args), kwargs) if self.schema is None else self.schema.bind(args, kwargs)
        tensors = [value for value in flat([*positional, *by_name.values()]) if isinstance(value, Tensor)]
        kind = tensors[0].device.type if tensors else "cpu"
        if is_autocast_enabled(kind):
            kernel = self._kernel(f"Autocast{kind.upper()}", "Autocast")
            if kernel is not None:
                return kernel(*positional, **by_name)
        if is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            kernel = self._kernel(f"Autograd{kind.upper()}", "Autograd")
            if kernel is not None:
                return kernel(*positional, **by_name)
            if self._node is not None:
                return self._node(*positional, by_name)
        return self._run(kind, positional, by_name)

    def _kernel(self, *keys: str) -> Callable[..., Any] | None:
        return next((self.kernels[key] for key in keys if key in self.kernels), None)

    def _run(self, kind: str, args: Any, kwargs: Any) -> Any:
        kernel = self._kernel(kind.upper(), *_ANY_DEVICE)
        if kernel is None:
            kernel = self._kernel("Autograd")
        if kernel is None:
            space, _, name = self._qualname.partition("::")
            cure = f"register one: torch.library.impl({self._qualname!r}, {kind!r})"
            raise missing_name(f"torch.ops.{space}", f"{name}, whose kernel is none of Python", cure)
        return kernel(*args, **kwargs)

    def differentiate(self, backward: Callable[..., Any], setup_context: Callable[..., Any] | None) -> None:
        """Have `backward(ctx, *gradients)` compute the gradients of all arguments."""

        if self.differentiable:
            return

        def forward(ctx: Any, *given: Any) -> Any:
            *args, by_name = given
            tensors = [value for value in flat(args) if isinstance(value, Tensor)]
            output = self._run(tensors[0].device.type if tensors else "cpu", args, by_name)
            if setup_context is not None:
                if by_name:
                    setup_context(ctx=ctx, inputs=tuple(args), keyword_only_inputs=by_name, output=output)
                else:
                    setup_context(ctx, tuple(args), output)
            return output

        def all_gradients(ctx: Any, *gradients: Any) -> Any:
            found = backward(ctx, *gradients)
            return (*found, None) if isinstance(found, tuple) else (found, None)

        names = {"forward": staticmethod(forward), "backward": staticmethod(all_gradients)}
        kind: Any = type(self._qualname.rpartition("::")[2], (Function,), names)
        self._node = kind.apply

    def name(self) -> str:
        """`namespace::name`."""
        return self._qualname

    def overloads(self) -> list[str]:
        """The names of its overloads, which are all the same operator: ["default"]."""
        return ["default"]

    @property
    def op(self) -> Operator:
        """Itself."""
        return self

    overloadpacket = op

    def __getattr__(self, name: str) -> Any:
        # An overload is of the same kernels, which see by their arguments what they were given.
        if name.startswith("_"):
            raise AttributeError(f"operator {self._qualname} has no attribute {name!r}", name=name, obj=self)
        return self

    def __deepcopy__(self, memo: Any) -> Operator:
        return self  # there is one of each name

    def __repr__(self) -> str:
        return f"<operator {self._qualname}>"


def operator(name: str) -> Operator:
    """The operator of a name, a new one without kernels where there is none: registrations may come in any order."""
    if name not in _defined:
        _defined[name] = Operator(name)
    return _defined[name]


def _of_pytorch(name: str) -> Operator:
    """PyTorch's own operator of a name: the function or method of that name, once it is called."""
    found = operator(f"aten::{name}")
    spaces = [import_module("torch"), import_module("torch.nn.functional"), Tensor]
    for space in spaces if not found.kernels else ():
        function = getattr(space, name, None)
        if callable(function) and not isinstance(function, type):
            found.kernels[""] = function
            break
    return found


class _Namespace:
    """`torch.ops.namespace`."""

    def __init__(self, name: str):
        self._name = self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        path = f"{self._name}::{name}"
        if self._name == "aten" and not name.startswith("__"):
            return _of_pytorch(name)
        if self._name in compiled and not name.startswith("__"):
            return operator(path)
        found = _defined.get(path)
        if (found is None or "" not in found.kernels) and self._loads(name):
            return operator(path)
        if found is None or not (found.kernels or found.schema):
            cure = f'compiled code for PyTorch has none here: torch.library.custom_op("{path}", ...) of Python code'
            raise MissingNameError(f"no operator {path}", cure=cure)
        return found

    def _loads(self, name: str) -> bool:
        from .compiled import of_stable_abi

        return not name.startswith("__") and of_stable_abi(self._name, name)


class _Operators:
    """`torch.ops`: namespaces of operators."""

    loaded_libraries: set[str] = set()  # noqa: RUF012

    def load_library(self, path: Any) -> None:
        """Define those of a library's operators that ampkit has (see compiled.py), by the names that it declares.

        Raises OSError for a file that is not there, or that has no such operator.
        """
        from .compiled import load

        compiled.update(load(path))
        self.loaded_libraries.add(str(path))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"torch.ops has no attribute {name!r}", name=name, obj=self)
        self.__dict__[name] = _Namespace(name)
        return self.__dict__[name]


ops = _Operators()
