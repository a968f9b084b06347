"""The list of an optimizer's parameter groups, which scripts also replace, extend and edit as a list of dicts."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import is_
from typing import Any

from ..param_group import ParamGroup
from .arena import adopt
from .follow import take_over
from .moments import storage_of
from .segment import Segment


class Groups(list[ParamGroup]):
    """The groups of an optimizer. What a script puts in as a plain dict becomes a group at the next `check`."""

    def __init__(self, owner: Any):
        super().__init__()
        self.held: list[ParamGroup] = []  # those that the list had at the last check
        self._owner = weakref.ref(owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([dict(group) for group in self],)

    def check(self) -> list[ParamGroup]:
        """Make groups of plain dicts, and give new parameters in the lists of groups their places in arenas.

        -> the groups.
        """
        if len(self) != len(self.held) or not all(map(is_, self, self.held)) or not all(map(_is_whole, self.held)):
            self.replace(list(self))
        return self.held

    def add(self, group: ParamGroup) -> None:
        """Append a group of the optimizer's own making."""
        self.append(group)
        self.held.append(group)

    def replace(self, groups: Sequence[Any]) -> None:
        """Hold these groups from now on. Raises as `add_param_group` for one that does not fit."""
        owner: Any = self._owner()
        before = {id(segment.parameter): segment for segment in owner.segments()} if self.held else {}
        made: list[ParamGroup] = []
        for group in groups:
            if _is_whole(group):
                made.append(group)
                continue
            taken = [parameter for each in made for parameter in each["params"]]
            parameters, options = owner._need_group(dict(group) if isinstance(group, Mapping) else group, taken)
            segments = next((each.segments for each in self.held if each.has_members(parameters)), None)
            if segments is None:
                segments = self._segments_of(parameters, options, len(taken), before)
            made.append(ParamGroup({"params": parameters, **options}, segments, owner.device_keys, self._owner))
        self[:], self.held = made, made
        places = {id(p): place for place, p in enumerate(p for group in made for p in group["params"])}
        for segment in owner.segments():
            segment.number = places.get(id(segment.parameter), segment.number)

    def _segments_of(
        self, parameters: list[Any], options: Mapping[str, Any], first: int, before: Mapping[int, Segment]
    ) -> list[Segment]:
        owner: Any = self._owner()
        members = [] if owner.differentiable else parameters
        segments = adopt(owner, members, first, storage_of(options))
        for _, neighbours in groupby(segments, lambda segment: segment.arena):
            made = list(neighbours)
            take_over(made, [before.get(id(segment.parameter)) for segment in made])
        return segments


def _is_whole(group: Any) -> bool:
    # Whether it is a group, and nobody edited its list of parameters since the segments were made.
    return type(group) is ParamGroup and group.has_members(group["params"])
