"""An optimizer's parameter groups, which scripts also replace, extend and edit as a list of dicts."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import is_
from typing import Any, ClassVar

from ... import backends
from ...backends import Backend
from ...base.errors import ArgumentError, DTypeError
from ...base.limits import Limits
from ...core.arguments import shown
from ...core.parameter import Parameter
from .. import argument_checks as checks
from ..argument_checks import STEP_FLAGS, LimitsByName
from ..param_group import ParamGroup
from .arena import adopt
from .follow import follow, take_over
from .moments import need_state_dtype, storage_of
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


class OptimizerGroups:
    """The parameter groups of an Optimizer: checked, adopted into arenas, and found again where scripts change them."""

    device_keys: tuple[str, ...] = ("lr",)
    # Of the hyperparameters that have PyTorch's names; those in the annotations of a subclass's constructor are added.
    limits: ClassVar[LimitsByName] = {
        **dict.fromkeys(("lr", "eps", "weight_decay", "momentum"), Limits(ge=0)),
        "betas": (Limits(ge=0, lt=1), Limits(ge=0, lt=1)),
    }
    flags: ClassVar[frozenset[str]] = frozenset({"maximize", "stochastic_rounding"})  # options that are True or False
    differentiable = False  # see differentiable.py
    defaults: dict[str, Any]
    _groups: Groups

    @property
    def param_groups(self) -> list[ParamGroup]:
        """The groups. Dicts that replace some of them, or all, become groups, with the state of their parameters."""
        return self._groups

    @param_groups.setter
    def param_groups(self, groups: Sequence[Any]) -> None:
        if not isinstance(groups, (list, tuple)):
            raise DTypeError(f"{type(self).__name__}.param_groups", "a list of parameter groups", shown(groups))
        self._groups.replace(groups)

    def _check_groups(self) -> list[ParamGroup]:
        # The groups, once the parameters in their lists are those that the arenas have.
        groups = self.param_groups
        return groups.check() if type(groups) is Groups else groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: a dict with "params" and options. Parameters of other groups do not move."""
        self._check_groups()
        self._append(*self._need_group(param_group, [p for group in self.param_groups for p in group["params"]]))

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise ArgumentError for hyperparameters out of range; `options` may be some of them."""
        where = type(self).__name__
        checks.check_limits(where, options, self.limits)
        checks.need_flags(where, options, sorted(self.flags))
        checks.need_implementation_flags(where, **{key: options[key] for key in STEP_FLAGS if key in options})
        need_state_dtype(where, options.get("state_dtype", "float32"))

    def _need_group(self, group: Any, taken: list[Parameter]) -> tuple[list[Parameter], dict[str, Any]]:
        where = f"{type(self).__name__}, parameter group"
        parameters = checks.group_parameters(group, where, taken, self.differentiable)
        given = {k: checks.hyperparameter(v, self.differentiable) for k, v in group.items() if k != "params"}
        options = {**self.defaults, **given}
        self.check_options(checks.in_numbers(options))
        if options.get("differentiable", False) != self.differentiable:
            needs = f"differentiable={self.differentiable} in every group"
            raise ArgumentError(where, needs, options["differentiable"], "give it to the constructor")
        checks.need_divisible(where, type(self), parameters, storage_of(options).state_dtype)
        if not self.differentiable:
            checks.need_updatable_where_shared(where, parameters, options.get("stochastic_rounding", False))
        checks.need_state_dtype(where, parameters, storage_of(options).state_dtype, self.differentiable)
        return parameters, options

    def _append(self, parameters: list[Parameter], options: dict[str, Any]) -> None:
        first = sum(len(group["params"]) for group in self.param_groups)
        members = [] if self.differentiable else parameters
        segments = adopt(self, members, first, storage_of(options))
        group = ParamGroup({"params": parameters, **options}, segments, self.device_keys, weakref.ref(self))
        self._groups.add(group)

    def _backend(self) -> Backend:
        arenas = (arena for group in self._held_groups() for arena in group.arenas)
        return next((arena.backend for arena in arenas), backends.get(None))

    def _held_groups(self) -> list[ParamGroup]:
        groups = self.param_groups
        return groups.held if type(groups) is Groups else groups

    def _parameters(self) -> Iterator[Any]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def segments(self) -> list[Segment]:
        """The segments of its parameters."""
        return [segment for group in self._held_groups() for segment in group.segments]

    def follow_parameters(self) -> None:
        """Give parameters that have other memory now, by `p.data = ...`, segments there; see flat/follow.py."""
        self._check_groups()
        for group in self.param_groups:
            follow(self, group)
