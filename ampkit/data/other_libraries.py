"""Data sets of recipes that other libraries read: Hugging Face's datasets, webdataset, Grain."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ConfigError, FileError
from ..base.files import reason
from ..base.limits import Classes, Fraction, ImageShape, Names, Seed, Whole
from ..base.registry import Splits, register_dataset
from ..core import random
from ..core.tensor import Tensor
from .datasets import BatchDataset, Subset

_PICTURES = frozenset({"png", "jpg", "jpeg", "webp"})
_FILES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}


class Rows(BatchDataset):
    """The rows of a `datasets.Dataset` as (input [*shape] float32, label [] int64); see `as_batch`."""

    def __init__(self, source: Any, inputs: Sequence[str], target: str, shape: Sequence[int]):
        self.source, self.inputs, self.target, self.shape = source, tuple(inputs), target, tuple(shape)

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Any, epoch: int = 0) -> list[Tensor]:
        """The rows at `indices` [b]."""
        columns = self.source[np.asarray(indices).tolist()]
        names = [*self.inputs, self.target]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]
        return as_batch(rows, self.inputs, self.target, self.shape)


def as_batch(items: Sequence[Any], inputs: Sequence[str], target: str, shape: Sequence[int]) -> list[Tensor]:
    """Samples as tensors: [inputs [b, *shape] float32, labels [b] int64].

    items: dicts by the keys `inputs` and `target`, or pairs of an input and its label. Bytes are decoded as the end of
    their key says; images, and arrays of uint8, become values from 0 to 1; several inputs are joined. Raises FileError
    for samples of another shape, without a key, without an integer label, or with NaN and infinity.
    """
    found = np.stack([_input(item, inputs, tuple(shape)) for item in items])
    labels = [_label(_value(item, target, 1), target) for item in items]
    if not np.isfinite(found).all():
        raise FileError("data", "finite values", "NaN or infinity in a sample", "fill the gaps")
    return [Tensor(found), Tensor(np.array(labels, np.int64))]


def _input(item: Any, keys: Sequence[str], shape: tuple[int, ...]) -> NDArray[np.float32]:
    parts = [_numbers(_value(item, key, 0), key, shape[0]) for key in keys]
    array = parts[0] if len(parts) == 1 else np.concatenate([part.ravel() for part in parts])
    if array.ndim == 3 and array.shape != shape and (array.shape[2], *array.shape[:2]) == shape:
        array = array.transpose(2, 0, 1)
    fits = array.shape == shape or (array.size == prod(shape) and array.ndim < 3)
    if not fits:
        got = f"{' x '.join(map(str, array.shape))} of {', '.join(keys)}"
        cure = "resize images in the data set's own pipeline, or say in data.shape what a sample is"
        raise FileError("data", f"samples of {' x '.join(map(str, shape))} values", got, cure)
    return array.reshape(shape)


def _value(item: Any, key: str, position: int) -> Any:
    if isinstance(item, tuple | list):
        return item[position]
    if not isinstance(item, Mapping) or key not in item:
        got = f"only {', '.join(map(str, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise FileError("data", f"{key!r} in every sample", got)
    value = item[key]
    return _decoded(value, key) if isinstance(value, bytes) else value


def _decoded(data: bytes, key: str) -> Any:
    """A file of a sample, by the end of its key. Nothing is unpickled."""
    kind = key.rpartition(".")[2].lower()
    try:
        if kind == "npy":
            return np.load(io.BytesIO(data), allow_pickle=False)
        if kind in _PICTURES:
            return _pillow().open(io.BytesIO(data))
        return json.loads(data)
    except (ValueError, OSError) as error:
        needs = "npy, json, cls or an image"
        raise FileError("data", f"{needs} in {key!r} of every sample", reason(error)) from None


def _numbers(value: Any, key: str, channels: int) -> NDArray[np.float32]:
    if hasattr(value, "convert"):  # an image of Pillow's
        value = value.convert("L" if channels == 1 else "RGB")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise FileError("data", f"numbers or an image in {key!r}", f"{array.dtype}")
    found = np.asarray(array, np.float32)
    return found / np.float32(255) if array.dtype == np.uint8 else found


def _label(value: Any, key: str) -> int:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.size != 1:
        raise FileError("data", f"an integer in {key!r} of every sample", f"{value!r:.40}")
    return int(array.item())


def _package(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError("data.name", f"the package {what}", "none", "pip install 'ampkit[sources]'") from None


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ConfigError("data", "Pillow, for images", "none", "pip install 'ampkit[images]'") from None


# Hugging Face's datasets


def load_huggingface(
    path: str,
    inputs: Names,
    target: str,
    classes: Classes,
    shape: ImageShape | None = None,
    config: str | None = None,
    split: str = "train",
    held_out: str | None = None,
    validation: Fraction = 0.1,
    seed: Seed = 0,
) -> Splits:
    """A data set of Hugging Face's datasets: saved by save_to_disk, in files, or by its name on the hub.

    path: a folder of save_to_disk; a file, or a pattern, of Parquet, CSV, JSON lines or Arrow; or a name, owner/data.
    inputs: columns of numbers, of lists of them, or one of images. target: the column with the class, from 0. classes:
    the number of classes. shape: of an input; unset, a row of as many numbers as there are inputs. config: of a name.
    split: to train on. held_out: the split to evaluate on; unset, a share of the other. validation: that share. seed:
    of the random division.
    """
    library = _package("datasets", "datasets")
    found = _opened(library, path, config)
    make = partial(Rows, inputs=inputs, target=target, shape=shape or (1, 1, len(inputs)))
    train = _checked(_split(found, split, "data.split"), [*inputs, target])
    if held_out is not None:
        return _with_names(train, target, make(train), make(_split(found, held_out, "data.held_out")))
    count = max(1, round(len(train) * validation))
    if count >= len(train):
        raise ConfigError("data.path", "at least two rows, one of them held out", f"{len(train)}")
    order: Any = random.generator(seed, 0).permutation(len(train))
    order[:count].sort()
    rows = make(train)
    return _with_names(train, target, Subset(rows, order[count:]), Subset(rows, order[:count]))


def _with_names(source: Any, target: str, train: Any, held_out: Any) -> Splits:
    names = tuple(getattr(source.features[target], "names", None) or ())
    identity = (str(len(source)), *source.column_names)
    return Splits(train, held_out, classes=names, identity=identity, notes=(f"data: {len(train):,} rows to train on",))


def _opened(library: Any, path: str, config: str | None) -> Any:
    kind, where = _FILES.get(Path(path).suffix), Path(path)
    try:
        if (where / "state.json").exists() or (where / "dataset_dict.json").exists():
            return library.load_from_disk(path)
        if kind is not None:
            return library.load_dataset(kind, data_files=path)
        return library.load_dataset(path, config)
    except Exception as error:  # of many types: files, formats, the network
        needs = "a folder of save_to_disk, files of Parquet, CSV or JSON lines, or a data set of the hub"
        raise FileError("data.path", needs, f"{path!r}: {reason(error)}") from error


def _split(found: Any, name: str, key: str) -> Any:
    if not isinstance(found, Mapping):
        if key == "data.split":
            return found
        raise ConfigError(key, "a data set with splits", "one without, as save_to_disk of a Dataset writes")
    if name not in found:
        raise ConfigError(key, f"a split, {' or '.join(map(repr, found))}", repr(name))
    return found[name]


def _checked(source: Any, columns: Sequence[str]) -> Any:
    if missing := [name for name in columns if name not in source.column_names]:
        raise FileError("data.path", f"a column {missing[0]!r}", f"only {', '.join(source.column_names)}")
    return source


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
    library = _package("webdataset", "webdataset")
    for key, address in (("data.shards", shards), ("data.held_out", held_out)):
        _check_shards(library, key, address)
    order: dict[str, Any] = (
        {"shardshuffle": 100, "detshuffle": True, "seed": seed} if shuffle else {"shardshuffle": False}
    )
    train = library.WebDataset(shards, **order)
    if shuffle:
        train = train.compose(library.detshuffle(shuffle, seed=seed))
    collate = partial(as_batch, inputs=(inputs,), target=target, shape=shape)
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
    library = _package("grain", "grain")
    collate = partial(as_batch, inputs=(inputs,), target=target, shape=shape)
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


register_dataset("huggingface", load_huggingface, "images", "dataset")
register_dataset("webdataset", load_webdataset, "images", "stream")
register_dataset("grain", load_grain, "images", "stream")
