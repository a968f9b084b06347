"""Streams of other libraries in recipes: webdataset and Grain."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

from ..base.errors import ConfigError, FileError
from ..base.limits import Classes, ImageShape, Seed, Whole
from ..base.registry import Splits, register_dataset
from .samples import as_batch, package

# webdataset


def load_webdataset(
    shards: str,
    held_out: str,
    shape: ImageShape,
    classes: Classes,
    inputs: str = "npy",
    target: str = "cls",
    shuffle: Whole = 1000,
    seed: Seed = 0,
) -> Splits:
    """Shards of webdataset, tar files with the files of a sample beside each other, read in a stream.

    shards: a path or address with a range, such as "train-{000..099}.tar". held_out: the shards to evaluate on. shape:
    of an input. classes: the number of classes. inputs: the key, the end of a file's name, of the input: npy, or an
    image (png, jpg, webp). target: the key of the class, a number in text (cls) or JSON. shuffle: samples in the buffer
    that shuffles them, 0 for their order in the shards. seed: of the order of shards and samples.
    """
    library = package("webdataset", "webdataset")
    for key, address in (("data.shards", shards), ("data.held_out", held_out)):
        _check_shards(library, key, address)
    order: dict[str, Any] = (
        {"shardshuffle": 100, "detshuffle": True, "seed": seed} if shuffle else {"shardshuffle": False}
    )
    train = library.WebDataset(shards, **order)
    if shuffle:
        train = train.compose(library.detshuffle(shuffle, seed=seed))
    collate = partial(as_batch, inputs=(inputs,), target=target, shape=shape, classes=classes)
    return Splits((train, collate), (library.WebDataset(held_out, shardshuffle=False), collate))


def _check_shards(library: Any, key: str, address: str) -> None:
    if address.startswith("pipe:") or "::" in address:
        raise ConfigError(key, "paths or addresses of shards", repr(address), "a command is run by your own loop alone")
    for path in library.shardlists.expand_urls(address):
        if "://" not in path and not Path(path).is_file():
            raise FileError(key, "shards that are there", repr(path))


# Grain


def load_grain(
    source: str, held_out: str, shape: ImageShape, classes: Classes, inputs: str = "image", target: str = "label"
) -> Splits:
    """A pipeline of Grain's, made by a function of a Python file, read in a stream.

    source: "file.py:function", which returns a MapDataset, an IterDataset or a DataLoader of single samples, dicts or
    pairs. held_out: the function of those to evaluate on. shape: of an input. classes: the number of classes. inputs,
    target: the keys of dicts.
    """
    library = package("grain", "grain")
    collate = partial(as_batch, inputs=(inputs,), target=target, shape=shape, classes=classes)
    made = (_made(library, key, each) for key, each in (("data.source", source), ("data.held_out", held_out)))
    train, test = ((pipeline, collate) for pipeline in made)
    return Splits(train, test)


def _made(library: Any, key: str, source: str) -> Any:
    path, _, name = source.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path) if path.endswith(".py") else None
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(key, 'a function as "file.py:function"', repr(source))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(function := getattr(module, name, None)):
        raise ConfigError(key, f"a function of {path}", repr(name))
    made = function()
    if isinstance(made, library.MapDataset):
        return made.to_iter_dataset()
    if not isinstance(made, library.IterDataset | library.DataLoader):
        needs = "a function that returns a MapDataset, an IterDataset or a DataLoader of Grain's"
        raise ConfigError(key, needs, f"a {type(made).__name__} of {source}")
    return made


register_dataset("webdataset", load_webdataset, "images", "stream")
register_dataset("grain", load_grain, "images", "stream")
