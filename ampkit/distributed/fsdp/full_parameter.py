"""FullParameter: what a forward reads of a sharded parameter; under autocast maybe in the policy's 16 bits alone.

Then it has a copy in that dtype, and Absent in place of the values as they are stored. Ops that read the copy, as
products do, need no more. The first that reads the values themselves gathers them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import backends
from ...backends import Array
from ...base.array_kinds import Absent
from ...base.dtypes import DType
from ...core.dispatch import overrides
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ...core.tensor_base import TensorBase


class FullParameter(Parameter):
    """A whole parameter, of which the ranks have rows."""

    __slots__ = ()
    __torch_function__ = overrides.disabled

    def _read(self) -> Array:
        if self.is_absent:
            held: Any = self._array
            held.bring()
        return vars(Tensor)["array"].__get__(self)

    def _write_slot(self, array: Array) -> None:
        vars(Tensor)["array"].__set__(self, array)

    array = property(_read, _write_slot)

    @property
    def is_absent(self) -> bool:
        """Whether the values are not there, but a copy of them."""
        return type(self._array) is Absent

    def hold_copy(self, copy: Array, like: Array, bring: Callable[[], None]) -> None:
        """Have a `copy` and no values: `bring` gathers them when they are read. like: an array of their dtype."""
        made: Any = Absent(like, backends.backend_of(like), bring)
        self._hold(made)
        self._cast_copies = {copy.dtype: (self._version_counter[0], copy)}

    def has(self, dtype: DType) -> bool:
        """Whether the values are there, or a copy of them in `dtype`."""
        return not self.is_absent or dtype in (self._cast_copies or {})

    def copy_in(self, dtype: DType, keep: bool) -> Array:
        if not self.has(dtype) or dtype == self._array.dtype:
            values = self.array  # from now on not absent
            return values if values.dtype == dtype else super().copy_in(dtype, keep)
        return super().copy_in(dtype, keep or self.is_absent)

    def detach(self) -> Tensor:
        if self.is_absent:
            self._read()
        return super().detach()


# Whoever asks for shape and dtype alone reads this, and gathers nothing.
setattr(FullParameter, "_array", vars(TensorBase)["_array"])  # noqa: B010
