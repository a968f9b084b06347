"""Changes of a running step, for trials: an op's arguments, its constants, the policies of regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from ...base.dtypes import LOW
from ...core.op import Op, ops, rerouted
from ...core.policy import Policy, changed_policies
from ...core.tensor import Tensor
from ..origin import caller
from .constants import Changed


def policies(
    dtype: str = "", modules: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None
) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which every region has these changes of its policy."""

    def change(policy: Policy) -> Policy:
        if policy.low_dtype not in LOW:  # in a module that runs in float32
            return policy
        return with_changes(policy, dtype, modules, overrides)

    return partial(changed_policies, change)


def with_changes(
    policy: Policy,
    dtype: str = "",
    modules: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Policy:
    """`policy` with another dtype, or with more modules and overrides."""
    made = Policy.fast if policy.preset else Policy
    paths = {**dict(policy.modules), **(modules or {})}
    categories = {name: category.value for name, category in policy.overrides} | dict(overrides or {})
    return made(dtype or policy.dtype.name, recipe=policy.recipe, modules=paths, **categories)


def inputs(name: str, change: Callable[..., Any], place: int = 0) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which the tensor at `place` among the arguments of the op `name` is change(tensor)."""

    def through(call: Any, *args: Any, **kwargs: Any) -> Any:
        given = [i for i, item in enumerate(args) if isinstance(item, Tensor) and item.is_floating_point()]
        at = min(place, len(given) - 1)
        if at < 0:
            key = next((k for k, item in kwargs.items() if isinstance(item, Tensor) and item.is_floating_point()), None)
            return call(*args, **kwargs) if key is None else call(*args, **{**kwargs, key: change(kwargs[key])})
        return call(*[change(item) if i == given[at] else item for i, item in enumerate(args)], **kwargs)

    return lambda: rerouted_flat(ops[name], through)


def calls(name: str, through: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which a call of the op `name` is through(call, *args, **kwargs)."""
    return lambda: rerouted_flat(ops[name], through)


@contextmanager
def rerouted_flat(op: Op, through: Callable[..., Any]) -> Iterator[None]:
    """`rerouted`, but for the calls that `through` makes itself."""
    inside = False

    def once(call: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return call(*args, **kwargs)
        inside = True
        try:
            return through(call, *args, **kwargs)
        finally:
            inside = False

    with rerouted(op, once):
        yield


def constant(changed: Changed, value: float) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which the program has the constant `value` instead of the one that changed."""

    def replaced(item: Any) -> Any:
        if item is changed.held and item is not None:
            return Tensor(item.array * 0 + item.array.dtype.type(value))
        same = type(item) in (int, float) and float(item) == changed.number
        return value if same else item

    return _each_argument(changed.op, replaced, changed.where)


def in_float32(op: Op, where: str = "") -> Callable[[], AbstractContextManager[Any]]:
    """A context in which the 16-bit arguments of the op are cast to float32 before it."""

    def wide(item: Any) -> Any:
        return item.float() if isinstance(item, Tensor) and item.array.dtype in LOW else item

    return _each_argument(op, wide, where)


def _each_argument(op: Op, change: Callable[[Any], Any], where: str) -> Callable[[], AbstractContextManager[Any]]:
    """A context in which each argument of the op is change(argument), in calls at the line `where`, or in all."""

    def through(call: Any, *args: Any, **kwargs: Any) -> Any:
        if where and caller() != where:
            return call(*args, **kwargs)
        return call(*map(change, args), **{key: change(item) for key, item in kwargs.items()})

    return lambda: rerouted_flat(op, through)


def together(*contexts: Callable[[], AbstractContextManager[Any]] | None) -> Callable[[], AbstractContextManager[Any]]:
    """A context that enters all of `contexts`."""

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for each in contexts:
                if each is not None:
                    stack.enter_context(each())
            yield

    return entered
