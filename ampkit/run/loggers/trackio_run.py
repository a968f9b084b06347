"""A run of trackio, on this machine: `trackio show` opens it. TRACKIO_DIR says where it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import Metrics, Start


class Writer:
    """A run named after the run directory, which a resumed run continues."""

    def __init__(self, start: Start):
        import trackio

        name, recipe = start.directory.resolve().name, dict(start.recipe)
        self._run: Any = trackio.init("ampkit", name, config=recipe, resume="allow", embed=False)

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""
        for step, values, _ in rows:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
