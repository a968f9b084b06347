"""The data set `table` of recipes: a model learns a column from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ConfigError, FileError
from ...base.limits import Fraction, Seed, Size
from ...base.registry import Splits, register_dataset
from ...core import random
from .column import Kind, kind_of
from .features import (
    ColumnFeatures,
    Nulls,
    TableFeatures,
    Task,
    fit_column,
    in_order,
    label_names,
    moments,
    target_numbers,
)
from .read import NULLS, Format, Table, read

_ROWS_PER_CLASS = 2  # on average, below which integers are numbers rather than classes


def load_splits(
    files: str | Path,
    target: str,
    task: Task = "classification",
    inputs: Sequence[str] = (),
    exclude: Sequence[str] = (),
    categories: Sequence[str] = (),
    validation: Fraction = 0.1,
    held_out: str | Path | None = None,
    nulls: Nulls = "refuse",
    null_values: Sequence[str] = NULLS,
    max_categories: Size = 256,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    seed: Seed = 0,
) -> Splits:
    """A table in CSV, TSV, JSON lines, Parquet or Arrow files, of which a column is learned from the others.

    files: a path, a folder, or a pattern such as "part-*.csv". target: the column to learn. task: "classification" for
    a target of text, integers or booleans, "regression" for numbers. inputs: the columns to learn from; none stands for
    all but the target. exclude: columns that are not read. categories: columns whose numbers are categories.
    validation: the fraction of the rows that is held out, of each class alike. held_out: the path of other files that
    are held out instead. nulls: "refuse" them in the inputs, or "fill" them with the mean of a number and with a
    category of their own in text. null_values: how CSV writes nulls. max_categories: the most in a column of text.
    delimiter: of CSV; unset, a comma in .csv and a tab in .tsv. encoding: of text files that do not say it themselves.
    seed: of the random split.
    """
    format = Format(delimiter, encoding, null_values)
    table = read(files, format)
    names = _input_names(table, target, inputs, exclude, categories)
    kinds: dict[str, Kind] = {n: "text" if n in categories else kind_of(table, n) for n in [*names, target]}
    labels = _labels(table, target, task, kinds[target])
    if task == "classification":
        _check_classes(target, kinds[target], labels)
    train = np.arange(len(table)) if held_out is not None else _train_rows(table, labels, validation, seed)
    columns = [fit_column(table, name, kinds[name], train, max_categories) for name in names]
    features = TableFeatures(tuple(columns), _fit_target(target, kinds[target], labels, train), task, nulls)
    whole = features.encode(table), _encoded(table, features, labels)
    if held_out is None:
        rest = np.setdiff1d(np.arange(len(table)), train)
        split = tuple(each[train] for each in whole), tuple(each[rest] for each in whole)
    else:
        other = read(held_out, format)
        split = whole, (features.encode(other), _encoded(other, features, _labels(other, target, task, kinds[target])))
    sizes = {"shape": [features.width], "classes": len(features.classes) or 1}
    said = _account(features, *(len(targets) for _, targets in split))
    return Splits(*split, classes=features.classes, sizes=sizes, table=features.state(), notes=(said,))


def _input_names(
    table: Table, target: str, inputs: Sequence[str], exclude: Sequence[str], categories: Sequence[str]
) -> list[str]:
    """The columns to learn from. Raises FileError for names that the table does not have."""
    for name in (target, *inputs, *exclude, *categories):
        table.need(name)
    names = [name for name in inputs or table.names if name not in exclude and (inputs or name != target)]
    if target in names:
        raise ConfigError("data.inputs", f"columns other than the target {target!r}", repr(list(inputs)))
    if not names:
        raise ConfigError("data.inputs", "a column to learn from", f"none beside {', '.join([target, *exclude])}")
    if "" in names:
        cure = 'data.exclude=[""] leaves it out; pandas writes none with to_csv(index=False)'
        got = f"none for number {table.names.index('') + 1}"
        raise FileError(str(table.parts[0].path), "a name for every column", got, cure)
    return names


def _labels(table: Table, target: str, task: Task, kind: Kind) -> NDArray[Any]:
    """The target of each row: names of classes, or numbers."""
    if task == "regression":
        return target_numbers(table, target, kind)
    return np.array(label_names(table, target, kind), object)


def _check_classes(target: str, kind: Kind, labels: NDArray[Any]) -> None:
    classes = {*labels.tolist()}
    if len(classes) < 2:
        got, cure = f"{classes.pop()!r} alone", "add rows of another class, or learn another column"
        raise ConfigError("data.target", f"two classes or more in {target!r}", got, cure)
    if kind == "number" and len(classes) * _ROWS_PER_CLASS > len(labels):
        got = f"{len(classes)} different integers in {len(labels)} rows"
        raise ConfigError("data.target", f"classes in {target!r}", got, 'data.task="regression" learns numbers')


def _train_rows(table: Table, labels: NDArray[Any], validation: float, seed: int) -> NDArray[np.int64]:
    """The rows to train on, in order: all but a random fraction, of each class alike, at least one of each class."""
    drawn = random.generator(seed, 0).permutation(len(labels))
    classes = {name: number for number, name in enumerate(dict.fromkeys(labels.tolist()))}
    numbers = np.array([classes[label] if labels.dtype == object else 0 for label in labels.tolist()])
    order = np.lexsort((drawn, numbers))
    more = order[1:][numbers[order[1:]] == numbers[order[:-1]]]  # all but one of each class
    if not len(more):
        needs, got = "two rows of a class or more, one of them to hold out", f"{len(labels)} rows, one of each class"
        raise FileError(str(table.parts[0].path), needs, got, "give held-out rows of their own: data.held_out=PATH")
    count = min(max(1, round(len(labels) * validation)), len(more))
    held = more[(2 * np.arange(count) + 1) * len(more) // (2 * count)]  # evenly spaced
    return np.setdiff1d(np.arange(len(labels)), held)


def _fit_target(name: str, kind: Kind, labels: NDArray[Any], train: NDArray[np.int64]) -> ColumnFeatures:
    if labels.dtype != object:
        return ColumnFeatures(name, kind, *moments(labels[train]))
    return ColumnFeatures(name, kind, categories=in_order(labels.tolist()))


def _encoded(table: Table, features: TableFeatures, labels: NDArray[Any]) -> NDArray[Any]:
    """The targets of the rows: classes [n] int64, or standardized numbers [n] float32."""
    target = features.target
    if features.task == "regression":
        return ((labels - target.mean) / target.std).astype(np.float32)
    numbers = {name: number for number, name in enumerate(target.categories)}
    strange = next((row for row, label in enumerate(labels) if label not in numbers), None)
    if strange is not None:
        needs, cure = f"a class that the training has in {target.name!r}", "leave these rows out"
        raise FileError(table.where(strange), needs, repr(labels[strange]), cure)
    return np.array([numbers[label] for label in labels], np.int64)


def _account(features: TableFeatures, train: int, held_out: int) -> str:
    """What was taken of a table, in a line."""
    kinds = [column.kind for column in features.inputs]
    parts = [f"{kinds.count(kind)} of {_PLURALS[kind]}" for kind in dict.fromkeys(kinds)]
    target = f"{len(features.classes)} classes" if features.classes else "a number"
    rows = f"{train:,} rows to train on, {held_out:,} held out"
    columns = f"columns: {', '.join(parts)}, {features.width} features"
    return f"table: {rows}; {columns}; {features.target.name}: {target}"


def elsewhere(data: Any, paths: Any, about: Mapping[str, Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """All rows of other tables, by the means, standard deviations and categories that a run was trained with."""
    features = TableFeatures.from_state(about["table"])
    table = read(paths, Format(data.delimiter, data.encoding, data.null_values))
    labels = _labels(table, features.target.name, features.task, features.target.kind)
    return features.encode(table), _encoded(table, features, labels)


_PLURALS: dict[Kind, str] = {"number": "numbers", "boolean": "booleans", "date": "dates", "text": "categories"}

register_dataset("table", load_splits, "rows", "arrays", elsewhere=elsewhere)
