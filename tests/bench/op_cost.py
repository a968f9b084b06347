"""What a recorded op costs in Python above NumPy's own call, in microseconds.

    python tests/bench/op_cost.py

Each figure is the least of many short rounds, the op and the bare NumPy call taken in turn, so that a busy machine
disturbs both alike. Arrays of four elements: the arithmetic itself is free.
"""

from __future__ import annotations

import timeit

import numpy as np

import ampkit
from ampkit import ops

ROUNDS, CALLS = 60, 2000


def paired(ours, bare) -> tuple[float, float]:
    """The least time of each, in microseconds a call."""
    times = [(timeit.timeit(ours, number=CALLS), timeit.timeit(bare, number=CALLS)) for _ in range(ROUNDS)]
    return tuple(min(column) / CALLS * 1e6 for column in zip(*times, strict=True))


def main() -> None:
    a = ampkit.tensor(np.ones(4), dtype=ampkit.float32, requires_grad=True)
    b = ampkit.tensor(np.ones(4), dtype=ampkit.float32)
    x, y = a.array, b.array
    rows = [
        ("add", lambda: ops.add(a, b), lambda: x + y),
        ("mul", lambda: ops.mul(a, b), lambda: x * y),
        ("mul by a number", lambda: ops.mul(a, 2.0), lambda: x * 2.0),
        ("tanh", lambda: ops.tanh(a), lambda: np.tanh(x)),
        ("exp", lambda: ops.exp(a), lambda: np.exp(x)),
    ]
    print(f"{'op':<18}{'NumPy':>8}{'recorded':>10}{'in autocast':>13}{'no_grad':>9}   us above NumPy")
    for name, ours, bare in rows:
        recorded, base = paired(ours, bare)
        with ampkit.autocast(dtype=ampkit.bfloat16):
            inside, _ = paired(ours, bare)
        with ampkit.no_grad():
            off, _ = paired(ours, bare)
        print(f"{name:<18}{base:8.2f}{recorded - base:10.2f}{inside - base:13.2f}{off - base:9.2f}")


if __name__ == "__main__":
    main()
