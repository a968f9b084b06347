"""`torch.utils.tensorboard`: scalars and texts in TensorBoard's event files, by the package tensorboard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ....base.errors import StateError


class SummaryWriter:
    """Writes event files to `log_dir`, by default runs/<time>; `comment` is appended to its name.

    Images, graphs, histograms and embeddings are refused. Raises StateError where tensorboard is not installed.
    """

    def __init__(self, log_dir: Any = None, comment: str = "", purge_step: int | None = None, **ignored: Any):
        try:
            self._protocol = import_module("tensorboard.compat.proto.event_pb2")
            self._summary = import_module("tensorboard.compat.proto.summary_pb2")
            self._tensor = import_module("tensorboard.compat.proto.tensor_pb2")
            files: Any = import_module("tensorboard.summary.writer.event_file_writer")
        except ImportError:
            raise StateError("SummaryWriter", "the package tensorboard", "none", "pip install tensorboard") from None
        self.log_dir = str(log_dir) if log_dir else str(Path("runs", time.strftime("%b%d_%H-%M-%S") + comment))
        self._file = files.EventFileWriter(self.log_dir)

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, walltime: float | None = None,
                   **ignored: Any) -> None:  # fmt: skip
        """A number, or a tensor of one element, at a step."""
        self._add(self._summary.Summary.Value(tag=tag, simple_value=float(scalar_value)), global_step, walltime)

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: int | None = None,
                    walltime: float | None = None) -> None:  # fmt: skip
        """Several numbers at a step, as `main_tag/name`."""
        for name, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{name}", value, global_step, walltime)

    def add_text(self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
                 ) -> None:  # fmt: skip
        """A text at a step."""
        kind = self._summary.SummaryMetadata
        shown = kind(plugin_data=kind.PluginData(plugin_name="text"))
        held = self._tensor.TensorProto(dtype=7, string_val=[text_string.encode()])  # 7: strings
        self._add(self._summary.Summary.Value(tag=tag, metadata=shown, tensor=held), global_step, walltime)

    def _add(self, value: Any, step: int | None, when: float | None) -> None:
        summary = self._summary.Summary(value=[value])
        event = self._protocol.Event(wall_time=when or time.time(), step=step or 0, summary=summary)
        self._file.add_event(event)

    def flush(self) -> None:
        """Write what is pending."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("add_"):
            raise StateError(f"SummaryWriter.{name}", "add_scalar, add_scalars or add_text", name, "leave it out")
        raise AttributeError(f"'SummaryWriter' object has no attribute {name!r}")
