"""The line search of LBFGS: where it ends, and how often it looks."""

import numpy as np
import pytest

from ampkit.optim.lbfgs.line_search import ENOUGH, FLATTER, Point, Search, between

WAYS_DOWN = {
    "parabola": (lambda t: (t - 3) ** 2, lambda t: 2 * (t - 3)),
    "steep beyond": (lambda t: np.exp(t) - 5 * t, lambda t: np.exp(t) - 5),
    "far": (lambda t: -t / (t * t + 2), lambda t: (t * t - 2) / (t * t + 2) ** 2),
    "waves": (lambda t: 0.1 * t * t - np.sin(3 * t), lambda t: 0.2 * t - 3 * np.cos(3 * t)),
    "an edge": (lambda t: -np.log(2 - t) - 3 * t if t < 2 else np.nan, lambda t: 1 / (2 - t) - 3 if t < 2 else np.nan),
}


@pytest.mark.parametrize("first", [1e-3, 0.5, 1.0, 30.0])
@pytest.mark.parametrize("name", WAYS_DOWN)
def test_a_line_search_ends_where_both_conditions_hold(name, first):
    loss, slope = WAYS_DOWN[name]
    start = Point(0.0, loss(0.0), None, slope(0.0))
    search = Search(lambda t: Point(t, loss(t), None, slope(t)), start, 25, 1e-12)
    found = search.run(first)
    assert found.t > 0 and search.count <= 26
    assert found.loss == loss(found.t) <= start.loss + ENOUGH * found.t * start.slope
    assert abs(found.slope) <= FLATTER * abs(start.slope)


def test_a_line_search_stops_when_it_may_look_no_more():
    loss, looks = lambda t: 5 - t, []
    search = Search(lambda t: looks.append(t) or Point(t, loss(t), None, -1.0), Point(0.0, 5.0, None, -1.0), 4, 1e-9)
    assert search.run(1.0).t == looks[-1] > 100 and len(looks) == 5


def test_a_first_length_that_is_good_is_taken():
    search = Search(lambda t: Point(t, (t - 3) ** 2, None, 2 * (t - 3)), Point(0.0, 9.0, None, -6.0), 25, 1e-12)
    assert search.run(3.5).t == 3.5 and search.count == 1


def test_a_cubic_through_two_places_has_its_minimum_where_calculus_says():
    cubic, slope = lambda t: t**3 - 3 * t, lambda t: 3 * t * t - 3
    for ends in ((0.0, 2.0), (2.0, 0.0)):
        one, other = (Point(t, cubic(t), None, slope(t)) for t in ends)
        assert between(one, other, 0.0, 2.0) == pytest.approx(1.0)
        assert between(one, other, 0.0, 0.5) == 0.5
        assert between(one, other._replace(loss=np.inf), 0.0, 2.0) == 1.0
