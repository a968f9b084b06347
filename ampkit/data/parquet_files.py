"""Files of columns: Parquet and Arrow files, found by patterns and opened by pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..base import files
from ..base.errors import FileError
from ..base.files import foreign, reason

SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}


class Parquet:
    """A Parquet file by its row groups."""

    def __init__(self, path: Path):
        import pyarrow.parquet as parquet

        self._file = parquet.ParquetFile(path, page_checksum_verification=True)
        self.schema, self.count = self._file.schema_arrow, self._file.num_row_groups

    def rows(self, group: int) -> int:
        """The rows that a group has, by the file's own account."""
        # Its columns are not asked: pyarrow ends the process where what is said of one cannot be decoded.
        return int(self._file.metadata.row_group(group).num_rows)

    def read(self, group: int, columns: list[str]) -> Any:
        """A group, as pyarrow has it."""
        return self._file.read_row_group(group, columns, use_threads=False)


class Arrow:
    """An Arrow IPC file by its record batches, mapped into memory."""

    def __init__(self, path: Path):
        import pyarrow as arrow

        self._file = arrow.ipc.open_file(arrow.memory_map(str(path)))
        self.schema, self.count = self._file.schema, self._file.num_record_batches

    def rows(self, group: int) -> int:
        """The rows that a group has, by the file's own account."""
        return int(self._file.get_batch(group).num_rows)

    def read(self, group: int, columns: list[str]) -> Any:
        """A group, as pyarrow has it."""
        return self._file.get_batch(group)


_KINDS: dict[str, Any] = {"parquet": Parquet, "arrow": Arrow}


def find(patterns: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files of a path, a pattern or a list of them. Raises FileError for one without a file."""
    found: list[Path] = []
    for each in map(str, [patterns] if isinstance(patterns, str | Path) else patterns):
        matches = _matches(each)
        if not matches:
            raise FileError("columns", "Parquet or Arrow files", f"{each!r}, where there are none")
        found += matches
    if not found:
        raise FileError("columns", "Parquet or Arrow files", "none")
    return found


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    try:
        if path.is_file():
            return [path]
        return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))  # what stands behind the root
    except (ValueError, IndexError, NotImplementedError, OSError) as error:  # what pathlib says of other patterns
        got = f"{pattern!r}: {reason(error)}"
        raise FileError("columns", 'a path, or a pattern such as "part-*.parquet"', got) from None


def opened(path: Path) -> Any:
    """A `Parquet` or an `Arrow`, by the name of the file. Raises FileError for another name or a file that breaks."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise FileError(f"columns: {path}", f"a name that ends in {', '.join(SUFFIXES)}", f"{path.suffix or 'none'!r}")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        cure = "pip install 'ampkit[arrow]'"
        raise FileError(f"columns: {path}", "pyarrow to read it", "none installed", cure) from None
    files.opened(path, "columns").close()  # pyarrow would wait for a FIFO
    with reading(path):
        return _KINDS[kind](path)


def reading(path: Path) -> Any:
    """What pyarrow raises inside is a FileError that names the file."""
    return foreign(f"columns: {path}", f"a whole {SUFFIXES[path.suffix.lower()].capitalize()} file")
