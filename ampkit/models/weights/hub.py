"""Weights of the Hugging Face Hub, by its own client: docs/decisions/0033-weights-of-the-hub-by-its-client.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ...base.errors import FileError
from ...base.files import reason

_ONE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def snapshot(where: str, name: str) -> Path:
    """The folder with config.json, preprocessor_config.json and the weights of the model `name`, owner/model.

    Files are downloaded once: a model that is whole in the cache is taken from there, and the network not asked.
    Raises FileError without the client, without network for files that are not in the cache, and for a model that is
    not there.
    """
    _need_client(where, name)
    try:
        cached = found = _fetched(partial(_fetch, name, cached=True))
        if cached is not None and (cached / "config.json").is_file():
            return cached
        away = unreachable(name, "config.json")
        if away is None:
            with _without_warnings():
                found = _fetched(partial(_fetch, name, cached=False))
    except Exception as error:  # of its libraries for the network, of many types
        raise _refused(where, name, error) from error
    if found is None and away is not None:
        cure = "connect to the network once, or download the model elsewhere and pass its folder"
        got = f"{name!r}, which is neither a path nor whole in the cache of the hub, without network ({away})"
        raise FileError(where, "a file or folder of weights", got, cure)
    if found is None:
        raise FileError(where, f"{' or '.join(_ONE[::2])} in the model {name!r} of the hub", "none")
    return found


def unreachable(name: str, file: str, kind: str = "model") -> str | None:
    """Why the hub gives no answer, None if it does: asked once, where a download asks six times, in half a minute.

    kind: model or dataset. HF_HUB_ETAG_TIMEOUT of the client says how many seconds an answer may take.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    try:
        get_hf_file_metadata(hf_hub_url(name, file, repo_type=kind), timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (HfHubHTTPError, ValueError):  # an answer, or a name that cannot be one: the download says it
        return None
    except Exception as error:  # of the client's library for the network, which others have replaced before
        return reason(error)
    return None


def _need_client(where: str, name: str) -> None:
    try:
        from huggingface_hub import errors  # noqa: F401
    except ImportError:
        missing = f"{name!r}, which is no path; for a model of the hub huggingface_hub is missing"
        raise FileError(where, "a file or folder", missing, "pip install 'ampkit[hub]', or download it") from None


def file(where: str, name: str, file: str) -> Path:
    """A file of the model `name`, owner/model, from the cache or else the network. Raises FileError as `snapshot`."""
    _need_client(where, name)
    try:
        found = _fetch(name, file, cached=True)
        away = unreachable(name, file) if found is None else None
        if found is None and away is None:
            with _without_warnings():
                found = _fetch(name, file, cached=False)
    except Exception as error:  # of its libraries for the network, of many types
        raise _refused(where, name, error) from error
    if away is not None:
        cure = f"connect to the network once, or download {file} elsewhere and pass its path"
        got = f"{name!r}, which is neither a path nor in the cache of the hub, without network ({away})"
        raise FileError(where, file, got, cure)
    if found is None:
        raise FileError(where, f"{file} in the model {name!r} of the hub", "none")
    return found


def _fetch(name: str, file: str, cached: bool) -> Path | None:
    """The file of a model, None if it has none, or the cache has it not."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, local_files_only=cached))
    except EntryNotFoundError as error:
        if isinstance(error, LocalEntryNotFoundError) and not cached:  # the network broke off
            raise
        return None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Leave out the client's lines about each attempt: the error says what came of them."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fetched(fetch: Callable[[str], Path | None]) -> Path | None:
    """The folder of the files, None if the weights are not there, or not whole."""
    for file in ("config.json", "preprocessor_config.json"):
        fetch(file)
    for file in _ONE:
        if (path := fetch(file)) is not None:
            whole = all(fetch(shard) is not None for shard in _shards(path))
            return path.parent if whole else None
    return None


def _shards(path: Path) -> Iterator[str]:
    if path.name.endswith(".index.json"):
        yield from dict.fromkeys(json.loads(path.read_text())["weight_map"].values())


def _refused(where: str, name: str, error: Exception) -> FileError:
    kind = type(error).__name__
    if kind == "RepositoryNotFoundError":
        got, cure = f"{name!r}, which is neither a path nor there", "a private one needs `hf auth login`"
    elif kind == "GatedRepoError":
        got, cure = f"{name!r}, which is gated", "accept its terms on its page, then `hf auth login`"
    else:
        got, cure = f"{name!r}, which breaks: {reason(error)}", "or download it elsewhere and pass its folder"
    return FileError(where, "a path, or a model of the Hugging Face Hub", got, cure)
