"""Cast, Policy and autocast: which dtype each op runs in.

Five cast categories say how an op treats the dtypes of its inputs. A policy is an immutable value that maps every op
to a category, for one 16-bit dtype. `autocast` applies a policy to a block of code.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import Token
from enum import Enum
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

from ... import backends
from ...base import public_dtypes
from ...base.context_decorator import decorate
from ...base.dtypes import LOW, DType, bfloat16, float16, float32, parse
from ...base.errors import ArgumentError, ConfigError, DeviceError, DTypeError, StateError, switch
from ...base.html import folded
from ...base.near_names import did_you_mean
from ...base.scoped import Scope, ScopedVariable
from .. import module_path
from ..module_path import ModuleCall, match_once, matches, need_modules
from .recipe import FAMILIES, RECIPES, Recipe, family_of, of_family
from .recipe import recipe as named

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

    dtype: float16 or bfloat16, the dtype of LOW ops; or "float8", "float4" or "int8": bfloat16, and the products of
    `linear` are quantized as `recipe` says, a Recipe or the name of one ("current", "mxfp8"; see `recipe`).
    modules: by the path of a module in the model, as in `named_modules`, what its LOW ops and those below it run in:
    float16, bfloat16, or float32, in which they return float32, all without a recipe; or the name of a recipe. `*`
    stands for one part of a path and `**` for any number of them, `"blocks.*.attn"`; where several paths match, the
    last one written counts. Each further keyword argument is the name of an op and its category: low,
    float32, widest, keep or banned. Equal policies are the same object, so they compare by identity; the repr is an
    expression that makes the policy. `Policy.fast(dtype)` stores the outputs of norms and softmax in 16 bits and
    computes them in float32.
    Raises DTypeError for another dtype, ConfigError for an unknown op, category or recipe.
    """

    __slots__ = ("low_dtype", "modules", "overrides", "preset", "recipe")
    low_dtype: DType  # NumPy's; float32 in the modules that `modules` gives it
    overrides: tuple[tuple[str, Cast], ...]
    modules: tuple[tuple[str, DType | Recipe], ...]
    preset: str
    recipe: Recipe | None
    _known: ClassVar[dict[tuple[Any, ...], Policy]] = {}

    def __new__(
        cls, dtype: Any = "float16", /, *, recipe: str | Recipe | None = None, modules: Mapping[str, Any] | None = None,
        **overrides: str,
    ) -> Policy:  # fmt: skip
        return cls._made("", dtype, recipe, modules, overrides)

    @classmethod
    def fast(
        cls, dtype: Any = "float16", /, *, recipe: str | Recipe | None = None, modules: Mapping[str, Any] | None = None,
        **overrides: str,
    ) -> Policy:  # fmt: skip
        """The preset in which norms, softmax and softplus are LOW: 16-bit outputs, float32 arithmetic; see Policy.

        Compared with `Policy(dtype)` it saves memory and casts.
        """
        return cls._made(".fast", dtype, recipe, modules, overrides)

    @classmethod
    def _made(
        cls, preset: str, dtype: Any, recipe: Any, modules: Mapping[str, Any] | None, overrides: Mapping[str, str]
    ) -> Policy:
        categories = tuple(sorted((op, _category(op, category)) for op, category in overrides.items()))
        quantized = isinstance(dtype, str) and dtype in FAMILIES
        found = of_family(dtype, recipe) if quantized else None if recipe is None else named(recipe)
        dtype = bfloat16 if quantized else low(dtype, "Policy")
        return cls._intern(preset, dtype, categories, _module_dtypes(modules), found)

    @classmethod
    def _intern(cls, *key: Any) -> Policy:
        if key not in cls._known:
            self = object.__new__(cls)
            for name, value in zip(("preset", "low_dtype", "overrides", "modules", "recipe"), key, strict=True):
                object.__setattr__(self, name, value)
            cls._known[key] = self
            if self.modules and _FOLLOWS not in module_path.following:  # for good: a region may start inside the model
                module_path.following.append(_FOLLOWS)
        return cls._known[key]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Policy is frozen: make another one")

    @property
    def dtype(self) -> public_dtypes.dtype:
        """The dtype of LOW ops."""
        return public_dtypes.DTYPES[self.low_dtype]

    def category(self, op: str) -> Cast:
        """The category of the op named `op` under this policy. Raises ConfigError for an unknown name."""
        need_op("Policy.category", op)
        found = dict(self.overrides).get(op) or (Cast.LOW if self.preset and op in _FAST else categories[op])
        return Cast.FP32 if found is Cast.LOW and self.low_dtype == float32 else found

    def in_module(self, path: str) -> Policy:
        """The policy in the module `path` of the model: this one, or one with the dtype that `modules` has for it."""
        if not isinstance(path, str):
            raise DTypeError("Policy.in_module", "the path of a module", f"a {type(path).__name__}")
        for pattern, found in reversed(self.modules):
            if matches(pattern, path):
                quantized = isinstance(found, Recipe)
                dtype = found if not quantized else self.low_dtype if self.low_dtype in LOW else bfloat16
                return Policy._intern(self.preset, dtype, self.overrides, self.modules, found if quantized else None)
        return self

    def __repr__(self) -> str:
        overrides = "".join(f', {name}="{category.value}"' for name, category in self.overrides)
        dtypes = ", ".join(f'"{pattern}": "{dtype.name}"' for pattern, dtype in self.modules)
        modules = f", modules={{{dtypes}}}" if dtypes else ""
        return f'Policy{self.preset}("{self._dtype_word()}"{self._recipe_word()}{overrides}{modules})'

    def _dtype_word(self) -> str:
        family = None if self.recipe is None or self.low_dtype != bfloat16 else family_of(self.recipe)
        return family or self.low_dtype.name

    def _recipe_word(self) -> str:
        if self.recipe is None:
            return ""
        preset = RECIPES.get(self.recipe.name) is self.recipe
        return f', recipe="{self.recipe.name}"' if preset else f", recipe={self.recipe}"

    def _repr_html_(self) -> str:
        ops = {each: [op for op in sorted(categories) if self.category(op) is each] for each in Cast}
        return folded(repr(self), "\n\n".join(textwrap.fill(f"{each.value}: {', '.join(ops[each])}") for each in Cast))

    def __reduce__(self) -> tuple[Any, ...]:
        return Policy._intern, (self.preset, self.low_dtype, self.overrides, self.modules, self.recipe)


