"""Cast, Policy and autocast: which dtype each op runs in.

Five categories say how an op treats its inputs; a policy is a frozen value that maps every op to one of them for one
16-bit format; `autocast` puts a policy in force for a block of code.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextvars import ContextVar, Token
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeVar

from .. import backends
from ..base.dtypes import LOW, DType, bfloat16, float16, parse
from ..base.errors import ArgumentError, ConfigError, DeviceError, DTypeError, StateError, switch
from .context_decorator import decorate

_F = TypeVar("_F", bound=Callable[..., Any])


class Cast(Enum):
    """How an op treats the dtypes of its inputs inside an autocast region."""

    LOW = "low"  # the policy's 16-bit format in and out; exact products, float32 sums, one rounding
    FP32 = "float32"  # inputs as they come, float32 inside and out
    WIDEST = "widest"  # operands agree on the widest dtype among them
    KEEP = "keep"  # inputs as they come, the answer in the first input's dtype
    BANNED = "banned"  # refused inside a region, with the cure


# Every op's category, written by @op as the op is defined: the policy table has no other source.
categories: dict[str, Cast] = {}
# What to do instead of a banned op, by its name.
cures: dict[str, str] = {}

_FAST = frozenset({"layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax", "softplus"})


class Policy:
    """The dtype table of mixed precision: `Policy("float16", softmax="low", gelu="float32")`.

    dtype: float16 or bfloat16, the format of LOW ops. Overrides give an op another category by its word: low, float32,
    widest, keep or banned. Equal policies are one object, so they compare by identity; the repr is the spelling.
    `Policy.fast(dtype)` stores the outputs of norms and softmax in 16 bits, with float32 inside.
    Raises DTypeError for another dtype, ConfigError for an unknown op or word.
    """

    __slots__ = ("dtype", "overrides", "preset")
    dtype: DType
    overrides: tuple[tuple[str, Cast], ...]
    preset: str
    _known: ClassVar[dict[tuple[Any, ...], Policy]] = {}

    def __new__(cls, dtype: Any = "float16", /, **overrides: str) -> Policy:
        return cls._intern("", dtype, overrides)

    @classmethod
    def fast(cls, dtype: Any = "float16", /, **overrides: str) -> Policy:
        """The preset that stores norms and softmax in 16 bits: less memory and fewer casts, float32 arithmetic."""
        return cls._intern(".fast", dtype, overrides)

    @classmethod
    def _intern(cls, preset: str, dtype: Any, overrides: dict[str, str]) -> Policy:
        found = tuple(sorted((name, _category(name, word)) for name, word in overrides.items()))
        key = (preset, low(dtype, "Policy"), found)
        if key not in cls._known:
            self = object.__new__(cls)
            for name, value in zip(("preset", "dtype", "overrides"), key, strict=True):
                object.__setattr__(self, name, value)
            cls._known[key] = self
        return cls._known[key]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Policy is frozen: make another one")

    def category(self, op: str) -> Cast:
        """The category of the op named `op` under this policy."""
        for name, category in self.overrides:
            if name == op:
                return category
        return Cast.LOW if self.preset == ".fast" and op in _FAST else categories[op]

    def __repr__(self) -> str:
        words = "".join(f', {name}="{category.value}"' for name, category in self.overrides)
        return f'Policy{self.preset}("{self.dtype.name}"{words})'

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.preset, self.dtype.name, {name: category.value for name, category in self.overrides})


def _restore(preset: str, dtype: str, overrides: dict[str, str]) -> Policy:
    return Policy._intern(preset, dtype, overrides)


def low(dtype: Any, where: str) -> DType:
    """The 16-bit format that `dtype` names. Raises DTypeError for another, and says how to turn autocast off."""
    found = parse(dtype)
    if found not in LOW:
        raise DTypeError(where, "float16 or bfloat16", found.name, f"for {found.name}, use enabled=False")
    return found


def _category(op: str, word: str) -> Cast:
    if op not in categories:
        close = difflib.get_close_matches(op, categories, n=1)
        cure = f"did you mean {close[0]!r}?" if close else "`ampkit ops` lists them"
        raise ConfigError("Policy", "the name of an op", repr(op), cure)
    try:
        return Cast(word)
    except ValueError:
        raise ConfigError(f"Policy, {op}", f"one of {', '.join(c.value for c in Cast)}", repr(word)) from None


class Region(NamedTuple):
    """One entry of the autocast stack."""

    owner: object
    policies: dict[str, Policy | None]  # by backend name
    rules: tuple[Policy | None, ...]  # the same, hashable: what the plans of ops are kept under
    cache: bool
    below: Region | None


_stack: ContextVar[Region | None] = ContextVar("ampkit.autocast", default=None)


def region() -> Region | None:
    """The innermost autocast region, or None outside of one."""
    return _stack.get()


def enter(state: Region | None) -> Token[Region | None]:
    """Put `state` in force as the whole stack (backward runs with None); undo with `leave`."""
    return _stack.set(state)


def leave(token: Token[Region | None]) -> None:
    """Undo `enter`."""
    _stack.reset(token)


def on_alone(entry: Region | None, device_type: str) -> Region | None:
    """`entry` as it is in force for tensors on `device_type`, and for no others."""
    if entry is None:
        return None
    policies = {**dict.fromkeys(_DEFAULT), device_type: entry.policies[need_kind(device_type)]}
    return Region(entry.owner, policies, tuple(policies.values()), entry.cache, None)


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether ops on `device_type` run under a policy here."""
    return _in_force(device_type) is not None


