"""The state of an optimizer, parameter by parameter: as tensors, checked and loaded."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.dtypes import float32, uint8
from ..base.errors import ArgumentError
from ..core.tensor import Tensor
from .argument_checks import to_python
from .flat.arena import Arena
from .flat.blockwise import Blockwise
from .flat.moments import IN_8_BITS, SCALE, Moment, need_state_dtype, scale_shape, storage_of, store, widened
from .flat.segment import Segment


class State(defaultdict[Any, Any]):
    """`Optimizer.state`: dicts by parameter, and the optimizer's `named` values.

    What is stored here goes to those, or by `store(parameter, entry)` to the optimizer; what is deleted is forgotten.
    """

    def __init__(self, named: dict[str, Any], entries: dict[Any, dict[str, Any]], store: Callable[[Any, Any], None]):
        super().__init__(dict, {**entries, **named})
        self._named, self._store = named, store

    def __missing__(self, key: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        super(defaultdict, self).__setitem__(key, made)  # what is only read is not kept under its name
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if isinstance(key, str):
            self._named[key] = value
        else:
            self._store(key, value)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        if isinstance(key, str):
            self._named.pop(key, None)
        else:
            self._store(key, None)


Entry = tuple[int, dict[str, Any]]  # the steps that a parameter has taken, and its state arrays by name


def in_state_dtypes(
    where: str, entries: dict[int, dict[str, Any]], saved: Sequence[Any], groups: Sequence[Any], names: tuple[str, ...]
) -> dict[int, dict[str, Any]]:
    """The states of parameters as the optimizer's `groups` can take them, with a warning where that rounds them.

    entries: by number, in the order of the `saved` groups. names: of the moments that are never below 0.
    Raises ArgumentError for a group that was saved with a state_dtype that is none.
    """
    numbers, changes = iter(entries), dict[str, None]()
    found = dict(entries)
    for before, group in zip(saved, groups, strict=True):
        was, now = to_python(before.get("state_dtype", "float32")), storage_of(group).state_dtype
        need_state_dtype(where, was)
        for number in islice(numbers, len(before["params"])):
            if was != now and entries[number]:
                found[number] = widened(entries[number], was, names)
                changes[f"{was} to {now}"] = None
    if changes:
        said = f"{where}: moments go from {', '.join(changes)}, the state_dtype of this optimizer"
        warnings.warn(said, RuntimeWarning, stacklevel=3)
    return found


def state_entry(segment: Segment, taken: int, counts_steps: bool) -> dict[str, Tensor]:
    """The state of a parameter that has taken so many steps, as views: step, state arrays, wider master weights."""
    if not taken:
        return {}
    arrays = {name: Tensor(array) for name, array in segment.moment_arrays().items()}
    arrays |= {name: Tensor(array) for name, array in segment.extra_state.items()}
    if segment.has_wider_master:
        arrays["master"] = Tensor(segment.master_weights())
    if not counts_steps:
        return arrays
    return {"step": Tensor(segment.arena.backend.asarray(taken, dtypes.float32)), **arrays}


def need_entry(
    where: str,
    segment: Segment,
    entry: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    optional: Sequence[str] = (),
) -> Entry:
    """A parameter's saved state, checked.

    Raises ArgumentError unless its arrays have these `shapes`, its step counts from 0 and, after a first step of a
    parameter with elements, no array is missing but the `optional` ones, which are zeros then.
    """
    arrays = {}
    for name, value in entry.items():
        if name != "step" and value is not None:
            array = need_array(where, name, value)
            if array.shape != _shape_of(segment, name, shapes):
                needs = f"state {', '.join(shapes)} in the shape of {segment.describe()}"
                raise ArgumentError(where, needs, f"{name} {list(array.shape)}")
            arrays[name] = array
    _need_pairs(where, segment, arrays)
    step = to_python(entry.get("step", 1 if arrays else 0))
    if not isinstance(step, (int, float)) or not 0 <= step < 2**53:
        raise ArgumentError(where, f"the step of {segment.describe()} as a count from 0", repr(step))
    missing = [name for name in shapes if step and name not in (*optional, *arrays)]
    if missing and segment.stop > segment.start:
        raise ArgumentError(where, f"the whole state of {segment.describe()}", f"one without {', '.join(missing)}")
    if not step:  # moments that a first step begins, which PyTorch's Adagrad saves before it
        arrays = {name: array for name, array in arrays.items() if name == "master"}
    return int(step), arrays


def _shape_of(segment: Segment, name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    if name == "master":
        return segment.shape
    if segment.arena.state_dtype in IN_8_BITS and name.endswith(SCALE) and name.removesuffix(SCALE) in shapes:
        return scale_shape(segment.stop - segment.start)
    return shapes.get(name)


def _need_pairs(where: str, segment: Segment, arrays: dict[str, Any]) -> None:
    # In 8 bits a moment is codes with scales, or floats, which are rounded.
    for name in segment.arena.names if segment.arena.state_dtype in IN_8_BITS else ():
        is_codes = name in arrays and arrays[name].dtype == uint8
        if is_codes is not (name + SCALE in arrays):
            needs = f"{name} of {segment.describe()} as codes in uint8 with {name}{SCALE}, or as floats"
            got = f"uint8 without {name}{SCALE}" if is_codes else f"{name}{SCALE} without codes"
            raise ArgumentError(where, needs, got)


def need_array(where: str, name: str, value: Any) -> Any:
    """`value` as an array on the host. Raises ArgumentError unless it holds numbers."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of different lengths
        raise ArgumentError(where, f"{name} as numbers", repr(value)[:80]) from None
    if array.dtype.kind in "OSUMmc":
        raise ArgumentError(where, f"{name} as numbers", repr(value)[:80])
    return array


