"""pipeline: the parts of a list of modules, as stages; PyTorch's names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from itertools import pairwise
from typing import Any

from ...base.errors import ArgumentError, DTypeError
from ...nn.module import Module
from ...nn.modules.container import Sequential
from ..process_group import ProcessGroup
from .stage import PipelineStage


class SplitPoint(Enum):
    """Where a stage ends: before the named module, or after it."""

    BEGINNING = 1
    END = 2


class Pipe:
    """The stages of a Sequential: consecutive modules of it, under the names that they have there."""

    def __init__(self, stages: list[Sequential]):
        self._stages = stages

    @property
    def num_stages(self) -> int:
        return len(self._stages)

    def get_stage_module(self, stage_idx: int) -> Module:
        """The modules of a stage, a Sequential."""
        if type(stage_idx) is not int or not 0 <= stage_idx < self.num_stages:
            raise ArgumentError("get_stage_module", f"a stage from 0 to {self.num_stages - 1}", repr(stage_idx))
        return self._stages[stage_idx]

    def build_stage(self, stage_index: int, device: Any = None, group: ProcessGroup | None = None) -> PipelineStage:
        """The stage of this rank; see PipelineStage."""
        return PipelineStage(self.get_stage_module(stage_index), stage_index, self.num_stages, device, group=group)


def pipeline(
    module: Module, mb_args: Any = None, mb_kwargs: Any = None, split_spec: Mapping[str, SplitPoint] | None = None,
    split_policy: Any = None,
) -> Pipe:  # fmt: skip
    """Cut a Sequential into stages. split_spec: by the names of its modules, where stages begin or end.

    The modules are those of `module`, not copies. mb_args and mb_kwargs, of which PyTorch records the forward, have no
    effect. Raises DTypeError for another module, whose parts are given to PipelineStage one by one, and ArgumentError
    for names that it lacks, or a stage without modules.
    """
    if not isinstance(module, Sequential):
        cure = "give each rank its part: PipelineStage(part, stage_index, num_stages)"
        raise DTypeError("pipeline", "a Sequential, which is a list of modules", f"a {type(module).__name__}", cure)
    if split_policy is not None:
        raise ArgumentError("pipeline", "split_policy=None", "a function", "split_spec names the modules")
    names, spec = list(module._modules), dict(split_spec or {})
    if unknown := [name for name, point in spec.items() if name not in names or not isinstance(point, SplitPoint)]:
        needs = f"split_spec of a SplitPoint by name, of {', '.join(names[:8])}"
        raise ArgumentError("pipeline", needs, f"{unknown[0]!r}: {spec[unknown[0]]!r}")
    begins = {names.index(name) + (point is SplitPoint.END) for name, point in spec.items()}
    bounds = [0, *sorted(begins), len(names)]
    if any(begin == end for begin, end in pairwise(bounds)):
        raise ArgumentError("pipeline", "modules in every stage", f"a stage of none, split at {sorted(begins)}")
    parts = [names[begin:end] for begin, end in pairwise(bounds)]
    return Pipe([Sequential(OrderedDict((name, module._modules[name]) for name in part)) for part in parts])
