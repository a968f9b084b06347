"""Metrics of an evaluation: batches are summed on their device, the host reads the sums once at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import ops
from ..core.tensor import Tensor


class Scores(NamedTuple):
    """The result of an evaluation: the mean loss, of classes in nats, and scores that are None where they do not apply.

    accuracy: correct predictions over targets. mean_iou: intersection over union of predicted and target pixels,
    averaged over the classes that occur. char_error_rate: insertions, deletions and substitutions over target letters.
    rmse: the root of the mean squared error, in the target's unit. r2: 1 less the mean squared error over the variance.
    """

    val_loss: float
    accuracy: float | None = None
    mean_iou: float | None = None
    char_error_rate: float | None = None
    rmse: float | None = None
    r2: float | None = None


Gathered = Callable[[Any], list[Any]]


def alone(value: Any) -> list[Any]:
    """What an evaluation on a single rank gathers: its own value."""
    return [value]


class Metric(Protocol):
    """Accumulates the batches of an evaluation, then computes the scores.

    gathered: gives the values of all ranks for that of this one; the scores are of the batches of all.
    """

    def update(self, loss: Tensor, output: Tensor, *targets: Tensor) -> None: ...
    def compute(self, gathered: Gathered = alone) -> Scores: ...


class RunningSums:
    """Sums of batches: of a mean loss times its weight, of the weight, of `size` - 2 further numbers.

    The numbers stay on the device until they are read, and are summed exactly, so that their order, and on which rank
    a batch was evaluated, makes no difference.
    """

    def __init__(self, size: int):
        self._size = size
        self._rows: list[Tensor] = []

    def add(self, *numbers: Tensor) -> None:
        """Add (mean, weight, further numbers), each []."""
        mean, weight, *rest = (number.double() for number in numbers)
        self._rows.append(ops.stack([ops.where(weight > 0, mean * weight, 0.0), weight, *rest]))

    def read(self, gathered: Gathered = alone) -> list[float]:
        """[weighted mean, total weight, further sums], on the host, of the batches of all ranks."""
        rows = gathered(ops.stack(self._rows).tolist() if self._rows else [])
        columns = zip(*(row for of_rank in rows for row in of_rank), strict=True)
        total, weight, *rest = [_exact_sum(column) for column in columns] or [0.0] * self._size
        return [_ratio(total, weight), weight, *rest]


def _exact_sum(numbers: Sequence[float]) -> float:
    finite = all(map(math.isfinite, numbers))
    return math.fsum(numbers) if finite else sum(numbers)  # fsum refuses infinities of both signs


class Accuracy:
    """Accuracy of logits [n, classes, ...] against targets [n, ...], of which those equal to ignore_index do not count.

    mean_iou: compute the mean intersection over union too; a class that is neither predicted nor a target is left out.
    """

    def __init__(self, ignore_index: int, mean_iou: bool = False):
        self.ignore_index, self.mean_iou = ignore_index, mean_iou
        self._sums = RunningSums(3)
        self._class_counts: Tensor | None = None  # [classes, 3]: intersection, predicted, target

    def update(self, loss: Tensor, output: Tensor, *targets: Tensor) -> None:
        """Add a batch; loss: the mean over the targets that count."""
        predicted, (labels,) = output.argmax(1), targets
        counted = labels != self.ignore_index
        correct = (predicted == labels) & counted
        self._sums.add(loss, counted.sum(), correct.sum())
        if self.mean_iou:
            counts = _class_counts(predicted, labels, counted, output.shape[1])
            self._class_counts = counts if self._class_counts is None else self._class_counts + counts

    def compute(self, gathered: Gathered = alone) -> Scores:
        """Mean loss, accuracy, and mean IoU where it was requested."""
        loss, counted, correct = self._sums.read(gathered)
        return Scores(loss, _ratio(correct, counted), self._mean_iou(gathered) if self.mean_iou else None)

    def _mean_iou(self, gathered: Gathered) -> float | None:
        counts = gathered(None if self._class_counts is None else self._class_counts.numpy(force=True))
        found = [each for each in counts if each is not None]
        return mean_iou(sum(found[1:], found[0])) if found else None


def _class_counts(predicted: Tensor, labels: Tensor, counted: Tensor, classes: int) -> Tensor:
    # The diagonal, column sums and row sums of the confusion matrix: all that intersections and unions need.
    number = ops.arange(classes, device=labels.device)[:, None]
    is_predicted, is_label = ((each.reshape(1, -1) == number) & counted.reshape(1, -1) for each in (predicted, labels))
    return ops.stack([each.sum(1) for each in (is_predicted & is_label, is_predicted, is_label)], 1)


def mean_iou(class_counts: NDArray[Any]) -> float:
    """[classes, 3] counts of intersection, predicted and target pixels -> the mean of intersection over union.

    NaN where no class occurs. Jaccard 1912; Everingham et al. 2010, IJCV 88, section 4.2.
    """
    intersection, predicted, labels = class_counts.astype(np.float64).T
    union = predicted + labels - intersection
    return float(np.mean(intersection[union > 0] / union[union > 0])) if union.any() else math.nan


class CharErrorRate:
    """Character error rate of log-probabilities [n, classes, steps] against the targets of `Transcription`."""

    def __init__(self) -> None:
        self._sums = RunningSums(2)
        self._batches: list[tuple[Tensor, ...]] = []  # [n, steps] best classes, and the targets

    def update(self, loss: Tensor, output: Tensor, *targets: Tensor) -> None:
        """Add a batch; loss: the mean over its sequences."""
        self._sums.add(loss, ops.full_like(loss, output.shape[0]))
        self._batches.append((output.argmax(1), *targets))

    def compute(self, gathered: Gathered = alone) -> Scores:
        """Mean loss and character error rate."""
        loss, errors, letters = self._sums.read(gathered)[0], 0, 0
        for batch in self._batches:
            path, lengths, labels, counts = (each.numpy(force=True) for each in batch)
            errors += edit_distances(path, lengths, labels, counts).sum()
            letters += counts.sum()
        errors, letters = map(sum, zip(*gathered((int(errors), int(letters))), strict=True))
        return Scores(loss, char_error_rate=_ratio(errors, letters))


class SquaredError:
    """RMSE and R2 of outputs [n] against targets [n], both standardized. std: of the targets before that.

    R2, the coefficient of determination, is NaN for targets that are all the same.
    """

    def __init__(self, std: float):
        self._std, self._sums = std, RunningSums(4)

    def update(self, loss: Tensor, output: Tensor, *targets: Tensor) -> None:
        """Add a batch; loss: its mean squared error."""
        (target,) = (each.double() for each in targets)
        self._sums.add(loss, ops.full_like(loss, output.shape[0]), target.sum(), target.square().sum())

    def compute(self, gathered: Gathered = alone) -> Scores:
        """Mean loss, RMSE and R2."""
        loss, count, total, squares = self._sums.read(gathered)
        variance = _ratio(squares, count) - _ratio(total, count) ** 2
        return Scores(loss, rmse=self._std * math.sqrt(loss), r2=1 - _ratio(loss, variance))


def edit_distances(
    paths: NDArray[Any], lengths: NDArray[Any], letters: NDArray[Any], counts: NDArray[Any], blank: int = 0
) -> NDArray[np.int64]:
    """The Levenshtein distance between the letters of each best path and its target letters. -> [n] int64.

    paths [n, steps]: the best class of each step, of which the first `lengths` [n] are valid; repeated classes are one
    letter, then blanks are dropped (Graves et al. 2006, ICML, section 3.2). letters [n, longest], the first `counts`
    [n] of them valid. Levenshtein 1966, Soviet Physics Doklady 10.
    """
    at = np.arange(letters.shape[1] + 1)
    previous = np.full(len(paths), blank)
    # row[:, j]: the distance between the letters of the path so far and the first j target letters.
    row = np.broadcast_to(at, (len(paths), len(at))).astype(np.int64)
    for step, classes in enumerate(paths.T):
        is_letter = (classes != blank) & (classes != previous) & (step < lengths)
        substituted = row[:, :-1] + (letters != classes[:, None])
        shorter = np.concatenate((row[:, :1] + 1, np.minimum(row[:, 1:] + 1, substituted)), 1)
        row = np.where(is_letter[:, None], np.minimum.accumulate(shorter - at, axis=1) + at, row)
        previous = classes
    return row[np.arange(len(row)), counts]


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan
