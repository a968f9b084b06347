"""Parameters that got other memory after their optimizer was made: by `p.data = ...`, `swap_tensors` or `Module.to`.

The optimizer follows them. Such a parameter stays in the memory that it was given, which other tensors may share, and
gets a segment of a new arena, with its state; a step reads the weights there, updates them and writes them back. The
memory that the parameter left is not written any more, so that it can be given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ampkit import backends
from ampkit.base.dtypes import accumulator
from ampkit.base.errors import DeviceError, StateError
from ampkit.core.shared_memory import block_of
from ampkit.core.storage import address, overlapping

from ..argument_checks import need_updatable_where_shared
from .arena import Arena
from .moments import copy_moment, storage_of
from .segment import Segment

if TYPE_CHECKING:
    from ..param_group import ParamGroup


def follow(owner: Any, group: ParamGroup) -> None:
    """Give every parameter of `group` that has other memory now a segment of a new arena.

    Raises StateError if a newer optimizer holds a parameter, or if its state has another shape than it has now,
    DeviceError for one on another device.
    """
    moved = [segment for segment in group.segments if not segment.owns_parameter()]
    where, storage = type(owner).__name__, storage_of(group)
    for segment in moved:
        segment.need_parameter(where)
        _need_state_that_fits(where, segment)
    need_updatable_where_shared(where, [segment.parameter for segment in moved], storage.stochastic_rounding)
    for members in _kinds([s for s in moved if not _is_in_place(s)]):
        numbered = [(segment.number, segment.parameter) for segment in members]
        dtype = members[0].parameter.array.dtype
        master = dtype if storage.stochastic_rounding else accumulator(dtype)
        backend = members[0].arena.backend
        made = Arena(owner, backend, master, numbered, storage.state_dtype).move_in(numbered, mirrors=True)
        take_over(made, members)
        left = set(members)
        group.hold([*(segment for segment in group.segments if segment not in left), *made])


def _is_in_place(segment: Segment) -> bool:
    # Another array object may show the memory of the segment itself.
    array, held = segment.parameter.array, segment.array
    same = segment.fits(array) and array.strides == held.strides and address(array) == address(held)
    if same:
        segment.parameter.array, segment.parameter._segment = held, segment.reference
    return bool(same)


def _kinds(segments: list[Segment]) -> Iterator[list[Segment]]:
    # Parameters for one arena each: of one dtype, or alone where the memory of two overlaps, which are updated in turn.
    kinds: dict[Any, list[Segment]] = {}
    arrays = [segment.parameter.array for segment in segments]
    for segment, array, overlaps in zip(segments, arrays, overlapping(arrays), strict=True):
        alone = overlaps or block_of(array) is not None
        kinds.setdefault((array.dtype, segment.number if alone else None), []).append(segment)
    yield from kinds.values()


def _need_state_that_fits(where: str, segment: Segment) -> None:
    array = segment.parameter.array
    if backends.backend_of(array) is not segment.arena.backend:
        needs, got = "parameters on the device that it was made for", f"{segment.describe()}, which moved"
        raise DeviceError(where, needs, got, "make the optimizer after the model has its device")
    has_state = segment.arena.moments or segment.extra_state
    if array.shape != segment.shape and has_state and _steps(segment):
        got = f"{segment.describe()}, whose state has shape {tuple(segment.shape)}"
        cure = "make the optimizer anew after a parameter has got another shape"
        raise StateError(where, "parameters in the shape of their state", got, cure)


def _steps(segment: Segment) -> int:
    steps = segment.arena.steps
    return int(backends.backend_of(steps).to_numpy(steps)[segment.index])


def take_over(made: Sequence[Segment], before: Sequence[Segment | None]) -> None:
    """Copy the state of segments to those that take their places, all of an arena; None has no state."""
    made[0].arena.load_steps([0 if segment is None else _steps(segment) for segment in before])
    for old, new in zip(before, made, strict=True):
        if old is not None and old.shape == new.shape:
            new.extra_state = old.extra_state
            with backends.device_guard(new.gradient):
                for name in old.arena.moments:
                    copy_moment(new.moment(name), old.moment(name), new.arena.dtype)
