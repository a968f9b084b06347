"""Data sets of Hugging Face's library `datasets` in recipes: rows by number."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import AmpkitError, ConfigError, FileError
from ..base.files import reason
from ..base.limits import Classes, Fraction, ImageShape, Names, Seed
from ..base.registry import Splits, register_dataset
from ..core import random
from ..core.tensor import Tensor
from ..models.weights import hub
from .datasets import BatchDataset, Subset
from .samples import as_batch, package, row_of
from .tables import read

_FILES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".arrow": "arrow"}
_GRAY = ("1", "L", "I", "I;16", "F")  # modes of Pillow's


class Rows(BatchDataset):
    """The rows of a `datasets.Dataset` as (input [*shape] float32, label [] int64); see `as_batch`.

    name: of the data, for errors.
    """

    def __init__(
        self,
        source: Any,
        inputs: Sequence[str],
        target: str,
        shape: Sequence[int],
        classes: int | None = None,
        name: str = "data",
    ):
        self.source, self.inputs, self.target, self.shape = source, tuple(inputs), target, tuple(shape)
        self.classes, self.name = classes, name

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, indices: Any, epoch: int = 0) -> list[Tensor]:
        """The rows at `indices` [b]."""
        numbers = np.asarray(indices).tolist()
        columns = self.source[numbers]
        names = [*self.inputs, self.target]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]
        where = [f"{self.name}, row {number}" for number in numbers]
        return as_batch(rows, self.inputs, self.target, self.shape, self.classes, where)


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
    the number of classes. shape: of an input; unset, that of the first row: an image's own, else a row of all its
    numbers. config: of a name. split: to train on. held_out: the split to evaluate on; unset, a share of the other.
    validation: that share. seed: of the random division.
    """
    library = package("datasets", "datasets")
    found = _opened(library, path, config)
    train = _checked(_split(found, split, "data.split"), [*inputs, target])

    def make(source: Any, split: str) -> Rows:
        name = f"{path}, split {split!r}" if isinstance(found, Mapping) else path
        return Rows(source, inputs, target, shape or _shape_of(source, inputs), classes, name)

    if held_out is not None:
        other = _split(found, held_out, "data.held_out")
        return _with_names(train, target, make(train, split), make(other, held_out))
    count = max(1, round(len(train) * validation))
    if count >= len(train):
        raise ConfigError("data.path", "at least two rows, one of them held out", f"{len(train)}")
    order: Any = random.generator(seed, 0).permutation(len(train))
    order[:count].sort()
    rows = make(train, split)
    return _with_names(train, target, Subset(rows, order[count:]), Subset(rows, order[:count]))


def _shape_of(source: Any, inputs: Sequence[str]) -> tuple[int, ...]:
    """The shape of the input in the first row: an image's own, else a row of all its numbers."""
    first = source[0]
    values = [first[name] for name in inputs]
    if len(values) == 1 and hasattr(values[0], "convert"):
        return 1 if values[0].mode in _GRAY else 3, values[0].height, values[0].width
    return row_of([sum(_count(value) for value in values)])


def _count(value: Any) -> int:
    try:
        return np.asarray(value).size
    except ValueError:  # lists of different lengths, which the batch refuses
        return 1


def complete(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a section with the shape of an input, which the first row tells where it is left out."""
    inputs, path = section.get("inputs"), section.get("path")
    if section.get("shape") is not None or not isinstance(inputs, list | tuple) or not isinstance(path, str):
        return section
    shape: tuple[int, ...] = row_of([len(inputs)])
    with suppress(AmpkitError, KeyError, IndexError, TypeError):  # `load_huggingface` names what does not fit
        found = _opened(package("datasets", "datasets"), path, section.get("config"))
        shape = _shape_of(_split(found, section.get("split", "train"), "data.split"), inputs)
    return {**section, "shape": shape}


def elsewhere(data: Any, paths: Sequence[str | Path], about: Mapping[str, Any]) -> Rows:
    """All rows of another data set: of the split data.held_out where it is set, else of data.split."""
    if len(paths) != 1:
        raise ConfigError("evaluate", "one data set", f"{len(paths)}")
    path, split = str(paths[0]), data.held_out or data.split
    found = _split(_opened(package("datasets", "datasets"), path, data.config), split, "data.split")
    return Rows(_checked(found, [*data.inputs, data.target]), data.inputs, data.target, data.shape, data.classes, path)


def _with_names(source: Any, target: str, train: Any, held_out: Any) -> Splits:
    names = tuple(getattr(source.features[target], "names", None) or ())
    identity = (str(len(source)), *source.column_names)
    return Splits(train, held_out, classes=names, identity=identity, notes=(f"data: {len(train):,} rows to train on",))


def _opened(library: Any, path: str, config: str | None) -> Any:
    kind, where = _FILES.get(Path(path).suffix), Path(path)
    try:
        with _silent(library) if kind is not None else nullcontext():  # a download shows its bars
            if (where / "state.json").exists() or (where / "dataset_dict.json").exists():
                return library.load_from_disk(path)
            if kind is not None:
                return library.load_dataset(kind, data_files=path)
            _need_network(path)
            return library.load_dataset(path, config)
    except AmpkitError:
        raise
    except Exception as error:  # of many types: files, formats, the network
        if where.suffix in read.SUFFIXES and where.is_file():
            read.read(path)  # names the file and the line that it cannot be read from
        cause: BaseException = error  # its outermost, "An error occurred while generating the dataset", says nothing
        while cause.__cause__ is not None:
            cause = cause.__cause__
        needs = "a folder of save_to_disk, files of Parquet, CSV or JSON lines, or a data set of the hub"
        raise FileError("data.path", needs, f"{path!r}: {reason(cause)}") from error


def _need_network(name: str) -> None:
    from huggingface_hub import constants  # which `datasets` brings

    if Path(name).exists() or constants.HF_HUB_OFFLINE:
        return
    if (away := hub.unreachable(name, "README.md", "dataset")) is not None:
        cure = (
            "connect to the network, or pass a path; with HF_HUB_OFFLINE=1 a data set in the cache is taken from there"
        )
        raise FileError("data.path", "a path, or a data set of the hub", f"{name!r}, without network ({away})", cure)


@contextmanager
def _silent(library: Any) -> Iterator[None]:
    """Leave out the library's bars and its lines about a failure, which the error says in one."""
    logger, shown = logging.getLogger("datasets"), library.is_progress_bar_enabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    library.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if shown:
            library.enable_progress_bars()


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


register_dataset("huggingface", load_huggingface, "images", "dataset", complete=complete, elsewhere=elsewhere)
