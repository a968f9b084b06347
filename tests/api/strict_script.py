"""A training script with every type annotated: it runs beside a clone, and strict type checkers find ampkit's types.

Run by .ci/run with ampkit installed in both ways, from the folder that contains the clone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import ampkit
from ampkit import Tensor, nn, ops, optim


class Classifier(nn.Module):
    """Two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(8, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(ops.relu(self.hidden(x)))
        return logits


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(count):
        yield ampkit.randn(16, 8), ampkit.randint(0, 3, (16,))


def train(model: nn.Module, steps: int) -> list[float]:
    """The loss of each step in float16."""
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    scaler = ampkit.GradScaler()
    losses: list[float] = []
    dtypes: set[ampkit.dtype] = {parameter.dtype for parameter in model.parameters()}
    assert dtypes == {ampkit.float32} and all(dtype.is_floating_point for dtype in dtypes)
    assert np.zeros(3, ampkit.float32).dtype == ampkit.float32
    for x, y in batches(steps):
        with ampkit.autocast(dtype=ampkit.float16):
            loss: Tensor = ops.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    installed = Path(ampkit.__file__).parent
    model = Classifier(16)
    losses = train(model, 3)
    ampkit.save(model.state_dict(), "weights.safetensors")
    assert (installed / "py.typed").exists(), installed
    assert all(loss > 0 for loss in losses), losses
    print(f"ampkit {ampkit.__version__} of {installed}: losses {losses}")
