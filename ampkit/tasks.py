"""Tasks: how a model's answer is compared with the integer targets of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import ops
from .config import sections
from .core.tensor import Tensor

IGNORED = -100  # a target that does not count: cross_entropy's ignore_index
AUXILIARY = 0.5  # of the loss of a second answer in a dict, as torchvision's reference training weighs it


@dataclass(frozen=True)
class Task:
    """What a model learns: the class of every target, by cross entropy. Judged by the fraction that it guesses right.

    axis: where the answer has its classes. unit: what a batch is counted in.
    """

    axis: int
    unit: str

    def loss(self, answer: Any, targets: Tensor) -> Tensor:
        """The mean cross entropy over the targets that count, and for a dict with "aux" a share of that one's."""
        if not isinstance(answer, dict):
            return ops.cross_entropy(*self._rows(answer, targets))
        loss = self.loss(answer["out"], targets)
        return loss + AUXILIARY * self.loss(answer["aux"], targets) if "aux" in answer else loss

    def score(self, answer: Any, targets: Tensor) -> tuple[float, int, int]:
        """(loss, how many targets are guessed right, how many count) of the answer, in a dict of "out"."""
        logits, wanted = self._rows(answer["out"] if isinstance(answer, dict) else answer, targets)
        right = (logits.argmax(1) == wanted).sum()  # no class has the number of what is ignored
        loss = ops.cross_entropy(logits, wanted)
        return float(loss), int(right), int((wanted != IGNORED).sum())

    def _rows(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """With the classes along axis 1."""
        if self.axis == 1:
            return logits, targets
        return logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)


CLASSIFY = Task(-1, "samples")
WRITE = Task(-1, "tokens")  # of text, the next ones or the hidden ones
PLACES = Task(1, "samples")  # a class per pixel, a letter per step of time

_TASKS = {
    sections.GPT: WRITE,
    sections.BERT: WRITE,
    sections.Segmentation: PLACES,
    sections.Wav2Letter: PLACES,
}


def of(model: sections.Section) -> Task:
    """The task of a [model] section."""
    return _TASKS.get(type(model), CLASSIFY)
