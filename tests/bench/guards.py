"""What the guards of a compiled training step cost: how many there are, the time to compare them, and to find them.

    python tests/bench/guards.py

A launch of a captured step compares what the step read on the host before (see ampkit/core/capture/guards.py). The
comparison runs on the host, so it is measured here without a GPU, after an eager step of the same Python: seconds of
one thread, the median of many.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

import ampkit
from ampkit import models, nn, optim
from ampkit.core.capture.guards import Guards
from ampkit.core.capture.recorder import recorders

ROUNDS = 200


def works() -> dict[str, tuple[nn.Module, Any]]:
    """Models by name, each with a batch."""
    images, tokens = ampkit.randn(1, 3, 64, 64), ampkit.tensor(np.arange(16)[None] % 64)
    return {
        "perceptron, 3 layers": (nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), ampkit.randn(2, 64)),
        "resnet18": (models.resnet18(10), images),
        "resnet50": (models.resnet50(10), images),
        "gpt, 12 layers": (models.GPT(64, 64, 12, 4, 16), tokens),
    }


def measure(model: nn.Module, batch: Any) -> tuple[int, float, float]:
    """The number of guards, and the seconds to compare and to find them."""
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    scaler = ampkit.GradScaler("cpu", init_scale=1.0)

    def step(x: Any) -> Any:
        with ampkit.autocast("cpu", dtype=ampkit.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    step(batch)
    start = time.perf_counter()
    step(batch)
    plain = time.perf_counter() - start
    start = time.perf_counter()
    guards = Guards("cpu", step)
    guards.begin_call()
    recorders.append(guards)
    step(batch)
    recorders.remove(guards)
    guards.end_call()
    found = time.perf_counter() - start - plain
    assert guards.hold()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        guards.hold()
        times.append(time.perf_counter() - start)
    return len(guards), statistics.median(times), found


def main() -> None:
    print(f"{'step of':24}{'guards':>8}{'compared in us':>16}{'found in ms, once':>20}")
    for name, (model, batch) in works().items():
        number, compared, found = measure(model, batch)
        print(f"{name:24}{number:8}{compared * 1e6:16.0f}{max(found, 0) * 1e3:20.0f}")


if __name__ == "__main__":
    main()
