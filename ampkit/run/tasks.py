"""Tasks: how a model's answer is compared with the targets of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .. import ops
from ..config import sections
from ..core.tensor import Tensor
from .metrics import Guesses, Judge, Transcripts

IGNORED = -100  # a target that does not count: cross_entropy's ignore_index
AUXILIARY = 0.5  # of the loss of a second answer in a dict, as torchvision's reference training weighs it


class Task(Protocol):
    """What a model learns, and by what it is judged. unit: what a batch is counted in."""

    @property
    def unit(self) -> str: ...

    def loss(self, answer: Any, *targets: Tensor) -> Tensor:
        """The mean loss of a batch []."""

    def judge(self) -> Judge:
        """A new judge of an evaluation."""

    def shown(self, answer: Any, *targets: Tensor) -> tuple[Tensor, ...]:
        """What the judge sees of a batch: the loss, the answer and the targets."""


@dataclass(frozen=True)
class Classify:
    """The class of every target, by cross entropy. Judged by the fraction that is guessed right.

    axis: where the answer has its classes. iou: judged by the mean intersection over union of the classes, too.
    """

    axis: int
    unit: str
    iou: bool = False

    def loss(self, answer: Any, *targets: Tensor) -> Tensor:
        """The mean cross entropy over the targets that count, and for a dict with "aux" a share of that one's."""
        if not isinstance(answer, dict):
            return ops.cross_entropy(*self._rows(answer, *targets))
        loss = self.loss(answer["out"], *targets)
        return loss + AUXILIARY * self.loss(answer["aux"], *targets) if "aux" in answer else loss

    def judge(self) -> Judge:
        """Of accuracy, and of intersection over union."""
        return Guesses(IGNORED, self.iou)

    def shown(self, answer: Any, *targets: Tensor) -> tuple[Tensor, ...]:
        """The loss [], logits [n, classes, ...] and targets [n, ...] of the answer, in a dict that of "out"."""
        logits, wanted = self._rows(answer["out"] if isinstance(answer, dict) else answer, *targets)
        return ops.cross_entropy(logits, wanted), logits, wanted

    def _rows(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """With the classes along axis 1."""
        if self.axis == 1:
            return logits, targets
        return logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)


@dataclass(frozen=True)
class Transcribe:
    """A sequence of letters, when each of them is said being left open. Judged by the character error rate.

    The answer: log-probabilities [n, classes, steps], class 0 the blank. Targets: how many steps of it count [n], the
    letters [n, most] and how many they are [n].
    """

    unit: str = "samples"

    def loss(self, answer: Any, *targets: Tensor) -> Tensor:
        """The mean over the sequences of their CTC loss by letter."""
        lengths, letters, counts = targets
        loss: Tensor = ops.ctc_loss(answer.permute(2, 0, 1), letters, lengths, counts)
        return loss

    def judge(self) -> Judge:
        """Of the letters along the best path."""
        return Transcripts()

    def shown(self, answer: Any, *targets: Tensor) -> tuple[Tensor, ...]:
        """The loss, the answer and the targets as they are."""
        return self.loss(answer, *targets), answer, *targets


CLASSIFY = Classify(-1, "samples")
WRITE = Classify(-1, "tokens")  # of text, the next ones or the hidden ones
PIXELS = Classify(1, "samples", iou=True)
TRANSCRIBE = Transcribe()

_TASKS: dict[type, Task] = {
    sections.GPT: WRITE,
    sections.BERT: WRITE,
    sections.Segmentation: PIXELS,
    sections.Wav2Letter: TRANSCRIBE,
}


def of(model: sections.Section) -> Task:
    """The task of a [model] section."""
    return _TASKS.get(type(model), CLASSIFY)
