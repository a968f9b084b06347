"""`torch.hub`: nothing is downloaded, and no code of others is run."""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ...refused import refused

__all__ = [
    "HASH_REGEX", "_get_torch_home", "download_url_to_file", "get_dir", "list", "load", "load_state_dict_from_url",
    "load_url", "set_dir", "tqdm", "urlparse",
]  # fmt: skip

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")  # of the hash in the name of a published file
_FILES = "download the file, and torch.load(path)"
load = refused("torch.hub.load", "clone the repository, and import its code")
list = refused("torch.hub.list", "clone the repository, and import its code")
load_state_dict_from_url = load_url = refused("torch.hub.load_state_dict_from_url", _FILES)
download_url_to_file = refused("torch.hub.download_url_to_file", _FILES)
_folder: Path | None = None


def _get_torch_home() -> str:
    """The folder of PyTorch's caches: TORCH_HOME, or `torch` in XDG_CACHE_HOME or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return str(Path(os.environ.get("TORCH_HOME", Path(cache, "torch"))).expanduser())


def get_dir() -> str:
    """The folder that `set_dir` was given, or `hub` among PyTorch's caches."""
    return str(_folder or Path(_get_torch_home(), "hub"))


def set_dir(d: str | os.PathLike[str]) -> None:
    """Have `get_dir` return `d`."""
    global _folder
    _folder = Path(d)


try:
    tqdm: Any = import_module("tqdm").tqdm  # a bar of progress, where it is installed
except ImportError:
    tqdm = refused("torch.hub.tqdm", "pip install tqdm")
