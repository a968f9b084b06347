"""The values of a process to which others refer, and the weights of the references; references.py has the rule."""

from __future__ import annotations

from fractions import Fraction
from itertools import count
from threading import Lock
from typing import Any

from .futures import Future

Key = tuple[int, int]  # the process that made a reference, and its number there


class Value:
    """A value that references point to, or that is yet to come. weight: what they have. made: whether it was made."""

    def __init__(self, made: bool):
        self.future: Future[Any] = Future()
        self.weight, self.made = Fraction(0), made


class Values:
    """The values of this process that others refer to."""

    def __init__(self, rank: int):
        self._values: dict[Key, Value] = {}
        self._lock, self._numbers, self._rank = Lock(), count(), rank

    def __len__(self) -> int:
        return len(self._values)

    def key(self) -> Key:
        """A key that no other reference has."""
        return self._rank, next(self._numbers)

    def at(self, key: Key) -> Value:
        """The value of a key; one that is yet to come where the first message that mentions it has overtaken it."""
        with self._lock:
            return self._values.setdefault(key, Value(False))

    def create(self, key: Key) -> Value:
        """The value of a new reference of weight 1, which is to be set."""
        with self._lock:
            value = self._values.setdefault(key, Value(True))
            value.made = True
            value.weight += 1
            return self._kept(key, value)

    def give(self, key: Key, value: Value) -> None:
        """Count a further reference of weight 1."""
        with self._lock:
            value.weight += 1
            self._kept(key, value)

    def take_back(self, key: Key, exponent: int) -> None:
        """Count the weight of a reference that has gone."""
        with self._lock:
            value = self._values.setdefault(key, Value(False))
            value.weight -= Fraction(1, 1 << exponent)
            self._kept(key, value)

    def _kept(self, key: Key, value: Value) -> Value:
        if value.made and not value.weight:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        return value
