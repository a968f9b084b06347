"""A run of MLflow, where MLFLOW_TRACKING_URI says, by default in `mlflow/` of the run directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...base.atomic_file import write
from . import Metrics, Start

BATCH = 1000  # metrics in one call: MLflow's limit


class Writer:
    """A run named after the run directory, whose file mlflow-run.txt keeps its id: a resumed run continues it."""

    def __init__(self, start: Start):
        import mlflow.entities
        from mlflow import MlflowClient

        self._metric: Any = mlflow.entities.Metric
        store = None if os.environ.get("MLFLOW_TRACKING_URI") else (start.directory.resolve() / "mlflow").as_uri()
        if store is not None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client: Any = MlflowClient(tracking_uri=store)
        note = start.directory / "mlflow-run.txt"
        if start.done and note.exists():
            self._id = note.read_text().strip()
        else:
            self._id = self._new_run(start)
            write("mlflow", note, f"{self._id}\n".encode())

    def _new_run(self, start: Start) -> str:
        found = self._client.get_experiment_by_name("ampkit")
        experiment = self._client.create_experiment("ampkit") if found is None else found.experiment_id
        run = self._client.create_run(experiment, run_name=start.directory.resolve().name)
        for section, keys in start.recipe.items():
            for key, value in keys.items():
                self._client.log_param(run.info.run_id, f"{section}.{key}", value)
        return str(run.info.run_id)

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""
        found = [
            self._metric(name, value, int(row.when * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(found), BATCH):
            self._client.log_batch(self._id, metrics=found[start : start + BATCH])

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._id)
