"""The line search of LBFGS: where it ends, and after how many evaluations."""

import numpy as np
import pytest

from ampkit.optim.lbfgs.line_search import CURVATURE, DECREASE, LineSearch, Point, cubic_minimum

LOSSES = {
    "parabola": (lambda t: (t - 3) ** 2, lambda t: 2 * (t - 3)),
    "steep beyond": (lambda t: np.exp(t) - 5 * t, lambda t: np.exp(t) - 5),
    "far": (lambda t: -t / (t * t + 2), lambda t: (t * t - 2) / (t * t + 2) ** 2),
    "waves": (lambda t: 0.1 * t * t - np.sin(3 * t), lambda t: 0.2 * t - 3 * np.cos(3 * t)),
    "an edge": (lambda t: -np.log(2 - t) - 3 * t if t < 2 else np.nan, lambda t: 1 / (2 - t) - 3 if t < 2 else np.nan),
}


@pytest.mark.parametrize("first", [1e-3, 0.5, 1.0, 30.0])
@pytest.mark.parametrize("name", LOSSES)
def test_a_line_search_ends_where_both_Wolfe_conditions_hold(name, first):
    loss, derivative = LOSSES[name]
    start = Point(0.0, loss(0.0), None, derivative(0.0))
    search = LineSearch(lambda t: Point(t, loss(t), None, derivative(t)), start, 25, 1e-12)
    found = search.run(first)
    assert found.t > 0 and search.evaluations <= 26
    assert found.loss == loss(found.t) <= start.loss + DECREASE * found.t * start.derivative
    assert abs(found.derivative) <= CURVATURE * abs(start.derivative)


def test_a_line_search_stops_after_its_evaluations():
    loss, lengths = lambda t: 5 - t, []
    search = LineSearch(
        lambda t: lengths.append(t) or Point(t, loss(t), None, -1.0), Point(0.0, 5.0, None, -1.0), 4, 1e-9
    )
    assert search.run(1.0).t == lengths[-1] > 100 and len(lengths) == 5


def test_a_first_length_that_satisfies_the_conditions_is_taken():
    search = LineSearch(lambda t: Point(t, (t - 3) ** 2, None, 2 * (t - 3)), Point(0.0, 9.0, None, -6.0), 25, 1e-12)
    assert search.run(3.5).t == 3.5 and search.evaluations == 1


def test_a_cubic_through_two_points_has_its_minimum_where_calculus_says():
    cubic, derivative = lambda t: t**3 - 3 * t, lambda t: 3 * t * t - 3
    for ends in ((0.0, 2.0), (2.0, 0.0)):
        one, other = (Point(t, cubic(t), None, derivative(t)) for t in ends)
        assert cubic_minimum(one, other, 0.0, 2.0) == pytest.approx(1.0)
        assert cubic_minimum(one, other, 0.0, 0.5) == 0.5
        assert cubic_minimum(one, other._replace(loss=np.inf), 0.0, 2.0) == 1.0
