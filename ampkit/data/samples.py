"""Samples of somebody else's data as tensors, and what they must be: finite, of a class that the model has.

Errors name the row.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ConfigError, FileError
from ..base.files import reason
from ..core.tensor import Tensor

GAPS = "fill the gaps, or leave these rows out"
_IGNORED = -100  # the label that losses leave out
_PICTURES = frozenset({"png", "jpg", "jpeg", "webp"})


def need_finite(name: str, values: NDArray[Any], where: Callable[[int], str]) -> None:
    """Raise FileError for a NaN or an infinity in a column [b, ...]; where: the file and row, by the place in it."""
    flat = values.reshape(len(values), -1)
    wrong = ~np.isfinite(flat)
    if wrong.any():
        row, at = (int(axis[0]) for axis in np.nonzero(wrong))
        value = flat[row, at]
        got = "nan" if np.isnan(value) else f"{value} in {flat.dtype}"
        place = f" at place {at} of {flat.shape[1]}" if flat.shape[1] > 1 else ""
        raise FileError(where(row), f"finite values in {name!r}", got + place, GAPS)


def need_classes(target: str, labels: NDArray[Any], classes: int | None, where: Callable[[int], str]) -> None:
    """Raise FileError for a label [b] outside of 0 to classes - 1, None for any; where: as of `need_finite`."""
    if classes is None:
        return
    wrong = np.flatnonzero(((labels < 0) | (labels >= classes)) & (labels != _IGNORED))
    if wrong.size:
        label = int(labels[wrong[0]])
        above = f"data.classes says how many there are: at least {label + 1}"
        cure = above if label >= classes else "number the classes from 0"
        raise FileError(where(int(wrong[0])), f"a class from 0 to {classes - 1} in {target!r}", f"{label}", cure)


def shape_key(shape: Sequence[int]) -> str:
    """The shape of an input as a key of a recipe, data.shape=[1,1,8]: without three axes its values make a row."""
    whole = shape if len(shape) == 3 else row_of(shape)
    return f"data.shape=[{','.join(map(str, whole))}]"


def row_of(shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape of an input's values as one row."""
    return 1, 1, prod(shape)


def as_batch(
    items: Sequence[Any],
    inputs: Sequence[str],
    target: str,
    shape: Sequence[int],
    classes: int | None = None,
    where: Sequence[str] = (),
) -> list[Tensor]:
    """Samples as tensors: [inputs [b, *shape] float32, labels [b] int64].

    items: dicts by the keys `inputs` and `target`, or pairs of an input and its label. Bytes are decoded as the end of
    their key says; images, and arrays of uint8, become values from 0 to 1; several inputs are joined. classes: their
    number, None where labels are not compared with it. where: what errors call each sample. Raises FileError for
    samples of another shape, without a key, without an integer label of a class, or with null, NaN and infinity.
    """
    where = where or [_named(item) for item in items]
    found = np.stack([_input(item, inputs, tuple(shape), each) for item, each in zip(items, where, strict=True)])
    if not np.isfinite(found).all():
        for number, item in enumerate(items):
            _need_finite(item, inputs, shape[0], where[number])
    labels = [_label(_value(item, target, 1, each), target, each) for item, each in zip(items, where, strict=True)]
    numbers = np.array(labels, np.int64)
    need_classes(target, numbers, classes, where.__getitem__)
    return [Tensor(found), Tensor(numbers)]


def _need_finite(item: Any, keys: Sequence[str], channels: int, where: str) -> None:
    for key in keys:
        need_finite(key, _numbers(_value(item, key, 0, where), key, channels, where)[None], lambda row: where)


def _named(item: Any) -> str:
    key = item.get("__key__") if isinstance(item, Mapping) else None  # of webdataset
    return "data" if key is None else f"data, sample {key!r}"


def _input(item: Any, keys: Sequence[str], shape: tuple[int, ...], where: str) -> NDArray[np.float32]:
    parts = [_numbers(_value(item, key, 0, where), key, shape[0], where) for key in keys]
    array = parts[0] if len(parts) == 1 else np.concatenate([part.ravel() for part in parts])
    if array.ndim == 3 and array.shape != shape and (array.shape[2], *array.shape[:2]) == shape:
        array = array.transpose(2, 0, 1)
    if array.shape != shape and (array.size != prod(shape) or array.ndim > 2):
        got = f"{' x '.join(map(str, array.shape)) or 1} of {', '.join(keys)}"
        cure = f"{shape_key(array.shape)} where every sample is so, else cut, fill or resize them by the library"
        raise FileError(where, f"{' x '.join(map(str, shape))} values, as data.shape says", got, cure)
    return array.reshape(shape)


def _value(item: Any, key: str, position: int, where: str) -> Any:
    if isinstance(item, tuple | list):
        return item[position]
    if not isinstance(item, Mapping) or key not in item:
        got = f"only {', '.join(map(str, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise FileError(where, f"{key!r} in every sample", got)
    value = item[key]
    if value is None:
        raise FileError(where, f"a value in {key!r}", "null", GAPS)
    return _decoded(value, key, where) if isinstance(value, bytes) else value


def _decoded(data: bytes, key: str, where: str) -> Any:
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
        raise FileError(where, f"{needs} in {key!r} of every sample", reason(error)) from None


def _numbers(value: Any, key: str, channels: int, where: str) -> NDArray[np.float32]:
    if hasattr(value, "convert"):  # an image of Pillow's
        value = value.convert("L" if channels == 1 else "RGB")
    try:
        array = np.asarray(value)
    except ValueError:  # lists in which lists of different lengths are
        raise FileError(where, f"numbers or an image in {key!r}", "lists of different lengths") from None
    if array.dtype == object and any(each is None for each in array.flat):
        raise FileError(where, f"a value in every place of {key!r}", "null", GAPS)
    if array.dtype.kind not in "biuf":
        got, cure = ("text", 'data.name="table" learns from text') if array.dtype.kind == "U" else (array.dtype, None)
        raise FileError(where, f"numbers or an image in {key!r}", f"{got}", cure)
    with np.errstate(over="ignore"):  # infinity is reported with its row
        found = np.asarray(array, np.float32)
    return found / np.float32(255) if array.dtype == np.uint8 else found


def _label(value: Any, key: str, where: str) -> int:
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.size != 1:
        cure = "Dataset.class_encode_column numbers classes that are text" if isinstance(value, str) else None
        raise FileError(where, f"an integer in {key!r} of every sample", f"{value!r:.40}", cure)
    return int(array.item())


def package(name: str, what: str) -> ModuleType:
    """A library that reads data. Raises ConfigError, with the cure, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError("data.name", f"the package {what}", "none", "pip install 'ampkit[sources]'") from None


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise ConfigError("data", "Pillow, for images", "none", "pip install 'ampkit[images]'") from None
