"""Registers unscaling and counts of exponents and of lost updates: loops of a backend, called as the primitives."""

from __future__ import annotations

from typing import Any

from ampkit.amp.exponents import count_exponents, count_lost_updates
from ampkit.amp.found_inf import unscale
from ampkit.base.dtypes import Array, float32

from .registration import on


def register_unscale(backend: str, unscaled: Any, fits: Any) -> None:
    """Register unscaling of float32 gradients; fits: called as the primitive."""
    on(unscale, backend, unscaled, fits)


def register_counts(backend: str, counted: Any, lost: Any, countable: Any, fits: Any) -> None:
    """Register both counts. countable(values): the first one's predicate; fits(*weights): the second one's."""

    def known(before: Array, after: Array, counts: Array) -> bool:
        return bool(before.dtype == after.dtype == float32) and before.size > 0 and fits(before, after)

    on(count_exponents, backend, counted, lambda values, counts: values.size > 0 and countable(values))
    on(count_lost_updates, backend, lost, known)
