"""How the rows of a table become numbers: found on the rows trained on, kept with the run, applied to any rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...base.errors import FileError
from .column import Kind, values_of
from .read import Table

Nulls = Literal["refuse", "fill"]
Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class ColumnFeatures:
    """How a column becomes numbers.

    Numbers, booleans and dates: one feature, (value - mean) / std, with the mean and the biased standard deviation of
    the rows trained on, 1 where that is 0; a null becomes 0. Text: a feature per category, 1 for the row's and 0 for
    all others (one-hot); None is the category of nulls. A row of another category has zeros alone.
    """

    name: str
    kind: Kind
    mean: float = 0.0
    std: float = 1.0
    categories: tuple[str | None, ...] = ()

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.categories) if self.kind == "text" else 1

    def encode(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Values as of `values_of`. [n] -> [n, width]."""
        if self.kind != "text":
            scaled = (values - self.mean) / self.std
            return np.where(np.isnan(scaled), 0.0, scaled).astype(np.float32)[:, None]
        numbers = {category: number for number, category in enumerate(self.categories)}
        found = np.array([numbers.get(value, -1) for value in values.tolist()], np.int64)
        return (found[:, None] == np.arange(self.width)).astype(np.float32)


@dataclass(frozen=True)
class TableFeatures:
    """How the rows of a table become inputs and targets.

    target: of regression the mean and std that targets are standardized with; of classification the categories are the
    classes by number. nulls: "refuse" or "fill", in the inputs.
    """

    inputs: tuple[ColumnFeatures, ...]
    target: ColumnFeatures
    task: Task
    nulls: Nulls

    @property
    def width(self) -> int:
        """The number of features of a row."""
        return sum(column.width for column in self.inputs)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes by number; none in regression."""
        return tuple(map(str, self.target.categories))

    def encode(self, table: Table) -> NDArray[np.float32]:
        """The inputs of the rows. [n, width]. Raises FileError for columns that are missing and cells that do not fit.

        Categories that the training did not see are not refused: their features are zeros.
        """
        return np.concatenate([column.encode(self._values(table, column)) for column in self.inputs], 1)

    def _values(self, table: Table, column: ColumnFeatures) -> NDArray[Any]:
        values = values_of(table, column.name, column.kind)
        if self.nulls == "refuse":
            cure = (
                f'data.nulls="fill" takes means and a category of its own; data.exclude={[column.name]} leaves it out'
            )
            need_values(table, column.name, values, cure)
        return values

    def state(self) -> dict[str, Any]:
        """Plain values, from which `from_state` makes the same features."""
        columns = {"inputs": [asdict(column) for column in self.inputs], "target": asdict(self.target)}
        return {**columns, "task": self.task, "nulls": self.nulls}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> TableFeatures:
        """The features of a `state`."""
        made = [ColumnFeatures(**{**each, "categories": tuple(each["categories"])}) for each in state["inputs"]]
        target = ColumnFeatures(**{**state["target"], "categories": tuple(state["target"]["categories"])})
        return cls(tuple(made), target, state["task"], state["nulls"])


def need_values(table: Table, name: str, values: NDArray[Any], cure: str) -> None:
    """Raise FileError, naming the row, for a null among the values of a column."""
    row = next((row for row, value in enumerate(values.tolist()) if value is None or value != value), None)
    if row is not None:
        raise FileError(table.where(row), f"a value in column {name!r}", "none", cure)


def fit_column(table: Table, name: str, kind: Kind, rows: NDArray[np.int64], most: int) -> ColumnFeatures:
    """The features of an input column from the `rows` to train on. Raises FileError for more than `most` categories."""
    values = values_of(table, name, kind)[rows]
    if kind != "text":
        return ColumnFeatures(name, kind, *moments(values))
    found = {*values.tolist()}
    if len(found) > most:
        cure = f"data.exclude={[name]} leaves it out, if it is a name or a text; or raise data.max_categories"
        raise FileError(
            str(table.parts[0].path), f"at most {most} categories in column {name!r}", f"{len(found)}", cure
        )
    named: list[str | None] = sorted(found - {None})
    return ColumnFeatures(name, kind, categories=(*named, *([None] if None in found else [])))


def moments(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and biased standard deviation of the values that are no NaN, summed exactly; a deviation of 0 becomes 1."""
    present = values[~np.isnan(values)]
    if not present.size:
        return 0.0, 1.0
    mean = math.fsum(present.tolist()) / present.size  # the same on every machine
    deviation = math.sqrt(math.fsum(np.square(present - mean).tolist()) / present.size)
    return mean, deviation or 1.0


def label_names(table: Table, name: str, kind: Kind) -> list[str]:
    """The class of each row by name: text, integers, true or false. Raises FileError for anything else."""
    values = values_of(table, name, kind)
    need_values(table, name, values, "leave these rows out")
    if kind == "text":
        return list(values)
    if kind == "boolean":
        return ["true" if value else "false" for value in values]
    strange = np.flatnonzero(values % 1 != 0) if kind == "number" else np.arange(1)
    if strange.size:
        row, cure = int(strange[0]), 'data.task="regression" learns numbers' if kind == "number" else None
        got = repr(table.cells(name)[row])
        raise FileError(table.where(row), f"text, integers or booleans in the target {name!r}", got, cure)
    return [str(int(value)) for value in values]


def target_numbers(table: Table, name: str, kind: Kind) -> NDArray[np.float64]:
    """The numbers of a regression's target [n]. Raises FileError for anything else."""
    values = values_of(table, name, kind)
    if kind != "number":
        row, cure = 0, 'data.task="classification" learns classes'
        raise FileError(table.where(row), f"numbers in the target {name!r}", repr(table.cells(name)[row]), cure)
    need_values(table, name, values, "leave these rows out")
    return values


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Distinct names of classes in order, integers by their value."""
    key: Callable[[str], Any] = int if all(map(_is_integer, names)) else str
    return tuple(sorted({*names}, key=key))


def _is_integer(name: str) -> bool:
    return name.removeprefix("-").isdecimal()
