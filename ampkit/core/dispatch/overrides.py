"""Classes that take over the functions they are given to, by PyTorch's protocol `__torch_function__`.

A call that is given an object of such a class, or that runs within a TorchFunctionMode, becomes a call of the method
`__torch_function__(func, types, args, kwargs)`, which may call `func` again. Ops and functions look for such objects by
the types of their arguments, in a set of types that have no say: a tensor of ampkit's own classes costs one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...base.missing_names import known
from ...base.scoped import Scope, ScopedVariable

# Types of tensors whose functions nobody takes over; none while a mode is in force, which takes over all.
PLAIN: set[type] = set()
# Types of arguments that are never asked.
NUMBERS = {float, int, bool, type(None)}
_plain: set[type] = set()
_enabled = ScopedVariable("ampkit.torch_function", True)
_modes: ScopedVariable[tuple[Any, ...]] = ScopedVariable("ampkit.torch_function_modes", ())
in_force: list[Any] = []  # modes that are open, in any thread


class Overridden(Exception):  # noqa: N818
    """What binding the arguments of a call raises where another class takes over the call."""


def disabled(*args: Any, **kwargs: Any) -> Any:
    """The `__torch_function__` of a class of tensors that takes over nothing."""
    return NotImplemented


def register(cls: Any, tensor: Any) -> None:
    """Note a class of tensors: `tensor` itself, or a subclass."""
    if cls is tensor or cls.__torch_function__ is disabled:
        _plain.add(cls)
        if not in_force:
            PLAIN.add(cls)
    elif all(base in _plain or not issubclass(base, tensor) for base in cls.__mro__[1:]):
        _take_over_methods(cls, tensor)


def takes_over(cls: type) -> bool:
    """Whether a class of tensors takes over functions."""
    return cls not in _plain


def reads(item: Any) -> bool:
    """Whether an argument whose type is not PLAIN is read as a tensor. Raises Overridden where its class takes over."""
    kind = type(item)
    tensor = hasattr(kind, "__torch_function__") and hasattr(kind, "_tape_edge")
    if (in_force and tensor and _modes.scope().value) or overrides(item):
        raise Overridden
    return tensor


def overrides(item: Any) -> bool:
    """Whether the class of an argument takes over the functions that it is given to."""
    kind = type(item)
    if kind in _plain or kind in NUMBERS or not hasattr(kind, "__torch_function__") or _of_pytorch(kind):
        return False
    return _enabled.scope().value


def _of_pytorch(kind: type) -> bool:
    # Whether a class is PyTorch's own Tensor, or a subclass: its method would only call the function again.
    return any(base.__module__ == "torch._C" for base in kind.__mro__)


def is_pytorchs(func: Any) -> bool:
    """Whether a function is PyTorch's own, which would only ask the class of its argument again."""
    places = func, getattr(func, "__self__", None), getattr(func, "__objclass__", None)
    return any(str(getattr(place, "__module__", None)).partition(".")[0] == "torch" for place in places)


def has_overrides(items: Iterable[Any]) -> bool:
    """Whether a mode in force, or the class of one of the arguments, takes over the call of a function with them."""
    return bool(in_force and _modes.scope().value) or any(map(overrides, items))


