"""TensorBoard's event files, in `tensorboard/` of the run directory: `tensorboard --logdir runs`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...utils.tensorboard import SummaryWriter
from . import Metrics, Start


class Writer:
    """A scalar for each value; a resumed run marks its start, so that TensorBoard drops the steps it writes again."""

    def __init__(self, start: Start):
        self._file = SummaryWriter(start.directory / "tensorboard", purge_step=start.done + 1 if start.done else None)
        if not start.done and start.recipe:
            self._file.add_text("recipe", f"```\n{json.dumps(start.recipe, indent=2)}\n```")

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""
        for step, values, when in rows:
            for name, value in values.items():
                self._file.add_scalar(name, value, step, when)
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()