def low(dtype: Any, where: str) -> DType:
    """`dtype` as a 16-bit DType. Raises DTypeError for another dtype; its help line says what to write instead."""
    name = dtype
    if not isinstance(dtype, str) or dtype not in FAMILIES:
        if (found := parse(dtype)) in LOW:
            return found
        name = found.name
    cure = f'use autocast(policy=Policy("{name}"))' if name in FAMILIES else "use enabled=False"
    raise DTypeError(where, "float16 or bfloat16", name, f"for {name}, {cure}")


_FOLLOWS = "policies by module"  # why calls of modules are followed


def _module_dtypes(modules: Any) -> tuple[tuple[str, DType | Recipe], ...]:
    if modules is not None and not isinstance(modules, Mapping):
        cure = 'modules={"head": "float32"}'
        raise ConfigError("Policy, modules", "a dict from module paths to dtypes", repr(modules), cure)
    found = []
    for pattern, word in (modules or {}).items():
        if not isinstance(pattern, str) or not all(pattern.split(".")):
            raise ConfigError("Policy, modules", "module paths such as 'blocks.*.attn'", repr(pattern))
        found.append((pattern, _module_dtype(pattern, word)))
    return tuple(found)


def _module_dtype(pattern: str, word: Any) -> DType | Recipe:
    if isinstance(word, Recipe) or word in RECIPES or word in FAMILIES:
        return of_family(word, None) if word in FAMILIES and word not in RECIPES else named(word)
    if isinstance(word, str) and (near := did_you_mean(word, RECIPES)) is not None:
        raise ConfigError(f"Policy, modules, {pattern}", _MODULE_DTYPES, repr(word), near)
    dtype = parse(word)
    if dtype not in (float16, bfloat16, float32):
        raise ConfigError(f"Policy, modules, {pattern}", _MODULE_DTYPES, dtype.name)
    return dtype


_MODULE_DTYPES = "float16, bfloat16, float32 or a recipe"


def need_op(where: str, op: Any) -> None:
    """Raise ConfigError, with the nearest name, unless `op` is the name of an op."""
    if not isinstance(op, str) or op not in categories:
        near = did_you_mean(op, categories) if isinstance(op, str) else None
        raise ConfigError(where, "the name of an op", repr(op), near or "`ampkit ops` lists them")


def _category(op: str, category: str) -> Cast:
    need_op("Policy", op)
    try:
        return Cast(category)
    except ValueError:
        needs, quantizes = f"one of {', '.join(c.value for c in Cast)}", category in RECIPES or category in FAMILIES
        cure = f'recipes quantize the products of a module: modules={{"blocks.*": "{category}"}}' if quantizes else None
        raise ConfigError(f"Policy, {op}", needs, repr(category), cure) from None


class Region(NamedTuple):
    """What `autocast` set: the value of its scope, see base/scoped.py."""

    owner: object  # the `autocast` that entered it
    policies: dict[str, Policy | None]  # by backend name; None where autocast is off
    rules: tuple[Policy | None, ...]  # the same policies, hashable: part of the key of an op's cached plan
    cache: bool  # whether 16-bit copies of weights are cached
    # By pattern of a policy's `modules` that has matched none so far: the paths of the modules of the models called.
    unmatched: dict[str, set[str]]


_stack: ScopedVariable[Region | None] = ScopedVariable("ampkit.autocast", None)
scope = _stack.scope  # scope().value: the innermost region
_OFF: Scope[Region | None] = Scope(None)


def region() -> Region | None:
    """The innermost autocast region, or None outside of one."""
    return scope().value


