"""What `debug.detect_nonfinite` costs, and a step that `debug.Ranges` samples: steps with and without them, in turns.

    python -m tests.bench.detect

Prints the median CPU time of such a step, on one thread, by that of a plain one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import ampkit
from ampkit import debug, models, nn, ops, optim

MODELS: dict[str, Callable[[], tuple[nn.Module, ampkit.Tensor]]] = {
    "gpt nano": lambda: (models.gpt(), ampkit.randint(0, 256, (8, 64))),
    "mlp": lambda: (
        nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512))]),
        ampkit.randn(256, 512),
    ),
    "cnn": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
        ),
        ampkit.randn(32, 3, 32, 32),
    ),
}  # fmt: skip


def ratios(name: str, dtype: ampkit.dtype | None, rounds: int = 15) -> list[float]:
    """The CPU time of a step in `detect_nonfinite`, and of one sampled by Ranges, by that of a plain one; medians."""
    model, x = MODELS[name]()
    optimizer = optim.AdamW(model.parameters())
    scaler = ampkit.GradScaler(init_scale=1024.0, enabled=dtype is ampkit.float16)
    ways = [nullcontext, debug.detect_nonfinite, debug.Ranges(model, every=1).step]

    def step(way: Callable[[], AbstractContextManager[object]]) -> float:
        began = time.process_time()
        with way():
            with ampkit.autocast(dtype=dtype or ampkit.float16, enabled=dtype is not None):
                loss = ops.square(model(x).float()).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        return time.process_time() - began

    times = [[step(way) for way in ways] for _ in range(rounds)]
    plain, *others = (statistics.median(column) for column in zip(*times[2:], strict=True))
    return [other / plain for other in others]


if __name__ == "__main__":
    ampkit.set_num_threads(1)
    print("| model | dtype | detect_nonfinite | sampled by Ranges |\n|---|---|---|---|")
    for name in MODELS:
        for dtype in (None, ampkit.bfloat16, ampkit.float16):
            detecting, sampled = ratios(name, dtype)
            what = f"{name} | {dtype.name if dtype else 'float32'}"
            print(f"| {what} | {detecting:.2f} x | {sampled:.2f} x |", flush=True)
