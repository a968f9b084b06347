"""The batches of a training's steps: every rank has its own, or all of them go back to the last whole step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import random
from ...distributed import DistError
from ..step import Batch
from .saving import FAILED, SavedTraining

_ENDED = 1  # the code of a rank whose data have ended


class DataEndedError(Exception):
    """There are no batches for another step."""


class BatchedTraining(SavedTraining):
    """A SavedTraining that draws batches. What a checkpoint holds is the place before those of a step that failed."""

    # what a kind of training defines

    def next_batches(self) -> Sequence[Batch]:
        """The batches of this rank in the next step; fewer than `batches_per_step` where its data end."""
        raise NotImplementedError

    @property
    def batches_per_step(self) -> int:
        """How many `next_batches` gives."""
        return self.settings.accumulate

    def place(self) -> Any:
        """The place in the data, for `go_back`. It is asked for before each step, and so is cheap."""

    def go_back(self, place: Any) -> None:
        """Draw the next batch from a `place`, that of the last whole step."""
        raise NotImplementedError

    def end_of_data(self, found: int) -> Exception:
        """What to raise, on all ranks, where the data of one had `found` batches for a step, and no more."""
        raise NotImplementedError

    # the same for all kinds

    def drawn(self) -> Sequence[Batch]:
        """The batches of the next step. Raises DataEndedError if there are none.

        Where those of a rank raise or end, all are at the last whole step again, and save it unless it is the end.
        """
        state, batches = random.default.state(), list[Batch]()
        place = self.place() if (saves := self.checkpoints is not None and self.done > 0) else None
        try:
            batches.extend(self.next_batches())
        except DistError:
            raise
        except Exception as error:
            self._failed("the training data", error)
        code = _ENDED if len(batches) < self.batches_per_step else 0
        found = self.ranks.most(FAILED if self._error is not None else code)
        if not found:
            return batches
        ended = self.end_of_data(len(batches)) if found == _ENDED else None
        random.default.restore(state)
        if saves:
            self.go_back(place)
        if ended is None:
            self._raise()
        if not isinstance(ended, DataEndedError):
            self.save()
        raise ended
