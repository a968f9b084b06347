"""The most valuable choices whose errors together stay below a limit: a 0/1 programme."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np


def search(
    values: Sequence[float], errors: Sequence[float], limit: float, groups: Sequence[Hashable] | None = None
) -> tuple[list[bool], str]:
    """Which items to take, so that the sum of their values is the largest and that of their errors at most `limit`.

    values: what each saves; an item that saves nothing is not taken. errors: from 0, infinite for an item that must not
    be taken. groups: of each item, the group of which at most one is taken; by default each is its own. Also returns
    the solver: "milp", SciPy's branch and bound, or without SciPy "greedy", by value per error, which without groups
    can miss at most the value of one item.
    """
    groups = range(len(values)) if groups is None else groups
    possible = [i for i, (v, e) in enumerate(zip(values, errors, strict=True)) if v > 0 and e <= limit]
    try:
        from scipy import optimize
    except ImportError:
        chosen, solver = _greedy(values, errors, limit, possible, groups), "greedy"
    else:
        chosen, solver = _milp(optimize, values, errors, limit, possible, groups), "milp"
    return [i in chosen for i in range(len(values))], solver


def _milp(
    optimize: Any,
    values: Sequence[float],
    errors: Sequence[float],
    limit: float,
    possible: list[int],
    groups: Sequence[Hashable],
) -> set[int]:
    if not possible:
        return set()
    value, error = (np.array([numbers[i] for i in possible], np.float64) for numbers in (values, errors))
    # Numbers around one: the solver's tolerances are absolute.
    below = [optimize.LinearConstraint(error[None] / (limit or 1.0), ub=1.0)]
    known = list(dict.fromkeys(groups[i] for i in possible))
    if len(known) < len(possible):
        member = np.array([[groups[i] == group for i in possible] for group in known], np.float64)
        below.append(optimize.LinearConstraint(member, ub=1.0))
    found = optimize.milp(
        -value / value.max(), integrality=np.ones(len(possible)), bounds=optimize.Bounds(0, 1), constraints=below
    )
    if found.x is None:
        return _greedy(values, errors, limit, possible, groups)
    return {i for i, taken in zip(possible, found.x, strict=True) if taken > 0.5}


def _greedy(
    values: Sequence[float], errors: Sequence[float], limit: float, possible: list[int], groups: Sequence[Hashable]
) -> set[int]:
    chosen, total = dict[Hashable, int](), 0.0
    for i in sorted(possible, key=lambda i: -values[i] / errors[i] if errors[i] else -math.inf):
        before = chosen.get(groups[i])
        added = errors[i] - (0.0 if before is None else errors[before])
        if (before is None or values[i] > values[before]) and total + added <= limit:
            chosen[groups[i]] = i
            total += added
    # The bound of the greedy choice: it is at least half of the best once compared with the single best item.
    best = max(possible, key=lambda i: values[i], default=None)
    if best is not None and sum(values[i] for i in chosen.values()) < values[best]:
        return {best}
    return set(chosen.values())
