"""What an optimizer keeps for a parameter: its state as tensors, looked over and put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.errors import ArgumentError
from ..core.tensor import Tensor
from .flat.arena import Block
from .flat.segment import Slot
from .options import plain

Entry = tuple[int, dict[str, Any]]  # the steps taken, and moments by name


def entry_of(slot: Slot, taken: int, counts_steps: bool) -> dict[str, Tensor]:
    """The state of a parameter that has taken so many steps, as views: step, moments, a 16-bit one's float32 values."""
    moments = {name: Tensor(slot.of(flat)) for name, flat in slot.block.moments.items() if taken}
    moments |= {name: Tensor(array) for name, array in slot.factors.items() if taken}
    if taken and slot.hidden:
        moments["master"] = Tensor(slot.master())
    if not taken or not counts_steps:
        return moments
    return {"step": Tensor(slot.block.backend.asarray(taken, dtypes.float32)), **moments}


def need_entry(
    where: str, slot: Slot, entry: dict[str, Any], shapes: dict[str, tuple[int, ...]], spare: Sequence[str] = ()
) -> Entry:
    """A saved state of a parameter. Raises ArgumentError unless it holds moments of these shapes and a step from 0.

    One that has begun may lack `spare`, which are zeros then, and of the others none, if there are elements at all.
    """
    moments = {}
    for name, value in entry.items():
        if name != "step" and value is not None:
            array = need_array(where, name, value)
            if array.shape != (slot.parameter.array.shape if name == "master" else shapes.get(name)):
                needs = f"state {', '.join(shapes)} in the shape of {slot.title()}"
                raise ArgumentError(where, needs, f"{name} {list(array.shape)}")
            moments[name] = array
    step = plain(entry.get("step", 1 if moments else 0))
    if not isinstance(step, (int, float)) or not 0 <= step < 2**53:
        raise ArgumentError(where, f"the step of {slot.title()} as a count from 0", repr(step))
    missing = [name for name in shapes if step and name not in (*spare, *moments)]
    if missing and slot.stop > slot.start:
        raise ArgumentError(where, f"the whole state of {slot.title()}", f"one without {', '.join(missing)}")
    return int(step), moments


def need_array(where: str, name: str, value: Any) -> Any:
    """`value` as an array on the host. Raises ArgumentError unless it holds numbers."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of different lengths
        raise ArgumentError(where, f"{name} as numbers", repr(value)[:80]) from None
    if array.dtype.kind in "OSUMmc":
        raise ArgumentError(where, f"{name} as numbers", repr(value)[:80])
    return array


def load_entries(block: Block, loads: dict[Slot, Entry], home: Callable[[Slot, str], Array]) -> None:
    """Put states back where `home` says that each moment lives; moments that a state lacks become zeros."""
    block.load_steps([loads[slot][0] for slot in block.slots])
    for slot in block.slots:
        moments = loads[slot][1]
        master = moments.pop("master", None)
        if master is not None and slot.hidden:
            slot.restore(block.backend.asarray(master, block.dtype))
        for name in {*block.moments, *slot.factors, *moments}:
            view = home(slot, name)
            with backends.device_guard(view):
                view[...] = block.backend.asarray(moments[name], block.dtype) if name in moments else 0


def kept_of(slot: Slot, kept: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """What a step of one's own keeps for a parameter, with a 16-bit one's float32 values."""
    found = kept.get(slot.parameter, {})
    return {**found, "master": Tensor(slot.master())} if kept and slot.hidden else found


def keep(slot: Slot, entry: dict[str, Any]) -> dict[str, Any]:
    """A copy of what `kept_of` found, its tensors where the parameter is; puts the float32 values back."""
    if slot.hidden and entry.get("master") is not None:
        slot.restore(slot.block.backend.asarray(entry["master"], slot.block.dtype))
    return {name: _copied(value, slot) for name, value in entry.items() if name != "master" or not slot.hidden}


def _copied(value: Any, slot: Slot) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().to(slot.parameter.device)
    if type(value) in (list, tuple):
        return type(value)([_copied(each, slot) for each in value])
    return deepcopy(value)
