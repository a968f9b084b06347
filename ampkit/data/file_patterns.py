"""Find files by path, folder or pattern."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from ..base.errors import FileError
from ..base.files import reason

Patterns = str | Path | Sequence[str | Path]


def find(patterns: Patterns, where: str, what: str, suffixes: Collection[str]) -> list[Path]:
    """The files of a path, a folder, a pattern such as "part-*.csv", or of a list of these, each in order of names.

    suffixes: of the files that are taken from a folder and the folders in it; those that are hidden are left out.
    Raises FileError, which begins with `where`, for a path or pattern of no files; what: the files, in words.
    """
    found: list[Path] = []
    for each in map(str, [patterns] if isinstance(patterns, str | Path) else patterns):
        matches = _matches(each, where, suffixes)
        if not matches:
            is_name = not Path(each).exists() and not set("*?[") & set(each)
            raise FileError(where, what, f"{each!r}, {'which does not exist' if is_name else 'where there are none'}")
        found += matches
    if not found:
        raise FileError(where, what, "none")
    return found


def _matches(pattern: str, where: str, suffixes: Collection[str]) -> list[Path]:
    path = Path(pattern)
    try:
        if path.is_file():
            return [path]
        if pattern and path.is_dir():
            return [file for file in files_under(path) if file.suffix.lower() in suffixes]
        return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))  # the pattern below the root
    except (ValueError, IndexError, NotImplementedError, OSError) as error:  # of pathlib, for malformed patterns
        got = f"{pattern!r}: {reason(error)}"
        raise FileError(where, 'a path, a folder, or a pattern such as "part-*"', got) from None


def files_under(folder: Path) -> list[Path]:
    """The files under a folder in the order of their paths; hidden files, folders and __pycache__ are left out."""
    files = ((file, file.relative_to(folder).parts) for file in folder.rglob("*") if file.is_file())
    visible = [
        (parts, file) for file, parts in files if not any(p.startswith(".") or p == "__pycache__" for p in parts)
    ]
    return [file for _, file in sorted(visible)]
