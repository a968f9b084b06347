"""Which of two runs is faster, as far as their times tell it."""

from __future__ import annotations

from statistics import median, quantiles
from typing import NamedTuple

from ..bench import Result

SAME = 0.03  # a smaller difference of two times is not worth saying
_FEWEST = 4  # turns that tell how much they vary


class Speed(NamedTuple):
    """How many times as fast a run is as the one called `other`: the median, and the range of half of it."""

    ratio: float
    low: float
    high: float
    other: str

    @property
    def faster(self) -> bool:
        """Whether three quarters of the measurements say so."""
        return self.low > 1 + SAME

    @property
    def slower(self) -> bool:
        """Whether three quarters of the measurements say so."""
        return self.high < 1 - SAME

    def __str__(self) -> str:
        words = speed(self.ratio if self.faster or self.slower else 1.0)
        if round(self.low, 2) == round(self.high, 2):
            return f"{words} {self.other}"
        return f"{words} {self.other} ({self.low:.2f} to {self.high:.2f} times its speed in half of the measurements)"

    def short(self) -> str:
        """The speed in a cell of a table: "1.50 x faster"."""
        if self.faster:
            return f"{self.ratio:.2f} x faster"
        return f"{1 / self.ratio:.2f} x slower" if self.slower else "as fast"


def speed_of(result: Result, first: Result) -> Speed | None:
    """The speed of `result` against `first`; None if one of them has no times.

    Of two that took turns, each turn is compared with the other's of the same time, so that what else the computer did
    then slows both. Of others, the quartiles of their steps tell how much they vary.
    """
    if not result.step_seconds or not first.step_seconds:
        return None
    ratio = first.step_seconds / result.step_seconds
    if ratios := _ratios_of_turns(result, first):
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        return Speed(median(ratios), low, high, first.dtype)
    if first.quartiles is None or result.quartiles is None:
        return Speed(ratio, ratio, ratio, first.dtype)
    (low, high), (fast, slow) = first.quartiles, result.quartiles
    return Speed(ratio, low / slow, high / fast, first.dtype)


def _ratios_of_turns(result: Result, first: Result) -> list[float]:
    """How many times as fast each turn was as that of the other beside it; empty where too few were taken."""
    ratios = [wide / mine for wide, mine in zip(first.turns or (), result.turns or (), strict=False)]
    return ratios if len(ratios) >= _FEWEST else []


def speed(ratio: float) -> str:
    """How many times as fast, in words."""
    if abs(ratio - 1) < SAME:
        return "is as fast as"
    if ratio > 1:
        return f"is faster: {ratio:.2f} times the speed of"
    return f"is slower: {1 / ratio:.2f} times the time of"


def disagreement(result: Result, first: Result, found: Speed) -> float | None:
    """The ratio that the ledgers give, if it is none that the timing allows."""
    if result.ledger is None or first.ledger is None or not result.ledger.seconds:
        return None
    later = first.ledger.seconds / result.ledger.seconds
    opposite = (found.faster and later < 1 - SAME) or (found.slower and later > 1 + SAME)
    return later if opposite or not 0.8 * found.low < later < 1.25 * found.high else None


def is_sure(result: Result, first: Result, found: Speed) -> bool:
    """Whether the ratio is a verdict: turns were taken, which other work slows alike, or the ledgers agree with it."""
    return bool(_ratios_of_turns(result, first)) or disagreement(result, first, found) is None
