"""Python overhead of a recorded op above the bare NumPy call, in microseconds.

    python tests/bench/op_cost.py

Each figure is the minimum of many short rounds. The NumPy call and the op (recorded, in autocast, in no_grad) alternate
within a round, so that a busy machine affects all alike. Arrays have four elements, so arithmetic costs nothing.
"""

from __future__ import annotations

import timeit
from contextlib import nullcontext

import numpy as np

import ampkit
from ampkit import ops

ROUNDS, CALLS = 300, 500
REGIONS = {
    "NumPy": nullcontext,
    "recorded": nullcontext,
    "in autocast": lambda: ampkit.autocast(dtype=ampkit.bfloat16),
    "no_grad": ampkit.no_grad,
}


def interleaved(ours, bare) -> list[float]:
    """The minimal time of a call in each region, in microseconds."""
    least = dict.fromkeys(REGIONS, float("inf"))
    for _ in range(ROUNDS):
        for name, region in REGIONS.items():
            with region():
                seconds = timeit.timeit(bare if name == "NumPy" else ours, number=CALLS)
            least[name] = min(least[name], seconds / CALLS * 1e6)
    return list(least.values())


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
        ("maximum", lambda: ops.maximum(a, b), lambda: np.maximum(x, y)),
    ]
    print(f"{'op':<18}" + "".join(f"{name:>13}" for name in REGIONS) + "   us above NumPy")
    for name, ours, bare in rows:
        base, *others = interleaved(ours, bare)
        print(f"{name:<18}{base:13.2f}" + "".join(f"{other - base:13.2f}" for other in others))


if __name__ == "__main__":
    main()
