"""`torch.utils.weak`: dictionaries whose keys are objects themselves, not what they are equal to, and held weakly."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any
from weakref import ref

__all__ = ["WeakIdKeyDictionary", "WeakTensorKeyDictionary"]


class WeakIdKeyDictionary(MutableMapping[Any, Any]):
    """A dictionary by the identity of its keys; an item goes with its key."""

    def __init__(self, dict: Any = None, ref_type: Any = None):
        self._items: Any = {}  # by the id of the key: a reference to it, and the value
        self.update(dict or {})

    def __getitem__(self, key: Any) -> Any:
        return self._items[id(key)][1]

    def __setitem__(self, key: Any, value: Any) -> None:
        number, items = id(key), self._items
        items[number] = ref(key, lambda _: items.pop(number, None)), value

    def __delitem__(self, key: Any) -> None:
        del self._items[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    def __iter__(self) -> Iterator[Any]:
        found = [reference() for reference, _ in list(self._items.values())]
        return iter([key for key in found if key is not None])

    def __len__(self) -> int:
        return len(self._items)


WeakTensorKeyDictionary = WeakIdKeyDictionary