def get_autocast_dtype(device_type: str = "cpu") -> DType:
    """The 16-bit format of the region in force on `device_type`, or that device's default outside of one."""
    policy = _in_force(device_type)
    return _DEFAULT[need_kind(device_type)] if policy is None else policy.dtype


def _in_force(device_type: str) -> Policy | None:
    entry = _stack.get()
    return None if entry is None else entry.policies[need_kind(device_type)]


_DEFAULT = {"cpu": bfloat16, "cuda": float16}


def need_kind(device_type: Any) -> str:
    """Return `device_type`. Raises DeviceError for anything but "cpu" or "cuda"."""
    if not isinstance(device_type, str) or device_type not in _DEFAULT:
        raise DeviceError("autocast", "device_type 'cpu' or 'cuda'", repr(device_type))
    return str(device_type)


class autocast:
    """Within the block, or the decorated function, every op runs in the dtype that a policy gives it.

    device_type: "cpu" or "cuda" restricts the region to tensors there; None takes all. dtype: float16 or bfloat16; by
    default bfloat16 for tensors on the CPU and float16 elsewhere. enabled=False runs everything as it comes.
    cache_enabled=False casts a weight anew at each use. policy: a Policy in place of a dtype.
    Decorates functions, generators and coroutines. Reusable, re-entrant, safe in threads and in asyncio tasks.
    Raises DTypeError for another dtype, DeviceError for a device type that is unknown or that this machine lacks.
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
        kinds = tuple(_DEFAULT) if device_type is None else (need_kind(device_type),)
        if device_type is not None and enabled:
            backends.get(device_type)
        self._cache = cache_enabled is None or switch("autocast", "cache_enabled", cache_enabled)
        chosen = {kind: policy or Policy(_DEFAULT[kind] if dtype is None else dtype) for kind in kinds if enabled}
        self._policies = {kind: chosen.get(kind) for kind in kinds}

    def __enter__(self) -> autocast:
        below = _stack.get()
        outer = dict.fromkeys(_DEFAULT) if below is None else below.policies
        policies = {**outer, **self._policies}
        _stack.set(Region(self, policies, tuple(policies.values()), self._cache, below))
        return self

    def __exit__(self, *error: object) -> None:
        _stack.set(_without(self, _stack.get()))

    def __call__(self, function: _F) -> _F:
        return decorate(lambda: self, function, "autocast()(function)")


def _without(owner: autocast, entry: Region | None) -> Region | None:
    """The stack less the newest entry of `owner`: blocks may close in any order."""
    if entry is None:
        raise StateError("autocast", "an open region to leave", "none that this context opened")
    if entry.owner is owner:
        return entry.below
    return entry._replace(below=_without(owner, entry.below))
