"""The extent of an `autocast`: which policies are in force here, and in which module of a model."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Token
from functools import lru_cache
from typing import Any, NamedTuple

from ...base.dtypes import bfloat16, float16
from ...base.errors import ConfigError, DeviceError
from ...base.scoped import Scope, ScopedVariable
from .. import module_path
from ..module_path import ModuleCall, match_once, matches
from .recipe import QuantizationRecipe
from .table import Policy

DEFAULT = {"cpu": bfloat16, "cuda": float16}
OFF_EVERYWHERE: dict[str, Policy | None] = dict.fromkeys(DEFAULT)


def need_kind(device_type: Any) -> str:
    """Return `device_type`. Raises DeviceError for anything but "cpu" or "cuda"."""
    if not isinstance(device_type, str) or device_type not in DEFAULT:
        raise DeviceError("autocast", "device_type 'cpu' or 'cuda'", repr(device_type))
    return str(device_type)


class Region(NamedTuple):
    """What `autocast` set: the value of its scope, see base/scoped.py."""

    owner: object  # the `autocast` that entered it
    policies: dict[str, Policy | None]  # by backend name; None where autocast is off
    plan_key: tuple[Policy | None, ...]  # the same policies, hashable: part of the key of an op's cached plan
    cache: bool  # whether 16-bit copies of weights are cached
    # By pattern of a policy's `modules` that has matched none so far: the paths of the modules of the models called.
    unmatched: dict[str, set[str]]

    @property
    def active(self) -> list[Policy]:
        """The policies of the devices for which autocast is on."""
        return [policy for policy in self.plan_key if policy is not None]


stack: ScopedVariable[Region | None] = ScopedVariable("ampkit.autocast", None)
scope = stack.scope  # scope().value: the innermost region
_OFF: Scope[Region | None] = Scope(None)


def region() -> Region | None:
    """The innermost autocast region, or None outside of one."""
    return scope().value


def enter(state: Region | None) -> Token[Scope[Region | None]]:
    """Replace the whole stack by `state` (the backward pass uses None, autocast off). Returns the token for `leave`."""
    return stack.replace(_OFF if state is None else Scope(state))


def leave(token: Token[Scope[Region | None]]) -> None:
    """Restore the stack that `enter` replaced."""
    stack.restore(token)


def on_alone(entry: Region | None, device_type: str) -> Region | None:
    """A region with the policy of `entry` for `device_type`, and autocast off for other devices."""
    if entry is None:
        return None
    policies = {**OFF_EVERYWHERE, device_type: entry.policies[need_kind(device_type)]}
    return Region(entry.owner, policies, tuple(policies.values()), entry.cache, entry.unmatched)


change_of_policies: ScopedVariable[Callable[[Policy], Policy] | None] = ScopedVariable("ampkit.changed_policies", None)


@contextmanager
def changed_policies(change: Callable[[Policy], Policy]) -> Iterator[None]:
    """Within the block, regions that are entered apply change(policy) instead of their policy, as does the present one.

    For tools that try what another policy would do to code that enters its regions itself.
    """
    entry, changed = region(), change_of_policies.enter(change)
    policies = {} if entry is None else {kind: each and change(each) for kind, each in entry.policies.items()}
    now = None if entry is None else entry._replace(policies=policies, plan_key=tuple(policies.values()))
    region_token = enter(now)
    try:
        yield
    finally:
        leave(region_token)
        change_of_policies.leave(changed)


def module_running(call: ModuleCall) -> AbstractContextManager[None]:
    """The context in which the module of `call` runs: its path is the current one, and policies apply to it."""
    entry = scope().value
    for policy in () if entry is None else entry.plan_key:
        if policy is not None and policy.modules:
            return _RunningByPolicy(call, entry)
    return module_path.running(call)


class _RunningByPolicy(module_path.running):
    """`running` inside of a region with the policies that those of `entry` are in the module. A class, as that is."""

    __slots__ = ("_entry", "_outer")

    def __init__(self, call: ModuleCall, entry: Any):
        super().__init__(call)
        self._entry: Region = entry

    def __enter__(self) -> None:
        call, entry = self._call, self._entry
        assert call is not None
        if entry.unmatched:
            before = [*entry.unmatched]
            match_once(entry.unmatched, call)
            if matched := {*before} - {*entry.unmatched}:
                need_products(entry.active, matched, call.model)
        inside = _policies_in_module(entry.plan_key, call.path)
        policies = dict(zip(entry.policies, inside, strict=True))
        self._outer = enter(Region(entry.owner, policies, inside, entry.cache, entry.unmatched))
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        leave(self._outer)


def need_products(policies: Iterable[Policy], patterns: Container[str], model: Any) -> None:
    """Raise ConfigError where one of `patterns` gives a recipe to modules of `model` without a weight matrix.

    A recipe would do nothing with them, as with norms.
    """
    for pattern, found in [entry for policy in policies for entry in policy.modules]:
        if pattern not in patterns or not isinstance(found, QuantizationRecipe):
            continue
        matched = [module for path, module in model.named_modules() if path and matches(pattern, path)]
        if not any(weight.ndim > 1 for each in matched for weight in each.parameters()):
            needs = f"modules with a weight matrix, whose products {found.name} quantizes"
            raise ConfigError(f"Policy, modules, {pattern}", needs, f"a {type(matched[0]).__name__}", "leave it out")


@lru_cache(10_000)  # a module is called in every step
def _policies_in_module(policies: tuple[Policy | None, ...], path: str) -> tuple[Policy | None, ...]:
    return tuple([policy and policy.in_module(path) for policy in policies])
