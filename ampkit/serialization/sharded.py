"""Checkpoints in several files, as Hugging Face's libraries write them: an index names the file of each tensor.

`model.safetensors.index.json` or `pytorch_model.bin.index.json` holds {"weight_map": {name: file}}; the files lie
beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base.errors import FileError
from ..base.files import content, foreign

SUFFIX = ".index.json"
_IN_A_FOLDER = tuple(
    f"{name}{suffix}" for name in ("model.safetensors", "pytorch_model.bin") for suffix in (SUFFIX, "")
)
_INDEX = "the index of a sharded checkpoint"
_MOST = 2**28  # bytes of an index


def file_in(f: str | os.PathLike[str]) -> str:
    """The path `f`; of a folder, the index or the one file in it. Raises FileError for a folder without them."""
    path = os.fsdecode(f)
    if "\0" in path or not Path(path).is_dir():
        return path
    found = next((name for name in _IN_A_FOLDER if (Path(path) / name).is_file()), None)
    if found is None:
        cure = f"a folder is read that holds {' or '.join(_IN_A_FOLDER[::2])}"
        raise FileError("load", "a regular file", f"{path!r}, which is a directory", cure)
    return str(Path(path) / found)


def load(path: str, load_file: Callable[[str], Any]) -> dict[str, Any]:
    """The tensors by name of all files that the index at `path` names; `load_file` loads one of them.

    Raises FileError for what is no index, for a file outside its folder, and for a tensor that its file has not.
    """
    files, found = _weight_map(path), dict[str, Any]()
    for file in dict.fromkeys(files.values()):
        shard = load_file(str(Path(path).with_name(file)))
        if not isinstance(shard, dict):
            raise FileError(f"load: {path}", "files with a dict of tensors", f"a {type(shard).__name__} in {file!r}")
        found |= {name: value for name, value in shard.items() if files.get(name, file) == file}
    for name, file in files.items():
        if name not in found:
            raise FileError(f"load: {path}", "the tensors that the index names", f"{file!r} without {name!r}")
    return found


def _weight_map(path: str) -> dict[str, str]:
    where = f"load: {path}"
    with foreign(where, _INDEX):
        index = json.loads(content(path, "load", _MOST))
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict):
        raise FileError(where, _INDEX, "JSON without a weight_map")
    for file in files.values():
        named = isinstance(file, str) and file not in ("", ".", "..") and not set(file) & {"/", "\\", "\0", ":"}
        if not named or not file.isprintable() or file.endswith(SUFFIX):  # an index within it could name itself
            raise FileError(where, f"{_INDEX} with names of files beside it", repr(file)[:200])
    return files
