"""Segment: the range of one parameter in an arena."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import LOW, Array, DType
from ampkit.base.errors import StateError
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import note_changes

from .blockwise import BLOCK
from .memory import narrow
from .moments import SCALE, Moment, part

if TYPE_CHECKING:
    from .arena import Arena


class Segment:
    """A parameter's range in an arena: elements `start` to `stop` (exclusive) of each of its flat arrays.

    array: the array of the parameter. shape, dtype: its own. gradient: where its gradient is accumulated, float32
    (float64 for a float64 parameter). index: its position in the arena. number: the parameter's number in the
    optimizer. extra_state: state arrays whose shape is not the parameter's, by name. mirror: where the parameter has
    memory of its own (see optim/flat/follow.py), the arena's copy of it; else None. needs_refresh: whether
    `master_weights` may differ from the arena's. reference: what the parameter holds of it.
    """

    __slots__ = (
        "__weakref__",
        "_copy_versions",
        "_copy_views",
        "_master_version",
        "arena",
        "array",
        "dtype",
        "extra_state",
        "gradient",
        "index",
        "mirror",
        "needs_refresh",
        "number",
        "parameter",
        "reference",
        "shape",
        "start",
        "stop",
    )

    def __init__(self, arena: Arena, index: int, number: int, parameter: Parameter, start: int):
        self.arena, self.index, self.number, self.parameter = arena, index, number, parameter
        self.start, self.stop = start, start + parameter.array.size
        self.shape, self.dtype = parameter.array.shape, parameter.array.dtype
        self.gradient = self.view(arena.gradient)
        self.extra_state: dict[str, Array] = {}
        self._copy_versions: dict[DType, int] = {}  # the parameter's version that a 16-bit copy was rounded from
        self._copy_views: dict[DType, Array] = {}  # of the arena's flat copies
        self._master_version = parameter._version_counter[0]
        self.array: Array = None
        self.mirror: Array = None
        self.needs_refresh = self.has_wider_master
        self.reference = weakref.ref(self)

    def view(self, flat: Array) -> Array:
        """This segment of one of the arena's flat arrays, in the parameter's shape."""
        return flat[self.start : self.stop].reshape(self.shape)

    def moment(self, name: str) -> Moment:
        """This segment of the flat moment `name`, flat."""
        first = self.arena.held.start
        return part(self.arena.moment(name), self.start - first, self.stop - first)

    def moment_arrays(self) -> dict[str, Array]:
        """The moments by name, in the parameter's shape; beside those in 8 bits, whose codes these are, the scales."""
        start, stop = self.start - self.arena.held.start, self.stop - self.arena.held.start
        found = {name: flat[start:stop].reshape(self.shape) for name, flat in self.arena.moments.items()}
        blocks = slice(start // BLOCK, -(-stop // BLOCK))
        return found | {name + SCALE: scales[blocks] for name, scales in self.arena.scales.items()}

    @property
    def is_held(self) -> bool:
        """Whether its moments are here; else other ranks have some of them."""
        return self.arena.held.start <= self.start and self.stop <= self.arena.held.stop

    def state_array(self, name: str, shape: tuple[int, ...]) -> Array:
        """The extra state `name`, of `shape`; created as zeros on first use."""
        if name not in self.extra_state:
            self.extra_state[name] = self.arena.backend.zeros(shape, self.arena.dtype)
        return self.extra_state[name]

    def owns_parameter(self) -> bool:
        """Whether the parameter's array still is this segment: no newer optimizer took it, and nobody replaced it."""
        return self.parameter._segment is self.reference and self.parameter._array is self.array

    def need_parameter(self, where: str) -> None:
        """Raise StateError if a newer optimizer holds the parameter."""
        if self.parameter._arena_segment not in (self, None):
            got, cure = "which a newer optimizer holds", "use the newest optimizer, or make this one anew"
            raise StateError(where, "parameters that this optimizer holds", f"{self.describe()}, {got}", cure)

    def fits(self, array: Array) -> bool:
        """Whether a parameter with this array can keep the segment: of the same shape, dtype and device."""
        here = backends.backend_of(array) is self.arena.backend
        return here and array.shape == self.shape and array.dtype == self.dtype

    def take_gradient(self) -> None:
        """Copy a gradient from memory that somebody gave it, by `p.grad.data = ...`, to the arena's."""
        held = self.parameter._grad
        if held is not None and held._array is not self.gradient:
            if held.array.shape != self.shape:
                got, cure = f"one of shape {tuple(held.array.shape)}", "call optimizer.zero_grad() before"
                raise StateError("optimizer", f"a gradient in the shape of {self.describe()}", got, cure)
            with backends.device_guard(self.gradient):
                self.gradient[...] = held.array
            held.array = self.gradient

    @property
    def has_wider_master(self) -> bool:
        """Whether the master weights are of a wider dtype than the parameter (16 bits)."""
        return bool(self.arena.master.dtype != self.dtype)

    def master_weights(self) -> Array:
        """The master weights in the parameter's shape; refreshed first if somebody wrote to a 16-bit parameter.

        Always, if other code may have written to it without notice.
        """
        master = self.view(self.arena.master)
        if self.has_wider_master:
            version = self.parameter._version_counter
            if self._master_version != version[0] or len(version) > 1:
                self.set_master_weights(master)
        elif self.mirror is not None:
            with backends.device_guard(self.array):
                master[...] = self.array
        return master

    def set_master_weights(self, values: Array) -> None:
        """Set the master weights to `values` [the parameter's shape] where they round to the 16-bit parameter.

        Elsewhere, and always for another parameter's values, the 16-bit parameter itself becomes the master.
        """
        backend = self.arena.backend
        with backends.device_guard(self.array):
            parameter = self.array.astype(self.arena.dtype)
            rounds_to_parameter = backend.cast(backend.cast(values, self.dtype), self.arena.dtype) == parameter
            self.view(self.arena.master)[...] = np.where(rounds_to_parameter, values, parameter)
        self._master_version = self.parameter._version_counter[0]

    def cast(self, dtype: DType) -> Array:
        """The parameter in `dtype`; a 16-bit copy is a view of the arena's flat copy, rounded anew if out of date."""
        if dtype not in LOW or dtype == self.dtype:
            return backends.backend_of(self.array).cast(self.array, dtype)
        flat, version = self.arena.copy(dtype), self.parameter._version_counter[0]
        if self._copy_versions.get(dtype) != version or len(self.parameter._version_counter) > 1:
            narrow(self.master_weights().reshape(-1), flat[self.start : self.stop])
            self._copy_versions[dtype] = version
        return self.view(flat)

    def mark_updated(self) -> None:
        """See `mark_all_updated`."""
        mark_all_updated([self])

    def describe_element(self, offset: int) -> str:
        """For messages: the parameter's name and the index in it of the arena's element at `offset`."""
        index = np.unravel_index(offset - self.start, self.parameter.array.shape)
        return f"{self.describe()} at {[int(i) for i in index]}"

    def describe(self) -> str:
        """For messages: the parameter's name, or its number, and its shape."""
        name = self.parameter._dotted_name
        title = repr(name) if name else f"parameter {self.number}"
        return f"{title} {list(self.parameter.array.shape)}"


def mark_all_updated(segments: Sequence[Segment]) -> None:
    """Advance the versions of parameters, to which an update has brought the master weights and every 16-bit copy."""
    for segment in segments:
        if segment.mirror is not None:
            with backends.device_guard(segment.array):
                segment.array[...] = segment.mirror
    note_changes([segment.parameter for segment in segments])
    for segment in segments:
        parameter, copies, views = segment.parameter, segment.arena.copies, segment._copy_views
        version = segment._master_version = parameter._version_counter[0]
        if copies:
            segment._copy_versions, casts = dict.fromkeys(copies, version), {}
            for dtype in copies:
                if dtype not in views:
                    views[dtype] = segment.view(copies[dtype])
                if dtype != segment.dtype:
                    casts[dtype] = version, views[dtype]
            parameter._cast_copies = casts
