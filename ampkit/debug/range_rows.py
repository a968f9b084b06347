"""What a sampled step says of each layer: ranges of values, what formats lose of them, and lost updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..amp.exponents import BIAS, EXPONENTS, FORMATS, LARGEST, Losses, losses

ACTIVATION, GRADIENT, PARAMETER, PARAMETER_GRADIENT = "activation", "gradient", "parameter", "parameter gradient"
LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Range:
    """The values of one kind that one op of a layer, or one parameter, had in a step.

    of: "activation", the output of an op; "gradient", what its backward made for its inputs; "parameter"; or "parameter
    gradient". path: of the module, or of the parameter. op: its name, "cast" for a cast to a narrower dtype, "" for a
    parameter. dtype: of the values counted. stored: the dtype they are kept in: for a cast what it makes, else `dtype`.
    scale: the loss scale that gradients are multiplied by, else 1. counts: a row of `amp.exponents`, of the values as
    they are, with their scale.
    """

    of: str
    path: str
    op: str
    dtype: str
    stored: str
    scale: float
    counts: np.ndarray[Any, Any]

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What identifies it within a step."""
        return self.of, self.path, self.op, self.dtype, self.stored

    @property
    def count(self) -> int:
        """How many values."""
        return int(self.counts[:EXPONENTS].sum())

    @property
    def zero(self) -> int:
        """How many are zero."""
        return self.count - int(self.counts[EXPONENTS])

    @property
    def nan(self) -> int:
        """How many are NaN."""
        return int(self.counts[EXPONENTS + 1])

    @property
    def inf(self) -> int:
        """How many are infinite."""
        return int(self.counts[EXPONENTS - 1]) - self.nan

    @property
    def largest(self) -> float:
        """The largest finite magnitude, as stored: with the loss scale."""
        return float(np.int32(self.counts[LARGEST]).view(np.float32))

    def would_lose(self, name: str) -> Losses:
        """What the format `name`, a key of `amp.exponents.FORMATS`, would lose of the values with their scale."""
        return losses(self.counts, name)

    def lost(self) -> Losses:
        """What the stored dtype loses: overflown to infinity, subnormal (of less precision), flushed to zero.

        Where an op writes 16 bits itself, what it flushed is not known: it is among `zero`.
        """
        if self.stored not in LOW:
            return Losses(0, 0, 0)
        found = self.would_lose(self.stored)
        return found if self.stored != self.dtype else Losses(self.inf, found.subnormal, 0)

    def exponents(self) -> tuple[int, list[int]]:
        """The exponent e of the smallest values, and the number of values in [2^e, 2^(e+1)), [2^(e+1), ...) and on.

        Of gradients without their scale, which shifts them by a whole number (rounded, if it is no power of two).
        Zeros, inf, NaN, and what is subnormal in float32 are left out. (0, []) if none is left.
        """
        found = np.flatnonzero(self.counts[1 : EXPONENTS - 1]) + 1
        if not found.size:
            return 0, []
        first, last = int(found[0]), int(found[-1])
        shift = round(math.log2(self.scale)) if self.scale > 0 else 0
        return first - BIAS - shift, [int(n) for n in self.counts[first : last + 1]]

    def row(self) -> dict[str, Any]:
        """It as an object of JSON; numbers that are zero, and an op, scale and stored dtype that say nothing, left out.

        exponent, counts: see `exponents`. present: what the stored dtype loses; float16, ...: what these would: each
        [overflow, subnormal, flushed], in values.
        """
        exponent, counts = self.exponents()
        found: dict[str, Any] = {"of": self.of, "path": self.path, "op": self.op, "dtype": self.dtype}
        found |= {"zero": self.zero, "inf": self.inf, "nan": self.nan, "largest": self.largest}
        if self.stored != self.dtype:
            found["stored"] = self.stored
        if self.scale != 1.0:
            found["scale"] = self.scale
        would = {"present": self.lost(), **{name: self.would_lose(name) for name in FORMATS}}
        found |= {name: list(lost) for name, lost in would.items() if any(lost)}
        kept = {name: value for name, value in found.items() if value}
        return {**kept, "count": self.count, "exponent": exponent, "counts": counts}

    def merged(self, later: Range) -> Range:
        """Both together, with the scale of the later one."""
        counts = self.counts + later.counts
        counts[LARGEST] = max(self.counts[LARGEST], later.counts[LARGEST])
        return Range(*self.key, later.scale, counts)


@dataclass(frozen=True)
class Updates:
    """What 16-bit weights would lose of a parameter's update in a step.

    path: of the parameter. size: its elements. changed: how many the update changed. float16, bfloat16: how many of
    those would have stayed as they were in a weight of that dtype: round(round(weight) + update) == round(weight).
    """

    path: str
    size: int
    changed: int
    float16: int
    bfloat16: int

    def row(self) -> dict[str, Any]:
        """It as an object of JSON."""
        return dict(vars(self))

    def merged(self, later: Updates) -> Updates:
        """Both together."""
        sums = (getattr(self, n) + getattr(later, n) for n in ("size", "changed", "float16", "bfloat16"))
        return Updates(self.path, *sums)


@dataclass(frozen=True)
class Sample:
    """A sampled step: its number, and what it found by layer."""

    step: int
    ranges: list[Range]
    updates: list[Updates]

    def row(self) -> dict[str, Any]:
        """It as an object of JSON."""
        ranges, updates = [found.row() for found in self.ranges], [found.row() for found in self.updates]
        return {"step": self.step, "ranges": ranges, "updates": updates}
