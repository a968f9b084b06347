"""Line search for a step length that satisfies the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ampkit.backends import Array

# c1 and c2 of the sufficient decrease and the curvature condition, Nocedal and Wright's for quasi-Newton directions
DECREASE, CURVATURE = 1e-4, 0.9


class Point(NamedTuple):
    """A point on the line: the step length t, and the loss, its gradient and its derivative along the line there."""

    t: float
    loss: float
    gradient: Array
    derivative: float


class LineSearch:
    """One search from `start`, t = 0, along a descent direction; evaluate(t) is called at most `max_evaluations` times.

    min_bracket: a bracket shorter than this is not searched further. A point where loss or derivative are not finite
    counts as one with an infinite loss.
    Nocedal, Wright 2006, Numerical Optimization, algorithms 3.5 and 3.6, with cubic interpolation, eq. 3.59.
    """

    def __init__(self, evaluate: Callable[[float], Point], start: Point, max_evaluations: int, min_bracket: float):
        self.start, self.max_evaluations, self.min_bracket = start, max_evaluations, min_bracket
        self._evaluate, self.evaluations = evaluate, 0

    def run(self, t: float) -> Point:
        """Search from the trial length `t`: a point that satisfies the conditions, or the lowest one evaluated."""
        bracket = self._bracket(t)
        return bracket[0] if len(bracket) == 1 else self._zoom(bracket)

    def at(self, t: float) -> Point:
        self.evaluations += 1
        point = self._evaluate(t)
        finite = math.isfinite(point.loss) and math.isfinite(point.derivative)
        return point if finite else point._replace(loss=math.inf)

    def too_high(self, point: Point) -> bool:
        """Whether the loss violates the sufficient decrease (Armijo) condition."""
        return point.loss > self.start.loss + DECREASE * point.t * self.start.derivative

    def is_flat(self, point: Point) -> bool:
        """Whether the derivative satisfies the curvature condition."""
        return abs(point.derivative) <= -CURVATURE * self.start.derivative

    def _bracket(self, t: float) -> list[Point]:
        # Two points between which one satisfies the conditions, or one that does.
        previous, point = self.start, self.at(t)
        for iteration in range(self.max_evaluations):
            if self.too_high(point) or (iteration > 1 and point.loss >= previous.loss):
                return [previous, point]
            if self.is_flat(point):
                return [point]
            if point.derivative >= 0:
                return [previous, point]
            t = cubic_minimum(previous, point, point.t + 0.01 * (point.t - previous.t), 10 * point.t)
            previous, point = point, self.at(t)
        return [self.start, point]

    def _zoom(self, bracket: list[Point]) -> Point:
        low, near_end = _index_of_lower(bracket), False
        while self.evaluations <= self.max_evaluations and abs(bracket[1].t - bracket[0].t) >= self.min_bracket:
            t, near_end = self._trial(bracket, near_end)
            point, best = self.at(t), bracket[low]
            if self.too_high(point) or point.loss >= best.loss:
                bracket[1 - low] = point
                low = _index_of_lower(bracket)
                continue
            if self.is_flat(point):
                return point
            if point.derivative * (bracket[1 - low].t - best.t) >= 0:
                bracket[1 - low] = best
            bracket[low] = point
        return bracket[low]

    def _trial(self, bracket: list[Point], near_end: bool) -> tuple[float, bool]:
        """The next trial length, and whether it is near an end; after such a one, a tenth inside the bracket."""
        first, last = sorted(point.t for point in bracket)
        t, margin = cubic_minimum(bracket[0], bracket[1], first, last), 0.1 * (last - first)
        if min(last - t, t - first) >= margin:
            return t, False
        if not near_end and first < t < last:
            return t, True
        return (last - margin if last - t < t - first else first + margin), False


def _index_of_lower(bracket: list[Point]) -> int:
    return 0 if bracket[0].loss <= bracket[1].loss else 1


def cubic_minimum(one: Point, other: Point, low: float, high: float) -> float:
    """The minimum in [low, high] of the cubic through two points with their derivatives; the middle if it has none."""
    a, b = (one, other) if one.t <= other.t else (other, one)
    if not all(map(math.isfinite, (a.loss, b.loss, a.derivative, b.derivative))) or a.t == b.t:
        return (low + high) / 2
    d1 = a.derivative + b.derivative - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.derivative * b.derivative
    d2 = math.sqrt(square) if square >= 0 else math.nan
    denominator = b.derivative - a.derivative + 2 * d2
    if math.isnan(d2) or denominator == 0:
        return (low + high) / 2
    return min(max(b.t - (b.t - a.t) * ((b.derivative + d2 - d1) / denominator), low), high)
