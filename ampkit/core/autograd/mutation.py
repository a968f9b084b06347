"""Saved tensors that may change in place: they are copied when they are about to."""

from __future__ import annotations

from typing import Any, Self
from weakref import WeakKeyDictionary

from ampkit import backends
from ampkit.base.errors import StateError

from ..tensor import Tensor
from .saved_hooks import Hooks, saved_tensors_hooks
from .views import before_change


class _Kept:
    """A saved tensor: its memory, and the version of the values that were saved."""

    __slots__ = ("__weakref__", "at", "tensor", "version")

    def __init__(self, tensor: Tensor):
        self.tensor, self.version, self.at = tensor, tensor._version_counter, tensor._version_counter[0]


class allow_mutation_on_saved_tensors(saved_tensors_hooks):
    """Within the block, tensors that the tape saves may be changed in place: their values are copied before.

    cloned: the copies that a graph still needs. An optimizer's step, `.data = ...` and the block's end are not such
    changes: there a backward that needs the old values raises. Raises StateError for a block within another.
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[_Kept, None] = WeakKeyDictionary()
        self.cloned: WeakKeyDictionary[_Kept, Tensor] = WeakKeyDictionary()

    def _hooks(self) -> Hooks:
        return self._keep, self._restore  # methods that it held itself would be a reference cycle

    def __enter__(self) -> Self:
        if any(getattr(notify, "__func__", None) is type(self)._copy_if_saved for notify in before_change):
            raise StateError("allow_mutation_on_saved_tensors", "one block at a time", "a block within another")
        super().__enter__()
        before_change.append(self._copy_if_saved)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        before_change.remove(self._copy_if_saved)

    def _keep(self, tensor: Tensor) -> _Kept:
        kept = _Kept(tensor)
        self._kept[kept] = None
        return kept

    def _restore(self, kept: _Kept) -> Tensor:
        if kept not in self.cloned and kept.version[0] != kept.at:
            got = "a saved tensor that changed in place outside of the block, or by an optimizer"
            raise StateError("backward", "the values that the forward saved", got, "call backward before")
        return self.cloned.get(kept, kept.tensor)

    def _copy_if_saved(self, tensor: Tensor) -> None:
        copies: dict[int, Tensor] = {}  # by the id of the array: one copy serves all nodes that saved it
        for kept in list(self._kept):
            if kept.version is tensor._version_counter and kept.at == kept.version[0] and kept not in self.cloned:
                array: Any = kept.tensor.array
                with backends.device_guard(array):
                    self.cloned[kept] = copies.setdefault(id(array), Tensor(array.copy()))
                del self._kept[kept]