def load_entries(
    arena: Arena, segments: list[Segment], entries: dict[Segment, Entry], array_of: Callable[[Segment, str], Array]
) -> None:
    """Load checked states into an arena and its `segments`.

    array_of: finds a state array. Those that an entry lacks become zeros.
    """
    steps = backends.backend_of(arena.steps).to_numpy(arena.steps).tolist()
    for segment in segments:
        steps[segment.index] = entries[segment][0]
    arena.load_steps(steps)
    for segment in segments:
        arrays = entries[segment][1]
        master = arrays.pop("master", None)
        if master is not None and segment.has_wider_master:
            segment.set_master_weights(arena.backend.asarray(master, arena.dtype))
        for name in dict.fromkeys((*arena.moments, *segment.extra_state, *arrays)):
            if not name.endswith(SCALE):
                with backends.device_guard(arena.master):
                    _load_array(array_of(segment, name), arrays.get(name), arrays.get(name + SCALE), arena)


def _load_array(target: Moment, values: Any, scales: Any, arena: Arena) -> None:
    # A saved array, or None for zeros; of a moment in 8 bits its codes, where it has `scales`.
    if isinstance(target, Blockwise) and scales is not None:
        target.codes[...] = arena.backend.asarray(values, uint8).reshape(-1)
        target.scales[...] = arena.backend.asarray(scales, float32)
    else:
        size = target.codes.size if isinstance(target, Blockwise) else target.size
        zeros = arena.backend.zeros((size,), arena.dtype)
        store(target, zeros if values is None else arena.backend.asarray(values, arena.dtype).reshape(-1))


def snapshot(entry: dict[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state; tensors leave their graph."""
    return {k: v.detach().clone() if isinstance(v, Tensor) else deepcopy(v) for k, v in entry.items()}


def custom_state(segment: Segment, states: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """What a subclass's own `step` stored for a parameter, and its wider master weights."""
    found = states.get(segment.parameter, {})
    return {**found, "master": Tensor(segment.master_weights())} if states and segment.has_wider_master else found


def copy_custom_state(segment: Segment, entry: dict[str, Any]) -> dict[str, Any]:
    """A copy of `custom_state`, tensors on the parameter's device; its master weights go back to the arena."""
    wider = segment.has_wider_master
    if wider and entry.get("master") is not None:
        segment.set_master_weights(segment.arena.backend.asarray(entry["master"], segment.arena.dtype))
    return {name: _copy(value, segment) for name, value in entry.items() if name != "master" or not wider}


def _copy(value: Any, segment: Segment) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().to(segment.parameter.device)
    if type(value) in (list, tuple):
        return type(value)([_copy(each, segment) for each in value])
    return deepcopy(value)
