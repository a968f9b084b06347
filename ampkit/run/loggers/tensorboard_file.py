"""TensorBoard's event files, in `tensorboard/` of the run directory: `tensorboard --logdir runs`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from . import Metrics, Start


class Writer:
    """A scalar for each value; a resumed run marks its start, so that TensorBoard drops the steps it writes again."""

    def __init__(self, start: Start):
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = event_pb2.Event
        self._summary, self._tensor = summary_pb2.Summary, tensor_pb2.TensorProto
        self._file = EventFileWriter(str(start.directory / "tensorboard"))
        if start.done:
            session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._file.add_event(self._event(wall_time=time.time(), step=start.done + 1, session_log=session))
        else:
            self._write_recipe(start, summary_pb2.SummaryMetadata)

    def _write_recipe(self, start: Start, metadata: Any) -> None:
        shown = metadata(plugin_data=metadata.PluginData(plugin_name="text"))
        text = f"```\n{json.dumps(start.recipe, indent=2)}\n```".encode()
        tensor = self._tensor(dtype=7, string_val=[text])  # 7: strings
        value = self._summary.Value(tag="recipe", metadata=shown, tensor=tensor)
        self._file.add_event(self._event(wall_time=time.time(), summary=self._summary(value=[value])))

    def write(self, rows: Sequence[Metrics]) -> None:
        """Write rows."""
        for step, values, when in rows:
            found = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._file.add_event(self._event(wall_time=when, step=step, summary=self._summary(value=found)))
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()
