"""A step length that lowers a loss enough and flattens its slope enough: the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ampkit.backends import Array

ENOUGH, FLATTER = 1e-4, 0.9  # c1 and c2 of the conditions, Nocedal and Wright's for quasi-Newton directions


class Point(NamedTuple):
    """A place along a direction: how far, and loss, gradient and slope there."""

    t: float
    loss: float
    gradient: Array
    slope: float


class Search:
    """One search: from `start`, t = 0, along a direction down; at(t) evaluates the loss, at most `most` times.

    narrowest: a bracket of less than this length is not looked into.
    Nocedal, Wright 2006, Numerical Optimization, algorithms 3.5 and 3.6, with cubic interpolation, eq. 3.59. A place
    where loss or slope are not finite is one that is too far.
    """

    def __init__(self, at: Callable[[float], Point], start: Point, most: int, narrowest: float):
        self.start, self.most, self.narrowest = start, most, narrowest
        self._at, self.count = at, 0  # evaluations

    def run(self, t: float) -> Point:
        """The place found, from the trial length `t` on: one that holds the conditions, or the lowest one seen."""
        bracket = self._bracket(t)
        return bracket[0] if len(bracket) == 1 else self._zoom(bracket)

    def at(self, t: float) -> Point:
        self.count += 1
        found = self._at(t)
        there = math.isfinite(found.loss) and math.isfinite(found.slope)
        return found if there else found._replace(loss=math.inf)

    def high(self, point: Point) -> bool:
        """Whether the loss is not enough lower (Armijo's condition)."""
        return point.loss > self.start.loss + ENOUGH * point.t * self.start.slope

    def flat(self, point: Point) -> bool:
        """Whether the slope is flat enough."""
        return abs(point.slope) <= -FLATTER * self.start.slope

    def _bracket(self, t: float) -> list[Point]:
        # Two places between which one holds the conditions, or one that does.
        before, now = self.start, self.at(t)
        for turn in range(self.most):
            if self.high(now) or (turn > 1 and now.loss >= before.loss):
                return [before, now]
            if self.flat(now):
                return [now]
            if now.slope >= 0:
                return [before, now]
            further = between(before, now, now.t + 0.01 * (now.t - before.t), 10 * now.t)
            before, now = now, self.at(further)
        return [self.start, now]

    def _zoom(self, bracket: list[Point]) -> Point:
        low, slow = _lower(bracket), False
        while self.count <= self.most and abs(bracket[1].t - bracket[0].t) >= self.narrowest:
            t, slow = self._inside(bracket, slow)
            now, best = self.at(t), bracket[low]
            if self.high(now) or now.loss >= best.loss:
                bracket[1 - low] = now
                low = _lower(bracket)
                continue
            if self.flat(now):
                return now
            if now.slope * (bracket[1 - low].t - best.t) >= 0:
                bracket[1 - low] = best
            bracket[low] = now
        return bracket[low]

    def _inside(self, bracket: list[Point], slow: bool) -> tuple[float, bool]:
        """The next place to look at, a tenth inside the bracket where the last one came close to an end too."""
        first, last = sorted(point.t for point in bracket)
        t, margin = between(*bracket, first, last), 0.1 * (last - first)
        if min(last - t, t - first) >= margin:
            return t, False
        if not slow and first < t < last:
            return t, True
        return (last - margin if last - t < t - first else first + margin), False


def _lower(bracket: list[Point]) -> int:
    return 0 if bracket[0].loss <= bracket[1].loss else 1


def between(one: Point, other: Point, low: float, high: float) -> float:
    """Where the cubic through two places, with their slopes, is least, within [low, high]; its middle if nowhere."""
    a, b = (one, other) if one.t <= other.t else (other, one)
    if not all(map(math.isfinite, (a.loss, b.loss, a.slope, b.slope))) or a.t == b.t:
        return (low + high) / 2
    bend = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = bend * bend - a.slope * b.slope
    root = math.sqrt(square) if square >= 0 else math.nan
    below = b.slope - a.slope + 2 * root
    if math.isnan(root) or below == 0:
        return (low + high) / 2
    return min(max(b.t - (b.t - a.t) * ((b.slope + root - bend) / below), low), high)
