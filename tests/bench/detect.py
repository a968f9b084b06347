"""What `debug.detect_nonfinite` costs: `python -m tests.bench.detect`. Training steps with and without it, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

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


def ratio(name: str, dtype: ampkit.dtype | None, rounds: int = 15) -> float:
    """The process time of a step in `detect_nonfinite`, by that of a step without it; medians."""
    model, x = MODELS[name]()
    optimizer = optim.AdamW(model.parameters())
    scaler = ampkit.GradScaler(init_scale=1024.0, enabled=dtype is ampkit.float16)

    def step() -> float:
        began = time.process_time()
        with ampkit.autocast(dtype=dtype or ampkit.float16, enabled=dtype is not None):
            loss = ops.square(model(x).float()).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return time.process_time() - began

    off, on = [], []
    for _ in range(rounds):
        off.append(step())
        with debug.detect_nonfinite():
            on.append(step())
    return statistics.median(on[2:]) / statistics.median(off[2:])


if __name__ == "__main__":
    ampkit.set_num_threads(1)
    for name in MODELS:
        for dtype in (None, ampkit.bfloat16, ampkit.float16):
            print(f"{name:10} {dtype.name if dtype else 'float32':10} {ratio(name, dtype):.2f} x")
