"""Find Parquet and Arrow files by path or pattern, and open them with pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...base import files
from ...base.errors import FileError
from ...base.files import foreign
from .. import file_patterns
from ..file_patterns import Patterns

SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}


class Parquet:
    """A Parquet file, read by row group."""

    def __init__(self, path: Path):
        import pyarrow.parquet as parquet

        self._file = parquet.ParquetFile(path, page_checksum_verification=True)
        self.schema, self.count = self._file.schema_arrow, self._file.num_row_groups

    def rows(self, group: int) -> int:
        """The number of rows of a group, from the file's metadata."""
        # Not from column metadata: pyarrow aborts the process if that cannot be decoded.
        return int(self._file.metadata.row_group(group).num_rows)

    def read(self, group: int, columns: list[str]) -> Any:
        """Read the `columns` of a group: a pyarrow Table or RecordBatch."""
        return self._file.read_row_group(group, columns, use_threads=False)


class Arrow:
    """A memory-mapped Arrow IPC file, read by record batch."""

    def __init__(self, path: Path):
        import pyarrow as arrow

        self._file = arrow.ipc.open_file(arrow.memory_map(str(path)))
        self.schema, self.count = self._file.schema, self._file.num_record_batches

    def rows(self, group: int) -> int:
        """The number of rows of a group, from the file's metadata."""
        return int(self._file.get_batch(group).num_rows)

    def read(self, group: int, columns: list[str]) -> Any:
        """Read the `columns` of a group: a pyarrow Table or RecordBatch."""
        return self._file.get_batch(group)


_KINDS: dict[str, Any] = {"parquet": Parquet, "arrow": Arrow}


def find(patterns: Patterns) -> list[Path]:
    """The files of a path, a folder, a pattern, or a list of these. Raises FileError for one that has none."""
    return file_patterns.find(patterns, "columns", "Parquet or Arrow files", SUFFIXES)


def opened(path: Path) -> Any:
    """Open `path` as a `Parquet` or an `Arrow`, by its suffix.

    Raises FileError for another suffix, a file that cannot be parsed, or if pyarrow is not installed.
    """
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise FileError(f"columns: {path}", f"a name that ends in {', '.join(SUFFIXES)}", f"{path.suffix or 'none'!r}")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        cure = "pip install 'ampkit[arrow]'"
        raise FileError(f"columns: {path}", "pyarrow to read it", "none installed", cure) from None
    files.opened(path, "columns").close()  # pyarrow would block on a FIFO
    with reading(path):
        return _KINDS[kind](path)


def reading(path: Path) -> Any:
    """Context manager: turn pyarrow's errors into FileErrors that name the file."""
    return foreign(f"columns: {path}", f"a whole {SUFFIXES[path.suffix.lower()].capitalize()} file")