def flat(values: Iterable[Any]) -> Iterator[Any]:
    """The items of lists and tuples within each other, in order."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


def of_first(item: Any) -> bool:
    """Whether a call whose first argument is `item`, or a list of such, is taken over."""
    if in_force and _modes.scope().value:
        return True
    return any(map(overrides, item[:8])) if isinstance(item, (list, tuple)) else overrides(item)


def call(function: Callable[..., Any], args: Any, kwargs: dict[str, Any], relevant: Any = None) -> Any:
    """Call the `__torch_function__` of the innermost mode, else of the arguments, those of subclasses first.

    relevant: the arguments that are asked, by default all. Raises TypeError where all of them decline.
    """
    found: list[Any] = []
    for item in flat([*args, *kwargs.values()] if relevant is None else relevant):
        if overrides(item) and all(type(item) is not type(other) for other in found):
            before = (i for i, other in enumerate(found) if issubclass(type(item), type(other)))
            found.insert(next(before, len(found)), item)
    types = tuple([type(item) for item in found])
    modes = _modes.scope().value
    if modes:
        with _modes.holding(modes[:-1]):
            result = modes[-1].__torch_function__(function, types, args, kwargs)
        if result is not NotImplemented:
            return result
    for item in found:
        result = item.__torch_function__(function, types, args, kwargs)
        if result is not NotImplemented:
            return result
    if not found and not modes:
        return function(*args, **kwargs)
    names = ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in types)
    name = getattr(function, "__name__", repr(function))
    raise TypeError(f"{name}: no class of its arguments implements it by __torch_function__: {names}")


class DisableTorchFunctionSubclass:
    """Within the block no class of tensors takes over functions."""

    _value = False

    def __enter__(self) -> None:
        self._scope = _enabled.enter(self._value)

    def __exit__(self, *error: object) -> None:
        _enabled.leave(self._scope)


class EnableTorchFunction(DisableTorchFunctionSubclass):
    """Within the block classes of tensors take over functions, whatever is around it."""

    _value = True


class DisableTorchFunction(DisableTorchFunctionSubclass):
    """Within the block neither a class of tensors nor a mode takes over functions."""

    def __enter__(self) -> None:
        super().__enter__()
        self._modes = _modes.enter(())

    def __exit__(self, *error: object) -> None:
        _modes.leave(self._modes)
        super().__exit__(*error)


def is_enabled() -> bool:
    """Whether classes of tensors take over functions here."""
    return _enabled.scope().value


class TorchFunctionMode:
    """Within the block, calls of ampkit's functions become calls of `__torch_function__`, which a subclass defines.

    Its own calls of functions go to the mode around it, if there is one. Methods come as the functions that they call.
    """

    _scopes: list[Scope[Any]]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{type(self).__name__} needs a method __torch_function__")

    def __enter__(self) -> Any:
        self.__dict__.setdefault("_scopes", []).append(_modes.enter((*_modes.scope().value, self)))
        in_force.append(self)
        PLAIN.clear()
        return self

    def __exit__(self, *error: object) -> None:
        _modes.leave(self._scopes.pop())
        in_force.remove(self)
        if not in_force:
            PLAIN.update(_plain)


def modes() -> tuple[Any, ...]:
    """The modes in force here, the innermost last."""
    return _modes.scope().value


# The operators, which PyTorch hands over as the methods that they are, or else by their own names.
_METHODS = {
    "add": "add", "radd": "add", "iadd": "add_", "sub": "sub", "isub": "sub_", "mul": "mul", "rmul": "mul",
    "imul": "mul_", "truediv": "div", "itruediv": "div_", "matmul": "matmul", "neg": "neg", "abs": "abs",
}  # fmt: skip
_OPERATORS = (
    "rsub rtruediv floordiv rfloordiv ifloordiv mod rmod imod pow rpow ipow rmatmul and rand iand or ror ior xor rxor "
    "ixor lshift rlshift ilshift rshift rrshift irshift pos invert eq ne lt le gt ge getitem setitem"
)
_NOT_TAKEN = {"as_subclass", "requires_grad", "register_hook", "size", "dim", "numel", "stride", "is_floating_point"}


def _take_over_methods(cls: type, tensor: type) -> None:
    """Let the methods of `tensor` that a subclass does not define itself go through its `__torch_function__`."""
    methods = {name: name for name in known()["torch.Tensor"] if name not in _NOT_TAKEN}
    methods |= {f"__{name}__": f"__{name}__" for name in _OPERATORS.split()}
    methods |= {f"__{name}__": method for name, method in _METHODS.items()}
    for name, source in methods.items():
        method = getattr(tensor, source, None)
        if name not in vars(cls) and callable(method) and hasattr(method, "__get__"):
            setattr(cls, name, _taken_over(method))
    if "data" not in vars(cls):
        data: Any = vars(tensor)["data"]
        setattr(cls, "data", property(lambda self: _get(data, self), data.fset, doc=data.__doc__))  # noqa: B010 - the type checker knows no such attribute


def _taken_over(method: Any) -> Callable[..., Any]:
    def taken_over(self: Any, *args: Any, **kwargs: Any) -> Any:
        if has_overrides((self, *args)):
            return call(method, (self, *args), kwargs)
        return method(self, *args, **kwargs)

    taken_over.__name__, taken_over.__qualname__ = method.__name__, getattr(method, "__qualname__", method.__name__)
    taken_over.__doc__ = method.__doc__
    return taken_over


def _get(given: Any, tensor: Any) -> Any:
    return call(given.__get__, (tensor,), {}) if has_overrides((tensor,)) else given.fget(tensor)
