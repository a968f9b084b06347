"""Rows: the metrics of a step and of an evaluation, as metrics.jsonl and loggers have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal


class _Named:
    """The base of rows, whose fields are read by name."""

    def values(self) -> dict[str, Any]:
        """The values by name, `step` first, without those that do not apply."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # of subclasses
        further = named.pop("metrics", {})
        return {name: value for name, value in {**named, **further}.items() if value is not None}


@dataclass(frozen=True)
class StepRow(_Named):
    """The metrics of a logged step.

    step: its number, from 1. loss: the mean over its batches. lr: the learning rate it used. scale: the loss scale
    after it, 1 without loss scaling. skipped: steps skipped so far. grad_norm: before clipping. seconds: of training so
    far, without evaluations. memory: the peak so far in bytes, on a GPU of arrays, on a CPU of the process; None where
    the system does not tell.
    """

    step: int
    loss: float
    lr: float
    scale: float
    skipped: int
    grad_norm: float
    seconds: float
    memory: int | None = None


@dataclass(frozen=True)
class EvalRow(_Named):
    """The scores of an evaluation after `step` steps, see `metrics.Scores`. metrics: further ones, of a Trainer."""

    step: int
    val_loss: float
    accuracy: float | None = None
    mean_iou: float | None = None
    char_error_rate: float | None = None
    rmse: float | None = None
    r2: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


Row = StepRow | EvalRow
# Of the scores of evaluations, whether smaller or larger is better.
BETTER: dict[str, Literal["min", "max"]] = {"val_loss": "min", "accuracy": "max", "mean_iou": "max"}
BETTER |= {"char_error_rate": "min", "rmse": "min", "r2": "max"}
COLUMNS = tuple(
    dict.fromkeys(each.name for kind in (StepRow, EvalRow) for each in fields(kind) if each.name != "metrics")
)
