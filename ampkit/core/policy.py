"""Cast, Policy and autocast: which dtype each op runs in.

Five cast categories say how an op treats the dtypes of its inputs. A policy is an immutable value that maps every op
to a category, for one 16-bit dtype. `autocast` applies a policy to a block of code.
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

    LOW = "low"  # inputs and output in the policy's 16-bit dtype; exact products, float32 sums, one rounding
    FP32 = "float32"  # inputs as they are, computed and returned in float32
    WIDEST = "widest"  # operands are cast to the widest dtype among them
    KEEP = "keep"  # inputs as they are, the output in the first input's dtype
    BANNED = "banned"  # raises inside a region, and names the op to use instead


# The category of each op, by name: set by @op at definition, the only source of the policy table.
categories: dict[str, Cast] = {}
# The help line of the error for a banned op, by the op's name.
cures: dict[str, str] = {}

_FAST = frozenset({"layer_norm", "rms_norm", "group_norm", "softmax", "log_softmax", "softplus"})


class Policy:
    """The dtype table of mixed precision: `Policy("float16", softmax="low", gelu="float32")`.

    dtype: float16 or bfloat16, the dtype of LOW ops. Each keyword argument is the name of an op and its category: low,
    float32, widest, keep or banned. Equal policies are the same object, so they compare by identity; the repr is an
    expression that makes the policy. `Policy.fast(dtype)` stores the outputs of norms and softmax in 16 bits and
    computes them in float32.
    Raises DTypeError for another dtype, ConfigError for an unknown op or category.
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
        """The preset in which norms, softmax and softplus are LOW: 16-bit outputs, float32 arithmetic; see Policy.

        Compared with `Policy(dtype)` it saves memory and casts.
        """
        return cls._intern(".fast", dtype, overrides)

    @classmethod
    def _intern(cls, preset: str, dtype: Any, overrides: dict[str, str]) -> Policy:
        categories = tuple(sorted((op, _category(op, category)) for op, category in overrides.items()))
        key = (preset, low(dtype, "Policy"), categories)
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
        overrides = "".join(f', {name}="{category.value}"' for name, category in self.overrides)
        return f'Policy{self.preset}("{self.dtype.name}"{overrides})'

    def __reduce__(self) -> tuple[Any, ...]:
        overrides = {name: category.value for name, category in self.overrides}
        return Policy._intern, (self.preset, self.dtype.name, overrides)


def low(dtype: Any, where: str) -> DType:
    """`dtype` as a 16-bit DType. Raises DTypeError for another dtype; its help line says how to turn autocast off."""
    found = parse(dtype)
    if found not in LOW:
        raise DTypeError(where, "float16 or bfloat16", found.name, f"for {found.name}, use enabled=False")
    return found


def _category(op: str, category: str) -> Cast:
    if op not in categories:
        close = difflib.get_close_matches(op, categories, n=1)
        cure = f"did you mean {close[0]!r}?" if close else "`ampkit ops` lists them"
        raise ConfigError("Policy", "the name of an op", repr(op), cure)
    try:
        return Cast(category)
    except ValueError:
        raise ConfigError(f"Policy, {op}", f"one of {', '.join(c.value for c in Cast)}", repr(category)) from None


class Region(NamedTuple):
    """One entry of the autocast stack, a linked list in a context variable."""

    owner: object  # the `autocast` that entered it
    policies: dict[str, Policy | None]  # by backend name; None where autocast is off
    rules: tuple[Policy | None, ...]  # the same policies, hashable: part of the key of an op's cached plan
    cache: bool  # whether 16-bit copies of weights are cached
    below: Region | None  # the enclosing region


_stack: ContextVar[Region | None] = ContextVar("ampkit.autocast", default=None)


def region() -> Region | None:
    """The innermost autocast region, or None outside of one."""
    return _stack.get()


def enter(state: Region | None) -> Token[Region | None]:
    """Replace the whole stack by `state` (the backward pass uses None, autocast off). Returns the token for `leave`."""
    return _stack.set(state)


def leave(token: Token[Region | None]) -> None:
    """Restore the stack that `enter` replaced."""
    _stack.reset(token)


def on_alone(entry: Region | None, device_type: str) -> Region | None:
    """A region with the policy of `entry` for `device_type`, and autocast off for other devices."""
    if entry is None:
        return None
    policies = {**dict.fromkeys(_DEFAULT), device_type: entry.policies[need_kind(device_type)]}
    return Region(entry.owner, policies, tuple(policies.values()), entry.cache, None)


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether autocast is on for ops on `device_type`. Raises DeviceError unless it is "cpu" or "cuda"."""
    return _in_force(device_type) is not None


def get_autocast_dtype(device_type: str = "cpu") -> DType:
    """The 16-bit dtype that autocast uses on `device_type` here, or that device's default where autocast is off."""
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
    """Context manager and decorator under which each op runs in the dtype that a policy chooses for it.

    device_type: "cpu" or "cuda" applies it to tensors on that device alone; None to all. dtype: float16 or bfloat16; by
    default bfloat16 for tensors on the CPU and float16 on a GPU. enabled=False turns autocast off in the block.
    cache_enabled=False casts a weight again at each use. policy: a Policy, instead of a dtype.
    Decorates functions, generators and coroutines. Reusable, re-entrant, safe in threads and in asyncio tasks.
    Raises DTypeError for another dtype, DeviceError for a device type that is unknown or not available here.
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
    """The stack without the newest entry of `owner`, since blocks may exit in any order. StateError if it has none."""
    if entry is None:
        raise StateError("autocast", "an open region to leave", "none that this context opened")
    if entry.owner is owner:
        return entry.below
    return entry._replace(below=_without(owner, entry.below))
