"""The ranges log of a run: `ranges.jsonl`, a JSON object per sampled step (see debug/range_rows.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from ...debug import Ranges
from ...debug.range_rows import sample_of
from ..metrics_log import MetricsLog, ResumePoint, read


class RangesLog:
    """Writes the samples of `ranges` to the file `path`, which the first one creates; a context manager.

    after: where a resumed run continues; rows beyond it are removed, since they are written again, and those before
    count in `ranges`. notices: a line for each defect of the file. Raises FileError as MetricsLog does.
    """

    def __init__(self, path: Path, ranges: Ranges | None, after: ResumePoint | None = None):
        self.path, self.ranges = path, ranges
        self._log = None if read(path) is None else MetricsLog(path, after)
        self.notices = [] if self._log is None else [*self._log.notices]
        if self._log is not None and ranges is not None:
            self._include_rows(ranges)

    def _include_rows(self, ranges: Ranges) -> None:
        unread = 0
        for line in (read(self.path) or b"").splitlines():
            try:
                ranges.include(sample_of(json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                unread += 1
        if unread:
            self.notices.append(f"{self.path}: {unread} rows cannot be read, so the recommendations leave them out")

    def write(self) -> None:
        """Write the samples that the device has finished, and take them out of `ranges`."""
        while self.ranges is not None and self.ranges.samples:
            if self._log is None:
                self._log = MetricsLog(self.path)
            self._log.append(self.ranges.samples[0].row())
            del self.ranges.samples[0]

    def sync(self) -> None:
        """Write, and flush all rows to the disk."""
        self.write()
        if self._log is not None:
            self._log.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.write()
        finally:
            if self._log is not None:
                self._log.__exit__(None)
