"""A Trainer on the ranks that mpiexec starts: each has its part of every batch; prints sums of the weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ampkit
from ampkit import distributed, nn, ops, optim


def loss(model, batch):
    x, y = batch
    return ops.cross_entropy(model(x), y)


def main(folder: Path, uneven: bool) -> None:
    distributed.init_process_group()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((48, 6)).astype(np.float32), rng.integers(0, 3, 48)
    parts = [slice(start + 8 // size * rank, start + 8 // size * (rank + 1)) for start in range(0, 48, 8)]
    batches = [(ampkit.tensor(x[part]), ampkit.tensor(y[part])) for part in parts[: 4 if uneven and rank else None]]
    ampkit.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    trainer = ampkit.Trainer(
        model,
        optim.SGD(model.parameters(), lr=0.5),
        loss,
        max_epochs=1,
        default_root_dir=folder,
        log_every_n_steps=1,
        enable_model_summary=False,
    )
    trainer.fit(lambda: iter(batches), batches)
    sums = [f"{value.double().sum().item():.6f}" for value in model.state_dict().values()]
    print(" ".join(["weights", str(trainer.done), *sums]))  # in one write: the ranks share a pipe


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "uneven")
