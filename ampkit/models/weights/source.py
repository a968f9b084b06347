"""Where weights are: a file, a folder, or a model of the Hugging Face Hub; and what lies beside them as JSON."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...base.errors import DTypeError, FileError
from ...base.files import content, foreign
from ...serialization import load, sharded
from . import hub

PathOrName = str | os.PathLike[str]
_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
_MOST = 2**24  # bytes of a file of JSON
# What checkpoints of training programs call the state of the model among other things.
_ENTRIES = ("state_dict", "model_state_dict", "model_state", "model", "module")


def find(where: str, weights: PathOrName) -> Path:
    """The file of `weights`: itself, that in the folder, or that of a model of the hub, downloaded once.

    Of a checkpoint in several files it is their index. Raises FileError for what is none of these, and for a folder
    that holds no weights, or several files of them.
    """
    if not isinstance(weights, (str, os.PathLike)):
        raise DTypeError(where, "a path, a name or a dict of tensors", f"a {type(weights).__name__}")
    name = os.fspath(weights)
    path = Path(name)
    if _exists(path):
        return _in_folder(where, path) if path.is_dir() else path
    if isinstance(name, str) and re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name) and path.suffix not in _SUFFIXES:
        return _in_folder(where, hub.snapshot(where, name))
    needs = "a file or folder of weights, or owner/model of the Hugging Face Hub"
    raise FileError(where, needs, f"{name!r}, which is not there")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _in_folder(where: str, folder: Path) -> Path:
    try:
        return Path(sharded.file_in(folder))
    except FileError:
        found = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found[:10]) or "none"
    cure = "name the file" if found else f"weights are files of {', '.join(_SUFFIXES)}"
    raise FileError(where, f"one file of weights in {str(folder)!r}", names, cure)


def read(where: str, path: Path) -> Mapping[str, Any]:
    """The tensors by name in a file of weights, or in the checkpoint of a training program, on the CPU.

    Raises FileError for a file that is damaged, or in which there are no tensors by name.
    """
    found = load(path, map_location="cpu", weights_only=True)
    for name in _ENTRIES:
        if isinstance(found, Mapping) and is_state(found.get(name)):
            return found[name]
    if not is_state(found):
        kind = f"a dict of {', '.join(map(repr, list(found)[:5]))}" if isinstance(found, Mapping) else "another object"
        raise FileError(f"{where}: {path}", "tensors by name", kind)
    return found


def is_state(value: Any) -> bool:
    """Whether `value` is a dict of tensors, or arrays, by name."""
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(name, str) and hasattr(each, "shape") for name, each in value.items())


def beside(path: Path, name: str) -> dict[str, Any]:
    """The JSON object in the file `name` beside `path`; {} where there is none. Raises FileError for other content."""
    file = path.with_name(name)
    if not _exists(file):
        return {}
    with foreign(str(file), "JSON"):
        found = json.loads(content(file, "load", _MOST))
    if not isinstance(found, dict):
        raise FileError(str(file), "a JSON object", f"a {type(found).__name__}")
    return found


def config(path: Path) -> dict[str, Any]:
    """Hugging Face's config.json beside a file of weights; {} where there is none."""
    found = beside(path, "config.json")
    return found if "model_type" in found else {}
