"""A run of Weights & Biases, by its own client and its own settings: WANDB_PROJECT, WANDB_MODE=offline and so on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from . import Metrics, Start


class Writer:
    """A run named after the run directory, which a resumed run continues."""

    def __init__(self, start: Start):
        import wandb

        name = start.directory.resolve().name
        project = None if os.environ.get("WANDB_PROJECT") else "ampkit"
        settings = wandb.Settings(console="off", silent=True)
        self._run: Any = wandb.init(
            project=project, name=name, id=name, resume="allow", config=dict(start.recipe),
            dir=str(start.directory), settings=settings,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows; `step` is one of the values, since W&B's own step must not go back."""
        for step, values, _ in rows:
            self._run.log({"step": step, **values})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
