"""The state of a module: its named tensors, and loading values into all of them or none."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError, StateError
from ..core.dlpack import from_dlpack
from ..core.tensor import Tensor

if TYPE_CHECKING:
    from .module import Module


EXTRA = "_extra_state"  # what a module's state is called that is no tensor, as in PyTorch


class Keys(NamedTuple):
    """What `load_state_dict` did not match: names the module has alone, and names the state has alone."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def named(module: Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """(dotted name, tensor) of every Parameter and persistent buffer, under each of its names, in PyTorch's order.

    Raises StateError if a lazy layer has seen no batch yet.
    """
    for lead, part in _parts(module, prefix):
        yield from _tensors(part, lead)


def entries(module: Module, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`named`, and behind the tensors of each part that defines `get_extra_state` what that returns."""
    for lead, part in _parts(module, prefix):
        yield from _tensors(part, lead)
        if _defines(part, "get_extra_state"):
            yield lead + EXTRA, part.get_extra_state()


def _parts(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    module.need_sizes("state_dict")
    for path, part in module.named_modules(remove_duplicate=False):
        yield (f"{prefix}{path}." if path else prefix), part


def _tensors(part: Module, lead: str) -> Iterator[tuple[str, Tensor]]:
    saved = {**part._parameters, **{k: v for k, v in part._buffers.items() if k not in part._unsaved}}
    return ((lead + name, tensor) for name, tensor in saved.items() if tensor is not None)


def _defines(part: Module, method: str) -> bool:
    from .module import Module

    return getattr(type(part), method) is not getattr(Module, method)


def load(module: Module, given: Mapping[str, Any], strict: bool, assign: bool) -> Keys:
    """Copy the values of `given` into `module`; see Module.load_state_dict."""
    where = f"{type(module).__name__}.load_state_dict"
    if not isinstance(given, Mapping):
        raise DTypeError(where, "a dict of tensors by name", f"a {type(given).__name__}")
    if strange := [name for name in given if not isinstance(name, str)]:
        raise DTypeError(where, "strings as names", repr(strange[0]))
    own, given = dict(named(module)), _renamed(module, given)
    extra = {lead + EXTRA: part for lead, part in _parts(module, "") if _defines(part, "set_extra_state")}
    present = {id(tensor) for name, tensor in own.items() if name in given}
    missing = [name for name, tensor in own.items() if id(tensor) not in present]
    missing += [name for name in extra if name not in given]
    unexpected = [name for name in given if name not in own and name not in extra]
    values = {name: _values(where, name, given[name]) for name in own if name in given}
    misfits = [(n, tuple(own[n].shape), tuple(v.shape)) for n, v in values.items() if v.shape != own[n].array.shape]
    if misfits or (strict and (missing or unexpected)):
        raise _mismatch(where, missing if strict else [], unexpected if strict else [], misfits, list(given), list(own))
    for name, value in values.items():
        if assign and value.dtype != own[name].dtype:
            cure = f"cast the module first: module.to(ampkit.{value.dtype.name})"
            raise DTypeError(f"{where} with assign", f"{own[name].dtype.name} as {name!r}", value.dtype.name, cure)
    for name, value in values.items():
        own[name].data = _near(value, own[name].array)
    for name, part in extra.items():
        if name in given:
            part.set_extra_state(given[name])
    return Keys(missing, unexpected)


def _renamed(module: Module, given: Mapping[str, Any]) -> Mapping[str, Any]:
    # `given` under the names of now, where a part of the module had others: see ParametrizationList.older_names.
    held = dict(given)
    for path, part in module.named_modules(remove_duplicate=False):
        for name, before in getattr(part, "older_names", {}).items():
            older = path.replace("parametrizations.", "") + before
            if older in held and f"{path}.{name}" not in held:
                held[f"{path}.{name}"] = held.pop(older)
    return held


def look_up(table: Mapping[str, Any], name: str, what: str) -> Any:
    """`table[name]`. Raises ArgumentError for a name that is not there, with the nearest one that is."""
    if name not in table:
        raise ArgumentError("look-up", f"the name of a {what}", repr(name), _nearest(name, table))
    return table[name]


def _values(where: str, name: str, value: Any) -> Array:
    try:
        foreign = hasattr(value, "__dlpack__") and not isinstance(value, (Tensor, np.ndarray))
        held = from_dlpack(value) if foreign else value
        found = held.array if isinstance(held, Tensor) else np.asarray(held)
        dtypes.parse(found.dtype)
    except (TypeError, ValueError, RuntimeError, BufferError):
        raise DTypeError(where, f"a tensor or an array of numbers as {name!r}", f"a {type(value).__name__}") from None
    return found


def _near(value: Array, home: Array) -> Any:
    same = backends.backend_of(value) is backends.backend_of(home)
    return Tensor(value) if same else backends.backend_of(value).to_numpy(value)


def _mismatch(where: str, missing: Any, unexpected: Any, misfits: Any, given: list[str], own: list[str]) -> StateError:
    counts = [(len(missing), "missing"), (len(unexpected), "unexpected"), (len(misfits), "misshapen")]
    got = ", ".join(f"{n} {word}" for n, word in counts if n)
    rows = [f"  missing: {name}" for name in missing]
    rows += [f"  unexpected: {name}{_hint(name, missing)}" for name in unexpected]
    rows += [
        f"  misshapen: {name} needs {_list(shape)}, got {_list(came)}{_turned(shape, came)}"
        for name, shape, came in misfits
    ]
    rows += [f"help: {cure}" for cure in [_cure(missing, unexpected, given, own)] if cure]
    return StateError("\n".join([f"{where}: needs the names and shapes of the module, got {got}", *rows]))


def _cure(missing: Any, unexpected: Any, given: list[str], own: list[str]) -> str | None:
    prefix = given[0][: given[0].find(".") + 1] if given else ""
    if prefix and all(name.startswith(prefix) and name[len(prefix) :] in own for name in given):
        return f"every name begins with {prefix!r}: take that off"
    return "strict=False leaves out what has no counterpart" if missing or unexpected else None


def _hint(name: str, missing: list[str]) -> str:
    cure = _nearest(name, missing)
    return f" ({cure})" if cure else ""


def _nearest(name: str, names: Any) -> str | None:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else None


def _turned(shape: tuple[int, ...], came: tuple[int, ...]) -> str:
    return " (transposed)" if len(shape) == 2 and came == shape[::-1] else ""


def _list(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
