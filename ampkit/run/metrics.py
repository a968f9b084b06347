"""Metrics: what an evaluation came to. Batches are added up on their device, and read by the host at the end."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import ops
from ..core.tensor import Tensor


class Scores(NamedTuple):
    """What an evaluation came to: the mean loss in nats, and fractions, None where they say nothing about the task.

    accuracy: of targets, those guessed right. mean_iou: of pixels guessed or wanted as a class, those that are both,
    a mean over the classes that occur. char_error_rate: of letters, the number of those to put in, leave out or
    exchange until each guessed sequence is the one wanted.
    """

    val_loss: float
    accuracy: float | None = None
    mean_iou: float | None = None
    char_error_rate: float | None = None


class Judge(Protocol):
    """Sees the answers of an evaluation, then gives the scores."""

    def add(self, loss: Tensor, answer: Tensor, *targets: Tensor) -> None: ...
    def scores(self) -> Scores: ...


class Sums:
    """Numbers added up in float64 where they are; all 0 before the first."""

    def __init__(self, size: int):
        self._size = size
        self._total: Tensor | None = None

    def add(self, *numbers: Tensor) -> None:
        """Add a number [] to each of the sums, and the first times the second to the first: a mean and its weight."""
        mean, weight, *rest = (number.double() for number in numbers)
        row = ops.stack([ops.where(weight > 0, mean * weight, 0.0), weight, *rest])
        self._total = row if self._total is None else self._total + row

    def read(self) -> list[float]:
        """The first sum by the second, the second, and the others."""
        total, weight, *rest = [0.0] * self._size if self._total is None else self._total.tolist()
        return [_share(total, weight), weight, *rest]


class Guesses:
    """Judges classes: answers are logits [n, classes, ...], targets [n, ...], those of `ignored` not counted.

    iou: with the mean intersection over union of the classes. One that is neither wanted nor guessed where targets
    count is left out of it.
    """

    def __init__(self, ignored: int, iou: bool = False):
        self.ignored, self.iou = ignored, iou
        self._sums = Sums(3)
        self._classes: Tensor | None = None  # [classes, 3]: both, guessed, wanted

    def add(self, loss: Tensor, answer: Tensor, *targets: Tensor) -> None:
        """Count a batch; loss: the mean over the targets that count."""
        guessed, (wanted,) = answer.argmax(1), targets
        counted = wanted != self.ignored
        right = (guessed == wanted) & counted
        self._sums.add(loss, counted.sum(), right.sum())
        if self.iou:
            each = _by_class(guessed, wanted, counted, answer.shape[1])
            self._classes = each if self._classes is None else self._classes + each

    def scores(self) -> Scores:
        """Mean loss, accuracy, and where it was asked for the mean intersection over union."""
        loss, counted, right = self._sums.read()
        iou = None if self._classes is None else mean_iou(self._classes.numpy(force=True))
        return Scores(loss, _share(right, counted), iou)


def _by_class(guessed: Tensor, wanted: Tensor, counted: Tensor, classes: int) -> Tensor:
    # The diagonal, the columns and the rows of the confusion matrix: all that the intersections and unions need.
    number = ops.arange(classes, device=wanted.device)[:, None]
    guess, want = ((each.reshape(1, -1) == number) & counted.reshape(1, -1) for each in (guessed, wanted))
    return ops.stack([each.sum(1) for each in (guess & want, guess, want)], 1)


def mean_iou(classes: NDArray[Any]) -> float:
    """[classes, 3] numbers of pixels that are both, guessed and wanted -> the mean over classes of both by either.

    NaN where no class occurs. Jaccard 1912; Everingham et al. 2010, IJCV 88, section 4.2.
    """
    both, guessed, wanted = classes.astype(np.float64).T
    either = guessed + wanted - both
    return float(np.mean(both[either > 0] / either[either > 0])) if either.any() else math.nan


class Transcripts:
    """Judges sequences: answers are log-probabilities [n, classes, steps], targets as those of `Transcribe`."""

    def __init__(self) -> None:
        self._sums = Sums(2)
        self._seen: list[tuple[Tensor, ...]] = []  # [n, steps] best classes, and the targets

    def add(self, loss: Tensor, answer: Tensor, *targets: Tensor) -> None:
        """Count a batch; loss: the mean over its sequences."""
        self._sums.add(loss, ops.full_like(loss, answer.shape[0]))
        self._seen.append((answer.argmax(1), *targets))

    def scores(self) -> Scores:
        """Mean loss and character error rate."""
        loss, errors, letters = self._sums.read()[0], 0, 0
        for batch in self._seen:
            path, lengths, wanted, counts = (each.numpy(force=True) for each in batch)
            errors += edit_distances(path, lengths, wanted, counts).sum()
            letters += counts.sum()
        return Scores(loss, char_error_rate=_share(errors, letters))


def edit_distances(
    paths: NDArray[Any], lengths: NDArray[Any], letters: NDArray[Any], counts: NDArray[Any], blank: int = 0
) -> NDArray[np.int64]:
    """How far the letters along each path are from those wanted: letters put in, left out or exchanged. -> [n] int64.

    paths [n, steps]: the best class of each step, of which the first `lengths` [n] count; repeated ones are one letter,
    then blanks are left out (Graves et al. 2006, ICML, section 3.2). letters [n, most], the first `counts` [n] of them.
    Levenshtein 1966, Soviet Physics Doklady 10.
    """
    at = np.arange(letters.shape[1] + 1)
    before = np.full(len(paths), blank)
    row = np.broadcast_to(at, (len(paths), len(at))).astype(np.int64)  # from the letters so far to the first 0, 1, ...
    for step, class_ in enumerate(paths.T):
        said = (class_ != blank) & (class_ != before) & (step < lengths)
        exchanged = row[:, :-1] + (letters != class_[:, None])
        shorter = np.concatenate((row[:, :1] + 1, np.minimum(row[:, 1:] + 1, exchanged)), 1)
        row = np.where(said[:, None], np.minimum.accumulate(shorter - at, axis=1) + at, row)
        before = class_
    return row[np.arange(len(row)), counts]


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan
