"""state_dict: the named tensors of a module, and loading all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.array_kinds import need_unmasked
from ..base.errors import ArgumentError, DTypeError, StateError
from ..base.near_names import did_you_mean
from ..base.scoped import ScopedVariable
from ..core.dlpack import is_foreign, to_tensor
from ..core.policy import delayed
from ..core.tensor import Tensor
from .uninitialized import RUN_FIRST, Uninitialized

if TYPE_CHECKING:
    from .module import Module


EXTRA = "_extra_state"  # the key of `get_extra_state`, as in PyTorch


class Keys(NamedTuple):
    """The result of `load_state_dict`: keys of the module alone, and keys of the state alone."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def named(module: Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """(dotted name, tensor) of every Parameter and persistent buffer, under each of its names, in PyTorch's order."""
    for lead, part in _parts(module, prefix):
        yield from _tensors(part, lead)


def own_entries(part: Module, lead: str) -> Iterator[tuple[str, Any]]:
    """The Parameters and persistent buffers of one module by name, each Parameter's delayed scaling (see
    core/policy/delayed.py), and the result of its `get_extra_state`.
    """
    yield from _tensors(part, lead)
    for name, tensor in _tensors(part, lead):
        if (values := delayed.state_of(tensor)) is not None:
            yield name + delayed.SUFFIX, Tensor(values)
    if _defines(part, "get_extra_state"):
        yield lead + EXTRA, part.get_extra_state()