def enter(state: Region | None) -> Token[Scope[Region | None]]:
    """Replace the whole stack by `state` (the backward pass uses None, autocast off). Returns the token for `leave`."""
    return _stack.replace(_OFF if state is None else Scope(state))


def leave(token: Token[Scope[Region | None]]) -> None:
    """Restore the stack that `enter` replaced."""
    _stack.restore(token)


def on_alone(entry: Region | None, device_type: str) -> Region | None:
    """A region with the policy of `entry` for `device_type`, and autocast off for other devices."""
    if entry is None:
        return None
    policies = {**_OFF_EVERYWHERE, device_type: entry.policies[need_kind(device_type)]}
    return Region(entry.owner, policies, tuple(policies.values()), entry.cache, entry.unmatched)


_change: ScopedVariable[Callable[[Policy], Policy] | None] = ScopedVariable("ampkit.changed_policies", None)


@contextmanager
def changed_policies(change: Callable[[Policy], Policy]) -> Iterator[None]:
    """Within the block, regions that are entered apply change(policy) instead of their policy, as does the present one.

    For tools that try what another policy would do to code that enters its regions itself.
    """
    entry, changed = region(), _change.enter(change)
    policies = {} if entry is None else {kind: rule and change(rule) for kind, rule in entry.policies.items()}
    now = None if entry is None else entry._replace(policies=policies, rules=tuple(policies.values()))
    region_token = enter(now)
    try:
        yield
    finally:
        leave(region_token)
        _change.leave(changed)


def module_running(call: ModuleCall) -> AbstractContextManager[None]:
    """The context in which the module of `call` runs: its path is the current one, and policies apply to it."""
    entry = scope().value
    for rule in () if entry is None else entry.rules:
        if rule is not None and rule.modules:
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
            match_once(entry.unmatched, call)
        rules = _rules_in_module(entry.rules, call.path)
        policies = dict(zip(entry.policies, rules, strict=True))
        self._outer = enter(Region(entry.owner, policies, rules, entry.cache, entry.unmatched))
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        leave(self._outer)


@lru_cache(10_000)  # a module is called in every step
def _rules_in_module(rules: tuple[Policy | None, ...], path: str) -> tuple[Policy | None, ...]:
    return tuple([rule and rule.in_module(path) for rule in rules])


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Whether autocast is on for ops on `device_type`. Raises DeviceError unless it is "cpu" or "cuda"."""
    return _in_force(device_type) is not None


def get_autocast_dtype(device_type: str = "cpu") -> public_dtypes.dtype:
    """The 16-bit dtype that autocast uses on `device_type` here, or that device's default where autocast is off."""
    policy = _in_force(device_type)
    return public_dtypes.DTYPES[_DEFAULT[need_kind(device_type)]] if policy is None else policy.dtype


def _in_force(device_type: str) -> Policy | None:
    entry = region()
    return None if entry is None else entry.policies[need_kind(device_type)]


_DEFAULT = {"cpu": bfloat16, "cuda": float16}
_OFF_EVERYWHERE: dict[str, Policy | None] = dict.fromkeys(_DEFAULT)


def need_kind(device_type: Any) -> str:
    """Return `device_type`. Raises DeviceError for anything but "cpu" or "cuda"."""
    if not isinstance(device_type, str) or device_type not in _DEFAULT:
        raise DeviceError("autocast", "device_type 'cpu' or 'cuda'", repr(device_type))
    return str(device_type)


@cache  # a region is entered in every step
def _policies(
    device_type: str | None, dtype: DType | None, policy: Policy | None, on: bool
) -> dict[str, Policy | None]:
    """By kind of device, the policy in a region that was given these; only of those that the region changes."""
    kinds = tuple(_DEFAULT) if device_type is None else (need_kind(device_type),)
    if not on:
        return dict.fromkeys(kinds)
    return {kind: policy or Policy(_DEFAULT[kind] if dtype is None else dtype) for kind in kinds}


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
        below, change, own = scope().value, _change.scope().value, self._policies
        if change is not None:
            own = {kind: rule and change(rule) for kind, rule in own.items()}
        policies = {**(_OFF_EVERYWHERE if below is None else below.policies), **own}
        unmatched: dict[str, set[str]] = {}
        for rule in own.values():
            for pattern, _ in () if rule is None else rule.modules:
                unmatched[pattern] = set()
        self._scopes.append(_stack.enter(Region(self, policies, tuple(policies.values()), self._cache, unmatched)))
        return self

    def __exit__(self, *error: object) -> None:
        last, found = scope().value, _stack.innermost(self._scopes, error)
        if found is None:
            raise StateError("autocast", "an open region to leave", "none that this context opened")
        self._scopes.remove(found)
        _stack.leave_in_any_order(found)
        if last is not None and last.owner is self and not any(error):
            for pattern, paths in last.unmatched.items():
                if paths:  # a region in which no model was called has nothing to match
                    need_modules([pattern], sorted(paths))

    def __call__(self, function: _F) -> _F:
        return decorate(lambda: self, function, "autocast()(function)")
