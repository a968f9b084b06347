"""autocast: applies a policy to a block of code."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from ... import backends
from ...base import public_dtypes
from ...base.context_decorator import decorate
from ...base.dtypes import DType
from ...base.errors import ArgumentError, DTypeError, StateError, switch
from ...base.scoped import Scope
from ..module_path import need_modules
from .regions import DEFAULT, OFF_EVERYWHERE, Region, change_of_policies, need_kind, region, scope, stack
from .table import Policy, low

_F = TypeVar("_F", bound=Callable[..., Any])


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether autocast is on for ops on `device_type`. Raises DeviceError unless it is "cpu" or "cuda"."""
    return _in_force(device_type) is not None


def get_autocast_dtype(device_type: str = "cpu") -> public_dtypes.dtype:
    """The 16-bit dtype that autocast uses on `device_type` here, or that device's default where autocast is off."""
    policy = _in_force(device_type)
    return public_dtypes.DTYPES[DEFAULT[need_kind(device_type)]] if policy is None else policy.dtype


def _in_force(device_type: str) -> Policy | None:
    entry = region()
    return None if entry is None else entry.policies[need_kind(device_type)]


@cache  # a region is entered in every step
def _policies(
    device_type: str | None, dtype: DType | None, policy: Policy | None, on: bool
) -> dict[str, Policy | None]:
    """By kind of device, the policy in a region that was given these; only of those that the region changes."""
    kinds = tuple(DEFAULT) if device_type is None else (need_kind(device_type),)
    if not on:
        return dict.fromkeys(kinds)
    return {kind: policy or Policy(DEFAULT[kind] if dtype is None else dtype) for kind in kinds}


class autocast:
    """Context manager and decorator under which each op runs in the dtype that a policy chooses for it.

    device_type: "cpu" or "cuda" applies it to tensors on that device alone; None to all. dtype: float16 or bfloat16; by
    default bfloat16 for tensors on the CPU and float16 on a GPU. enabled=False turns autocast off in the block.
    cache_enabled=False casts a weight again at each use. policy: a Policy, instead of a dtype.
    Decorates functions, generators and coroutines. Reusable, re-entrant, safe in threads and in asyncio tasks.
    Raises DTypeError for another dtype, DeviceError for a device type that is unknown or not available here, and at
    the end ConfigError if a model was called in the block and a path in the policy's `modules` is not one of its own.
    """

    def __init__(
        self,
        device_type: str | None = None,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
        *,
        policy: Policy | None = None,
    ):
        enabled = switch("autocast", "enabled", enabled)
        if device_type is not None and not isinstance(device_type, str):
            cure = "write autocast(dtype=..., enabled=...)"
            raise DTypeError("autocast", "device_type as 'cpu', 'cuda' or None", repr(device_type), cure)
        if policy is not None and (dtype is not None or not isinstance(policy, Policy)):
            raise ArgumentError("autocast", "a Policy, and no dtype beside it", f"policy={policy!r}, dtype={dtype!r}")
        given = low(dtype, "Policy") if enabled and dtype is not None else None
        self._policies = _policies(device_type, given, policy, enabled)
        if device_type is not None and enabled:
            backends.get(device_type)
        self._cache = cache_enabled is None or switch("autocast", "cache_enabled", cache_enabled)
        self._scopes: list[Scope[Region | None]] = []  # of the open blocks, in all contexts

    def __enter__(self) -> autocast:
        below, change, own = scope().value, change_of_policies.scope().value, self._policies
        if change is not None:
            own = {kind: policy and change(policy) for kind, policy in own.items()}
        policies = {**(OFF_EVERYWHERE if below is None else below.policies), **own}
        unmatched: dict[str, set[str]] = {}
        for policy in own.values():
            for pattern, _ in () if policy is None else policy.modules:
                unmatched[pattern] = set()
        self._scopes.append(stack.enter(Region(self, policies, tuple(policies.values()), self._cache, unmatched)))
        return self

    def __exit__(self, *error: object) -> None:
        last, found = scope().value, stack.innermost(self._scopes, error)
        if found is None:
            raise StateError("autocast", "an open region to leave", "none that this context opened")
        self._scopes.remove(found)
        stack.leave_in_any_order(found)
        if last is not None and last.owner is self and not any(error):
            for pattern, paths in last.unmatched.items():
                if paths:  # a region in which no model was called has nothing to match
                    need_modules([pattern], sorted(paths))

    def __call__(self, function: _F) -> _F:
        return decorate(lambda: self, function, "autocast()(function)")
