"""The ranks of a pipeline, which have a model's parameters together, each some of them: Stages and OnStage."""

from __future__ import annotations

from typing import Any

from ...backends import Array
from ..fsdp.sharded_tensor import Sharding, reduced
from ..process_group import ProcessGroup
from ..reduction import ReduceOp


class Stages:
    """What an optimizer decides for all parameters of a pipeline: every stage calls it, in the same order."""

    def __init__(self, group: ProcessGroup):
        self.group = group

    def total(self, value: Array) -> Array:
        """The sum of a 0-d `value` over the stages."""
        return reduced(value, [self.group], ReduceOp.SUM)

    def largest(self, value: Array) -> Array:
        """The largest of a 0-d `value` over the stages; a bool is true where it is on one of them."""
        return reduced(value, [self.group], ReduceOp.MAX)

    def __deepcopy__(self, memo: dict[int, Any]) -> Stages:  # averages of models copy their parameters
        return self

    def __reduce__(self) -> Any:
        return _of_one_process, ()


class OnStage(Sharding):
    """All rows of a tensor are on the rank `stage` of `group`, and none on the others."""

    def __init__(self, group: ProcessGroup, shape: tuple[int, ...], stage: int):
        super().__init__(group, shape)
        self.stage = stage
        self.bounds = [0] * (stage + 1) + [self.shape[0]] * (group.size() - stage)
        self.rows = self.rows_of(group.rank())


def _of_one_process() -> None:
    """What a parameter has that was loaded from a file: no other stages."""
