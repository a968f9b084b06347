"""Slot: a parameter's place in the flat memory of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ampkit import backends
from ampkit.backends import Array
from ampkit.base.dtypes import LOW, DType
from ampkit.core.parameter import Parameter

from .memory import narrow

if TYPE_CHECKING:
    from .arena import Block


class Slot:
    """A parameter's place in a block: elements `start` to `stop` of its flat arrays.

    array: the values, as the parameter shows them. gradient: where its gradient is accumulated, float32 (float64 for a
    float64 parameter). index: the slot's number in the block. number: the parameter's number in the optimizer. factors:
    moments of a shape of their own, by name.
    """

    __slots__ = (
        "array",
        "block",
        "factors",
        "fresh",
        "gradient",
        "index",
        "number",
        "parameter",
        "start",
        "stop",
        "stored",
        "synced",
        "views",
    )

    def __init__(self, block: Block, index: int, number: int, parameter: Parameter, start: int):
        self.block, self.index, self.number, self.parameter = block, index, number, parameter
        self.start, self.stop = start, start + parameter.array.size
        self.stored: DType = parameter.array.dtype
        self.gradient = self.of(block.gradient)
        self.fresh: dict[DType, int] = {}
        self.factors: dict[str, Array] = {}
        self.views: dict[DType, tuple[Array, Array]] = {}  # of the block's flat copies: (copy, this slot's range)
        self.synced = parameter.version[0]
        self.array: Array = None

    def of(self, flat: Array) -> Array:
        """This slot's range of one of the block's flat arrays, in the parameter's shape."""
        return flat[self.start : self.stop].reshape(self.parameter.array.shape)

    def factor(self, name: str, shape: tuple[int, ...]) -> Array:
        """The moment `name` of a `shape` that is not the parameter's; zeros when it is first asked for."""
        if name not in self.factors:
            self.factors[name] = self.block.backend.zeros(shape, self.block.dtype)
        return self.factors[name]

    def held(self) -> bool:
        """Whether the parameter still lives here: the newest optimizer adopts it, and nobody may move its array."""
        return self.parameter.slot is self and self.parameter.array is self.array

    @property
    def hidden(self) -> bool:
        """Whether the master holds more than a 16-bit parameter shows."""
        return bool(self.block.master.dtype != self.stored)

    def master(self) -> Array:
        """The master values in the parameter's shape; brought up to date if a 16-bit parameter was written to."""
        found = self.of(self.block.master)
        if self.hidden and self.synced != self.parameter.version[0]:
            self.restore(found)
        return found

    def restore(self, wide: Array) -> None:
        """Make `wide` [the parameter's shape] the master where it rounds to what a 16-bit parameter shows."""
        backend = self.block.backend
        with backends.device_guard(self.array):
            shown = self.array.astype(self.block.dtype)
            same = backend.cast(backend.cast(wide, self.stored), self.block.dtype) == shown
            self.of(self.block.master)[...] = np.where(same, wide, shown)
        self.synced = self.parameter.version[0]

    def cast(self, dtype: DType) -> Array:
        """The values rounded to `dtype`; a 16-bit copy is a view of the block's flat copy, refreshed if need be."""
        if dtype not in LOW or dtype == self.stored:
            return backends.backend_of(self.array).cast(self.array, dtype)
        flat, version = self.block.copy(dtype), self.parameter.version[0]
        if self.fresh.get(dtype) != version:
            narrow(self.master().reshape(-1), flat[self.start : self.stop])
            self.fresh[dtype] = version
        return self.of(flat)

    def written(self) -> None:
        """Note that an update has rewritten the master and every copy of it."""
        parameter = self.parameter
        parameter.changed()
        version = self.synced = parameter.version[0]
        if self.block.copies:
            self.fresh = dict.fromkeys(self.block.copies, version)
            parameter.copies = {
                d: (version, self._view(d, flat)) for d, flat in self.block.copies.items() if d != self.stored
            }

    def _view(self, dtype: DType, flat: Array) -> Array:
        held = self.views.get(dtype)
        if held is None or held[0] is not flat:
            held = self.views[dtype] = flat, self.of(flat)
        return held[1]

    def where(self, offset: int) -> str:
        """For messages: the parameter's name and, of the element at `offset` in the block, the index."""
        place = np.unravel_index(offset - self.start, self.parameter.array.shape)
        return f"{self.title()} at {[int(i) for i in place]}"

    def title(self) -> str:
        """For messages: the parameter's name, or its number, and its shape."""
        name = self.parameter.name
        what = repr(name) if name else f"parameter {self.number}"
        return f"{what} {list(self.parameter.array.shape)}"
