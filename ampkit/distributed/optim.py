"""ZeroRedundancyOptimizer: an optimizer whose state the ranks of a group share out; PyTorch's names.

Each rank has the moments of a range of an arena's elements, updates the weights there, and sends them to all. Ranges
are cut anywhere where an update of an element reads no other; else at the boundaries of parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NoReturn

from .. import backends
from ..backends import Array
from ..base.errors import ArgumentError, DTypeError, StateError
from ..optim.elementwise import Elementwise
from ..optim.flat.arena import Arena, Span
from ..optim.flat.blockwise import BLOCK
from ..optim.flat.memory import narrow
from ..optim.flat.segment import Segment
from ..optim.optimizer import Optimizer
from ..optim.param_group import ParamGroup
from ..optim.state import Entry, snapshot
from .collectives import gathered_objects
from .process_group import ProcessGroup
from .transport import Call, call_site
from .world import group_or_world

__all__ = ["ZeroRedundancyOptimizer"]

_NAME = "ZeroRedundancyOptimizer"


class ZeroRedundancyOptimizer(Optimizer):
    """An `optimizer_class` whose state the ranks of `process_group` share out, about 1 / size of it for each.

    Every rank makes it with the same parameters and options (`defaults`), and takes the same steps, with gradients that
    are the same on all ranks, as DistributedDataParallel makes them. So clipping, a GradScaler and schedules act as
    with `optimizer_class`, of which this is an instance, too; elementwise optimizers give the same bits.
    A step sends the master weights, 4 bytes each (8 in float64), from the rank that has updated them to all.

    `state_dict()` is that of rank `to` after `consolidate_state_dict(to)`, which all ranks call; before the first step
    there is none, on any rank.
    `load_state_dict` takes the whole state on every rank; each keeps its part. `state` has the parameters whose whole
    state is on this rank.
    parameters_as_bucket_view=True has no effect: parameters are views of flat memory already.
    Raises ArgumentError for overlap_with_ddp=True and for an optimizer that needs all of its state at once (LBFGS,
    AdamWScheduleFree), StateError before init_process_group, and for parameters that leave the optimizer's memory
    later; DistError where the ranks have other parameters.
    Rajbhandari, Rasley, Ruwase, He 2020, arXiv:1910.02054, section 5.1 (stage 1).
    """

    process_group: ProcessGroup

    def __new__(cls, params: Any = None, optimizer_class: Any = None, *args: Any, **options: Any) -> Any:
        """An instance of `optimizer_class` and of this class."""
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            raise DTypeError(_NAME, "a class of ampkit.optim as optimizer_class", repr(optimizer_class))
        if not updates_parts(optimizer_class):
            raise ArgumentError(_NAME, "an optimizer that updates parts of its state", optimizer_class.__name__)
        return object.__new__(_of(cls, optimizer_class))

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ):
        if overlap_with_ddp:
            cure = "leave it out: DistributedDataParallel averages gradients while backward goes on"
            raise ArgumentError(_NAME, "overlap_with_ddp=False", repr(overlap_with_ddp), cure)
        if defaults.get("differentiable"):
            raise ArgumentError(_NAME, "differentiable=False", "True", f"{optimizer_class.__name__} records its steps")
        self.process_group = group_or_world(_NAME, process_group)
        self._bounds: dict[Arena, list[int]] = {}
        self._consolidated: dict[Any, Any] | None = {}
        optimizer_class.__init__(self, params, **defaults)
        sizes = [arena.size for arena in self._bounds]
        call = Call(f"{_NAME}({optimizer_class.__name__}, arenas of {sizes})", call_site())
        self.process_group.run(lambda: self.process_group.transport.barrier(call), False)

    @property
    def optim(self) -> Optimizer:
        """The optimizer of this rank's part: itself."""
        return self

    # who has what

    def _append(self, parameters: list[Any], options: dict[str, Any]) -> None:
        super()._append(parameters, options)
        for arena in self._groups[-1].arenas:
            bounds = self._bounds[arena] = self._cut(arena)
            arena.hold(range(*bounds[self.process_group.rank() :][:2]))

    def _cut(self, arena: Arena) -> list[int]:
        """Where the ranges of the ranks begin, and the end of the last."""
        size, count = arena.size, self.process_group.size()
        if type(self).update is Elementwise.update:
            return [min(size, -(-size // BLOCK) * rank // count * BLOCK) for rank in range(count)] + [size]
        starts = [*arena.starts, size]
        return [next(start for start in starts if start >= size * rank // count) for rank in range(count + 1)]

    def _others(self, arena: Arena) -> Iterator[slice]:
        for rank, (begin, end) in enumerate(pairwise(self._bounds[arena])):
            if rank != self.process_group.rank() and begin < end:
                yield slice(begin, end)

    def _check_groups(self) -> list[ParamGroup]:
        held = self._groups.held
        same = len(self._groups) == len(held) and all(a is b for a, b in zip(self._groups, held, strict=True))
        if not (same and all(group.has_members(group["params"]) for group in held)):
            self._refuse("the groups that it was made with", "others")
        return held

    def follow_parameters(self) -> None:
        """Raise StateError for parameters that have other memory now."""
        moved = [segment for segment in self.segments() if not segment.owns_parameter()]
        for segment in moved:
            segment.need_parameter(_NAME)
            self._refuse("parameters that stay in its memory", segment.describe())

    def _store(self, parameter: Any, entry: dict[str, Any] | None) -> None:
        self._refuse("its state as a whole, by load_state_dict", "that of one parameter")

    def _refuse(self, needs: str, got: str) -> NoReturn:
        raise StateError(_NAME, needs, got, "make the optimizer anew after the model has changed")

    # a step

    def update_spans(self, group: ParamGroup, present: list[Span], all_finite: Array | None) -> None:
        """Update this rank's part of one arena's spans, and receive the others'."""
        arena = present[0].arena
        self._consolidated = None
        for span in present:
            if (own := span.within(arena.held)) is not None:
                self.update_span(group, own, all_finite)
                own.round()
        self._exchange(arena)
        for span in present:
            span.commit(all_finite)

    def _exchange(self, arena: Arena) -> None:
        # Master weights, so that all ranks have all bits of them, and round the same copies.
        held, bounds = arena.held, self._bounds[arena]
        self.process_group.gather_ranges(arena.master[held.start : held.stop], arena.master, bounds)
        for part in self._others(arena):
            for copy in arena.copies.values():
                narrow(arena.master[part], copy[part])

    # the state

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Bring the whole state to the rank `to`, for its `state_dict()`; all ranks call it after the same step."""
        group, rank = self.process_group, self.process_group.rank_of("consolidate_state_dict", to)
        arenas = list(self._bounds)
        mine = [sorted(arena.moments) for arena in arenas], self._extra_states()
        told = gathered_objects(group, mine, Call(f"consolidate_state_dict(to={to})", call_site()))
        whole: list[_Whole] = []
        for number, arena in enumerate(arenas):
            names = [name for name in self.moments if any(name in moments[number] for moments, _ in told)]
            whole.append(self._gathered(arena, names, rank))
        if group.rank() == rank:
            extra = {key: arrays for _, states in told for key, arrays in states.items()}
            with self._holding(whole, extra):
                self._consolidated = super()._snapshots()

    def _extra_states(self) -> dict[int, dict[str, Any]]:
        # By the number of a parameter; of those that this rank updates.
        own = [segment for segment in self.segments() if segment.is_held and segment.extra_state]
        to_numpy = self._backend().to_numpy
        return {s.number: {name: to_numpy(array) for name, array in s.extra_state.items()} for s in own}

    def _gathered(self, arena: Arena, names: Sequence[str], to: int) -> _Whole:
        """What an arena has without sharing, on the rank `to`; nothing on others."""
        is_here, bounds = self.process_group.rank() == to, self._bounds[arena]
        found = _Whole(arena)

        def gather(mine: Array, scale: int = 1) -> Array:
            size = arena.size // scale
            made = arena.backend.zeros((size,), mine.dtype) if is_here else None
            self.process_group.gather_ranges(mine, made, [bound // scale for bound in bounds], to)
            return made

        with backends.device_guard(arena.master):
            for name in names:
                arena.moment(name)
                found.moments[name] = gather(arena.moments[name])
                if name in arena.scales:
                    found.scales[name] = gather(arena.scales[name], BLOCK)
        return found

    @contextmanager
    def _holding(self, whole: Sequence[_Whole], extra: dict[int, dict[str, Any]]) -> Iterator[None]:
        """A context in which the arenas have all of the state."""
        kept = [(segment, segment.extra_state) for segment in self.segments()]
        try:
            for each in whole:
                each.swap()
            for segment in self.segments():
                made = {name: segment.arena.backend.asarray(v) for name, v in extra.get(segment.number, {}).items()}
                segment.extra_state = made
            yield
        finally:
            for each in whole:
                each.swap()
            for segment, state in kept:
                segment.extra_state = state

    def _snapshots(self) -> dict[Any, Any]:
        if self.process_group.size() == 1:
            return super()._snapshots()
        if self._consolidated is None:
            needs = "consolidate_state_dict(to) after the last step, called by all ranks, with this one as `to`"
            raise StateError(f"{_NAME}.state_dict", needs, f"none on rank {self.process_group.rank()}")
        owners = {segment.number: segment.parameter for segment in self.segments()}
        found = self._consolidated.items()
        return {key: owners[key]._of_state(snapshot(value)) if key in owners else value for key, value in found}

    def _load(self, entries: dict[int, dict[str, Any]], checked: dict[Segment, Entry]) -> None:
        self._consolidated = None
        held = {arena: arena.held for arena in self._bounds}
        for arena in held:
            arena.moments, arena.scales, arena.held = {}, {}, range(arena.size)
        try:
            super()._load(entries, checked)
        finally:
            for arena, elements in held.items():
                arena.hold(elements)
            for segment in self.segments():
                if not segment.is_held:
                    segment.extra_state = {}

    def __getstate__(self) -> NoReturn:
        raise StateError(_NAME, "one optimizer per model", "a copy or a pickle", "save consolidate_state_dict's state")


def updates_parts(optimizer_class: type[Optimizer]) -> bool:
    """Whether an update by `optimizer_class` needs no more of its state than that of the parameters it updates."""
    by_spans = optimizer_class.update is not Optimizer.update and not optimizer_class.needs_closure
    return by_spans and not hasattr(optimizer_class, "eval")


class _Whole:
    """The moments of an arena as they are without sharing; `swap` exchanges them with its own."""

    def __init__(self, arena: Arena):
        self.arena, self.held = arena, range(arena.size)
        self.moments: dict[str, Array] = {}
        self.scales: dict[str, Array] = {}

    def swap(self) -> None:
        for name in ("moments", "scales", "held"):
            mine, theirs = getattr(self, name), getattr(self.arena, name)
            setattr(self, name, theirs)
            setattr(self.arena, name, mine)


_classes: dict[tuple[type, type], type] = {}


def _of(kind: type[ZeroRedundancyOptimizer], optimizer_class: type[Optimizer]) -> type[ZeroRedundancyOptimizer]:
    """The class of those of an `optimizer_class`."""
    if (kind, optimizer_class) not in _classes:
        said = {"limits": optimizer_class.limits, "flags": optimizer_class.flags, "__module__": kind.__module__}
        name = f"{kind.__name__}[{optimizer_class.__name__}]"
        _classes[kind, optimizer_class] = type(name, (kind, optimizer_class), said)
    return _classes[kind, optimizer_class]
