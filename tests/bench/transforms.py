"""Derivatives of a perceptron by `ampkit.func` and by torch.func, in processes that take turns: times in forwards.

    python tests/bench/transforms.py [--rounds N]

Needs PyTorch. Medians: jvp along the input, jvp along all Parameters, and the gradient.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from statistics import median
from typing import Any

WIDTHS, BATCH = (512, 2048, 512, 10), 256


def jobs(library: Any) -> dict[str, Any]:
    """The calls to time, of ampkit or of torch."""
    nn, func = library.nn, library.func
    a, b, c, d = WIDTHS
    model = nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c), nn.LayerNorm(c), nn.Linear(c, d))
    params = {name: p.detach() for name, p in model.named_parameters()}
    ones = {name: library.ones_like(p) for name, p in params.items()}
    x, v = library.randn(BATCH, a), library.randn(BATCH, a)

    def forward() -> None:
        with library.no_grad():
            model(x)

    return {
        "forward": forward,
        "jvp of the input": lambda: func.jvp(lambda x: func.functional_call(model, params, (x,)), (x,), (v,)),
        "jvp of the Parameters": lambda: func.jvp(lambda p: func.functional_call(model, p, (x,)), (params,), (ones,)),
        "grad": lambda: func.grad(lambda p: func.functional_call(model, p, (x,)).sum())(params),
    }


def measured(name: str, rounds: int) -> dict[str, float]:
    """The medians of a library's calls in this process, in seconds."""
    calls = jobs(import_module(name))
    seconds: dict[str, list[float]] = {call: [] for call in calls}
    for _ in range(rounds):
        for call, run in calls.items():
            began = time.perf_counter()
            run()
            seconds[call].append(time.perf_counter() - began)
    return {call: median(times[2:]) for call, times in seconds.items()}


def main() -> None:
    """Run processes of the two libraries in turns, and print a table of medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        print(json.dumps(measured(options.library, options.rounds)))
        return
    found: dict[str, list[dict[str, float]]] = {"ampkit": [], "torch": []}
    for _ in range(3):
        for library, each in found.items():
            command = [sys.executable, __file__, "--library", library, "--rounds", str(options.rounds)]
            each.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print(f"{'':22} {'ampkit':>8} {'PyTorch':>8}   in forwards; PyTorch's time / ampkit's")
    for call in found["ampkit"][0]:
        times = [median(one[call] for one in each) for each in found.values()]
        forwards = [t / median(one["forward"] for one in each) for t, each in zip(times, found.values(), strict=True)]
        print(f"{call:22} {forwards[0]:8.2f} {forwards[1]:8.2f}   {times[1] / times[0]:.2f}")


if __name__ == "__main__":
    main()
