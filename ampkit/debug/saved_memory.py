"""The memory that the nodes of a forward keep for its backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .. import backends
from ..base.observe import Event
from ..core.parameter import Parameter
from .origin import memory_of


class SavedMemory:
    """Memory kept for backward, each piece once, without parameters and their 16-bit copies, which live anyway."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}  # by id; memory is held, so that its id is not given again

    def add(self, event: Event) -> list[Any]:
        """The arrays that the node of a forward's event keeps in memory that no earlier one keeps."""
        if event.node is None or not hasattr(event.node.saved, "__dict__"):
            return []
        weights = (operand for operand in event.operands if isinstance(operand, Parameter))
        self._known |= {id(memory): memory for weight in weights for memory in map(memory_of, _copies(weight))}
        return [array for array in _arrays(vars(event.node.saved).values()) if self._is_new(array)]

    def _is_new(self, array: Any) -> bool:
        memory = memory_of(array)
        new = id(memory) not in self._known
        self._known[id(memory)] = memory
        return new


def _copies(weight: Parameter) -> Iterator[Any]:
    yield weight._array
    yield from (array for _, array in (weight._cast_copies or {}).values())


def _arrays(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _arrays(value)
        elif backends.is_array(value) and value.ndim:
            yield value