def _parts(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    for path, part in module.named_modules(remove_duplicate=False):
        yield (f"{prefix}{path}." if path else prefix), part


def _tensors(part: Module, lead: str) -> Iterator[tuple[str, Tensor]]:
    unsaved = part._non_persistent_buffers_set
    saved = {**part._parameters, **{k: v for k, v in part._buffers.items() if k not in unsaved}}
    return ((lead + name, tensor) for name, tensor in saved.items() if tensor is not None)


def _defines(part: Module, method: str) -> bool:
    from .module import Module

    return getattr(type(part), method) is not getattr(Module, method)


class _Given(dict[str, Any]):
    # The state that is loaded. left: the prefixes of the modules whose entries `load` is to read.

    def __init__(self, state: Mapping[str, Any]):
        super().__init__(state)
        self.left: set[str] = set()


_given: ScopedVariable[_Given | None] = ScopedVariable("ampkit.state_dict_that_is_loaded", None)


def leave_to_load(state: Mapping[str, Any], prefix: str) -> None:
    """Let `load` read the entries of the module with that prefix; `state`: them, maybe in a dict that others made."""
    given = _given.scope().value
    if given is not None:
        given.left.add(prefix)
        if state is not given:
            given.update({name: value for name, value in state.items() if name.startswith(prefix)})


def load(module: Module, state: Mapping[str, Any], strict: bool, assign: bool) -> Keys:
    """Copy the values of `state` into `module`; see Module.load_state_dict."""
    where = f"{type(module).__name__}.load_state_dict"
    _need_names(where, state)
    own, keys, errors = dict(named(module)), Keys([], []), list[str]()
    metadata = getattr(state, "_metadata", None) or {}
    state = _prepared(module, _renamed(module, state), metadata, strict, keys, errors)
    own = _left_to_load(module, own, state)
    scalings = {name: state.pop(name + delayed.SUFFIX) for name in own if name + delayed.SUFFIX in state}
    extra = {lead + EXTRA: part for lead, part in _parts(module, "") if _defines(part, "set_extra_state")}
    missing, unexpected = found = _compared(own, extra, state, strict, keys)
    values = _checked_values(where, own, state)
    misfits = [
        (name, tuple(own[name].array.shape), tuple(value.shape))
        for name, value in values.items()
        if not isinstance(own[name], Uninitialized) and own[name].array.shape != value.shape
    ]
    later = any("load" in part.__dict__.get("_state_hooks", {}) for part in module.modules())
    if misfits or errors or (strict and not later and (missing or unexpected)):
        keys = found if strict else Keys([], [])
        raise mismatch(where, keys, misfits, _cure(*keys, state, list(own)), errors)
    for name, value in values.items():
        if assign and own[name].requires_grad and not dtypes.is_float(value.dtype):
            needs = f"a floating-point dtype as {name!r}"
            raise DTypeError(f"{where} with assign", needs, value.dtype.name)
    for name, value in values.items():  # all is checked: from here on the module changes
        _write(own[name], value, state[name] if assign else None)
    for name in values:
        delayed.load_state(own[name], scalings.get(name))
    for name, part in extra.items():
        if name in state:
            part.set_extra_state(state[name])
    for part in module.modules():
        part.run_state_hooks("load", found)
    if strict and (missing or unexpected):  # after hooks that may take names out
        raise mismatch(where, found, [], _cure(*found, state, list(own)))
    return found


def _need_names(where: str, state: Any) -> None:
    if not isinstance(state, Mapping):
        raise DTypeError(where, "a dict of tensors by name", f"a {type(state).__name__}")
    if strange := [name for name in state if not isinstance(name, str)]:
        raise DTypeError(where, "strings as names", repr(strange[0]))


def _left_to_load(module: Module, own: dict[str, Tensor], state: _Given) -> dict[str, Tensor]:
    """`own` without the modules that have loaded themselves, whose entries are taken out of `state`."""
    for lead in [lead for lead, _ in _parts(module, "") if lead not in state.left]:
        own = {name: tensor for name, tensor in own.items() if name.rpartition(".")[0] != lead[:-1]}
        below = tuple(f"{lead}{name}." for name in module.get_submodule(lead[:-1])._modules)
        for name in [name for name in state if name.startswith(lead) and not name.startswith(below)]:
            del state[name]
    return own


def _compared(own: Mapping[str, Tensor], extra: Any, state: _Given, strict: bool, hooked: Keys) -> Keys:
    """The keys that the module or the state has alone, after those that hooks listed; see Module.load_state_dict."""
    present = {id(tensor) for name, tensor in own.items() if name in state}
    absent = [name for name, tensor in own.items() if (id(tensor) not in present if strict else name not in state)]
    missing = [*hooked.missing_keys, *absent, *(name for name in extra if name not in state)]
    return Keys(missing, [*hooked.unexpected_keys, *(name for name in state if name not in own and name not in extra)])


def _checked_values(where: str, own: Mapping[str, Tensor], state: _Given) -> dict[str, Array]:
    """The arrays of the state by name; of lazy layers that have no shape on either side, none."""
    given = [name for name in own if name in state]
    shapeless = [name for name in given if isinstance(state[name], Uninitialized)]
    for name in shapeless:
        if not isinstance(own[name], Uninitialized):
            raise StateError(where, "tensors with a shape", f"an uninitialized one as {name!r}", RUN_FIRST)
    return {name: _values(where, name, state[name]) for name in given if name not in shapeless}


def _write(tensor: Tensor, value: Array, source: Any) -> None:
    # source: what `value` is the array of, whose memory the tensor takes over if it is a Tensor.
    if isinstance(tensor, Uninitialized):
        tensor.materialize(value.shape)
    if isinstance(source, Tensor):
        tensor.data = source
    else:
        there = backends.backend_of(value)
        tensor._write(Tensor(value) if there is backends.backend_of(tensor.array) else there.to_numpy(value))


def _prepared(module: Module, state: _Given, metadata: Any, strict: bool, keys: Keys, errors: list[str]) -> _Given:
    """The state after the hooks and overrides that run before the values of each module are read."""
    with _given.holding(state):
        for lead, part in _parts(module, ""):
            given: Any = (state, lead, metadata.get(lead[:-1], {}), strict, *keys, errors)
            part.run_state_hooks("load_pre", *given)
            part._load_from_state_dict(*given)
    return state


def _renamed(module: Module, entries: Mapping[str, Any]) -> _Given:
    # Rename keys that an older version of a submodule wrote: see ParametrizationList.legacy_names.
    state = _Given(entries)
    for path, part in module.named_modules(remove_duplicate=False):
        for name, before in getattr(part, "legacy_names", {}).items():
            older = path.replace("parametrizations.", "") + before
            if older in state and f"{path}.{name}" not in state:
                state[f"{path}.{name}"] = state.pop(older)
    return state


def look_up(table: Mapping[str, Any], name: str, what: str) -> Any:
    """`table[name]`. Raises ArgumentError for an unknown name and suggests the nearest one."""
    if name not in table:
        raise ArgumentError("look-up", f"the name of a {what}", repr(name), did_you_mean(name, table, cutoff=0.7))
    return table[name]


def _values(where: str, name: str, value: Any) -> Array:
    need_unmasked(value, where)
    try:
        tensor = to_tensor(value, copy=False) if is_foreign(value) else value
        found = tensor.array if isinstance(tensor, Tensor) else np.asarray(tensor)
        kind = dtypes.parse(found.dtype)
    except (TypeError, ValueError, RuntimeError, BufferError):
        if refuse := getattr(type(value), "refuse", None):  # a ForeignTensor says how to convert it
            refuse(value, f"{where} of {name!r}")
        raise DTypeError(where, f"a tensor or an array of numbers as {name!r}", f"a {type(value).__name__}") from None
    return found if found.dtype == kind else found.astype(kind)  # in this machine's byte order


_MOST = 10  # rows of a kind


def mismatch(where: str, keys: Keys, misfits: Any, cure: str | None, errors: Sequence[str] = ()) -> StateError:
    """The error with one table of what does not fit: at most ten rows of a kind, then how many more.

    misfits: (name, shape of the module, shape that came). errors: what hooks refused.
    """
    near = [(name, did_you_mean(name, keys.missing_keys, cutoff=0.7)) for name in keys.unexpected_keys[:_MOST]]
    unlike = [
        f"{name} needs {_list(shape)}, got {_list(actual)}{_transposed_hint(shape, actual)}"
        for name, shape, actual in misfits[:_MOST]
    ]
    kinds = [
        ("missing", keys.missing_keys, len(keys.missing_keys)),
        ("unexpected", [name + (f" ({hint})" if hint else "") for name, hint in near], len(keys.unexpected_keys)),
        ("misshapen", unlike, len(misfits)),
        ("refused", errors, len(errors)),
    ]
    got = ", ".join(f"{count} {word}" for word, _, count in kinds if count)
    rows = [row for kind in kinds for row in _rows(*kind)] + ([f"help: {cure}"] if cure else [])
    return StateError("\n".join([f"{where}: needs the names and shapes of the module, got {got}", *rows]))


def _rows(word: str, shown: Sequence[str], count: int) -> Iterator[str]:
    yield from (f"  {word}: {each}" for each in shown[:_MOST])
    if count > _MOST:
        yield f"  {word}: and {count - _MOST} more"


def _cure(missing: Any, unexpected: Any, state: Mapping[str, Any], own: list[str]) -> str | None:
    for name, part in state.items():
        if isinstance(part, Mapping) and any(other in own for other in part):
            return f"the state of the module is one of its entries: load_state_dict(state[{name!r}])"
    first = next(iter(state), "")
    prefix = first[: first.find(".") + 1]
    if prefix and all(name.startswith(prefix) and name[len(prefix) :] in own for name in state):
        return f"every name begins with {prefix!r}: take that off"
    if own and not any(name in own for name in state):
        return None  # what is left without them is nothing
    return "strict=False leaves out what has no counterpart" if missing or unexpected else None


def _transposed_hint(shape: tuple[int, ...], actual: tuple[int, ...]) -> str:
    return " (transposed)" if len(shape) == 2 and actual == shape[::-1] else ""


def _list(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
