"""Keys of PyTorch's dispatcher, which libraries name as they register operators: ampkit has autocast and gradients."""

from __future__ import annotations

from typing import Any

from ....autograd import no_grad
from ....core.policy import autocast

__all__ = ["DispatchKey", "DispatchKeySet", "_AutoDispatchBelowAutograd", "_ExcludeDispatchKeyGuard"]


class _Keys(type):
    def __getattr__(cls, name: str) -> DispatchKey:
        if name.startswith("_"):
            raise AttributeError(f"type object 'DispatchKey' has no attribute {name!r}", name=name, obj=cls)
        return DispatchKey(name)


class DispatchKey(str, metaclass=_Keys):
    """A key, by its name: `DispatchKey.AutocastCPU`."""

    __slots__ = ()


class DispatchKeySet(frozenset[Any]):
    """Several keys."""

    def __new__(cls, *keys: Any) -> DispatchKeySet:
        found: list[Any] = []
        for key in keys:
            found += [key] if isinstance(key, str) else key
        return super().__new__(cls, found)

    def __or__(self, other: Any) -> DispatchKeySet:
        return DispatchKeySet(super().__or__(other))

    def __and__(self, other: Any) -> DispatchKeySet:
        return DispatchKeySet(super().__and__(other))

    def __sub__(self, other: Any) -> DispatchKeySet:
        return DispatchKeySet(super().__sub__(other))

    def has(self, key: DispatchKey) -> bool:
        """Whether `key` is among them."""
        return key in self

    def add(self, key: DispatchKey) -> DispatchKeySet:
        """These and `key`."""
        return self | {key}

    def remove(self, key: DispatchKey) -> DispatchKeySet:
        """These without `key`."""
        return self - {key}


class _ExcludeDispatchKeyGuard:
    """A block without autocast, or without gradients, where `keys` have those of autocast or of autograd."""

    def __init__(self, keys: DispatchKeySet):
        self._open: list[Any] = []
        if any(key.startswith("Autocast") for key in keys):
            self._open.append(autocast(enabled=False))
        if any(key.startswith("Autograd") for key in keys):
            self._open.append(no_grad())

    def __enter__(self) -> None:
        for context in self._open:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._open):
            context.__exit__(*error)


def _AutoDispatchBelowAutograd() -> _ExcludeDispatchKeyGuard:
    return _ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey("Autograd")))
