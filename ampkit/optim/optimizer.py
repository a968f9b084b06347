"""Optimizer: the base of all optimizers.

A step is `step` -> `present` -> `advance` -> `update`, top to bottom in this file. A GradScaler enters at `advance`,
with a flag on the device that says whether all gradients are finite. Parameters live in arenas (flat/arena.py), the
hyperparameters that schedules set live on the device, and nothing in a step reads the device from the host.
"""

from __future__ import annotations

import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from .. import backends
from ..backends import Array
from ..backends.launch_queue import queue
from ..base import dtypes, observe
from ..base.errors import ArgumentError, DTypeError, switch
from ..core.arguments import shown
from ..core.autograd.grad_mode import enable_grad
from ..core.capture.code_names import is_library
from ..core.capture.recorder import asks_gradients, recorders, uses
from ..core.fp_errors import ignore_fp_errors
from ..core.parameter import Parameter
from . import argument_checks as checks
from . import differentiable
from .argument_checks import IMPLEMENTATION_FLAGS, to_python
from .flat.arena import Span, adopt, gradients_of, spans
from .flat.groups import Groups, OptimizerGroups
from .flat.memory import read_scalar
from .flat.moments import storage_of
from .flat.segment import Segment
from .optimizer_hooks import OptimizerHooks, counted, with_hooks
from .param_group import ParamGroup
from .state import (
    Entry,
    State,
    copy_custom_state,
    custom_state,
    in_state_dtypes,
    load_entries,
    need_entry,
    snapshot,
    state_entry,
)


class Optimizer(OptimizerGroups, OptimizerHooks):
    """The base of optimizers; PyTorch's interface.

    A subclass names its `moments` and the hyperparameters that schedules may set (`device_keys`), annotates its
    constructor's with limits (base/limits.py), and implements `update(group, span, all_finite)`: one pass over
    `span.master`, `span.gradient` and `span.moment(name)`, which also rewrites `span.copies`. all_finite is a 0-d bool
    on the device, or None for always: where it is false, nothing may change. The calls of a subclass with a `step` of
    its own are counted, for schedules.

    params: Parameters, (name, Parameter) pairs, or dicts with "params" and options of their own. A parameter listed
    twice counts once. A parameter has one optimizer, the newest one made for it; an older one raises when it is used.
    Raises DTypeError for anything but floating-point Parameters, ArgumentError for none, for a parameter in two groups,
    and for options out of range.
    """

    moments: tuple[str, ...] = ()
    non_negative: tuple[str, ...] = ()  # those of them that are never below 0
    stepped_keys: tuple[str, ...] = ()  # those of device_keys that a step changes
    counts_steps = True  # whether the state of a parameter has a "step"
    needs_closure = False  # whether `step` takes a closure only, which a GradScaler cannot pass on
    not_loaded: frozenset[str] = checks.NOT_LOADED  # options of a saved group that loading ignores
    by_element = False  # whether an update of an element reads no other, so that ranks can share parameters out
    calls = 0  # skipped steps included, those of a recorded step not
    recorded = False  # whether a recorded step calls it
    schedules_made = 0  # schedules that multiply the same learning rates, once there are several
    _schedule: Any = None
    steps: Array  # on the device; skipped steps are not counted
    custom_state: dict[Parameter, dict[str, Any]]  # of a subclass with its own `step`
    named_state: dict[str, Any]  # what was stored in `state` under other keys than parameters

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            parameters = inspect.signature(cls.__init__).parameters.values()
            cls.limits = {**cls.limits, **checks.annotated_limits(cls.__init__)}
            cls.flags |= {p.name for p in parameters if type(p.default) is bool} - {*IMPLEMENTATION_FLAGS}
        if "step" in cls.__dict__:
            cls.step = with_hooks(counted(cls.step))  # type: ignore[method-assign]  # wraps a subclass's step

    def __init__(self, params: Any, defaults: dict[str, Any]):
        self.differentiable = bool(to_python(defaults.get("differentiable", False)))
        self.defaults = {key: checks.hyperparameter(value, self.differentiable) for key, value in defaults.items()}
        self.check_options(checks.in_numbers(self.defaults))
        self._groups = Groups(self)
        groups: list[tuple[list[Parameter], dict[str, Any]]] = []
        for options in checks.group_options(params, type(self).__name__):
            groups.append(self._need_group(options, [p for parameters, _ in groups for p in parameters]))
        for parameters, options in groups:  # only now, when all groups are checked, does a parameter move
            self._append(parameters, options)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Also of a subclass that wraps another optimizer and does not call this constructor.
            if name not in _MADE_WHEN_READ:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            made = vars(self)[name] = _MADE_WHEN_READ[name](self)
            return made

    # a step

    @with_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what `closure`, which recomputes the loss, returned.

        Raises StateError for gradients that are still scaled by a GradScaler, and for a parameter that a newer
        optimizer holds.
        """
        where, loss = f"{type(self).__name__}.step", None
        if closure is not None:
            if not callable(closure):
                raise DTypeError(where, "a closure or nothing", f"a {type(closure).__name__}")
            with enable_grad():
                loss = closure()
        if self.differentiable:
            differentiable.step(self)
            self._count(1)
            return loss
        present = self.present()
        checks.refuse_scaled(where, gradients_of(present), "call scaler.step(optimizer) instead")
        self.advance(present, None)
        return loss

    def present(self) -> list[Span]:
        """The parameters that have a gradient, as spans of neighbours that took equal steps, for `advance`.

        Raises StateError if another optimizer took a parameter.
        """
        if queue.waiting:
            queue.flush()  # what reads or writes the flat memory
        segments = self._owned_segments()
        if recorders:
            asks_gradients([segment.parameter for segment in segments])
        present = []
        for segment in segments:
            if (gradient := segment.parameter._grad) is not None:
                present.append(segment)
                if gradient._array is not segment.gradient:
                    segment.take_gradient()
        return spans(present, of_equal_steps=True)

    def _owned_segments(self) -> list[Segment]:
        # The segments, once those whose parameter has other memory now are replaced.
        segments = [segment for group in self._check_groups() for segment in group.segments]
        for segment in segments:
            parameter = segment.parameter  # this is `segment.owns_parameter()`, without a call for each
            if parameter._segment is not segment.reference or parameter._array is not segment.array:
                self.follow_parameters()
                return self.segments()
        return segments

    def advance(self, present: list[Span], all_finite: Array | None) -> None:
        """Take one step with the spans `present`, if `all_finite`; a skipped step changes and counts nothing."""
        uses(self)
        with ignore_fp_errors():
            for group in self.param_groups:
                for arena in group.arenas:
                    if own := [span for span in present if span.arena is arena]:
                        with backends.device_guard(arena.master):
                            all_finite = None if all_finite is None else backends.to_device_of(all_finite, arena.master)
                            arena.begin_step(own)
                            self.update_spans(group, own, all_finite)
            self._count(1 if all_finite is None else all_finite)

    def update_spans(self, group: ParamGroup, present: list[Span], all_finite: Array | None) -> None:
        """Update the spans `present` of one arena, if `all_finite`, and count the step."""
        for span in present:
            self.update_span(group, span, all_finite)
            span.commit(all_finite)

    def update_span(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        """Update the weights, moments and copies of one span, and tell observers."""
        name = f"{type(self).__name__.lower()}_update"
        if observe.profilers:
            observe.notify_start(name, "", span.gradient)
        self.update(group, span, all_finite)
        if observe.observers:
            observe.notify_end(name, (span.gradient,), span.master, observe.STEP)

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        """Update the weights, moments and copies of one span; see the class."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def _count(self, steps: Any) -> None:
        self.calls += 1
        self.recorded |= getattr(backends.backend_of(self.steps), "recording", None) is not None
        with backends.device_guard(self.steps):
            self.steps += backends.to_device_of(steps, self.steps) if hasattr(steps, "dtype") else steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients. set_to_none=False fills them with zeros: such a parameter still takes part in steps."""
        set_to_none = switch(f"{type(self).__name__}.zero_grad", "set_to_none", set_to_none)
        if recorders and not set_to_none:
            asks_gradients(self._parameters())
        for parameter in self._parameters():
            if set_to_none:
                parameter.drop_grad()
            elif (gradient := parameter._grad) is not None:
                gradient.zero_()

    # schedules and recorded steps

    @property
    def schedule(self) -> Any:
        """The scheduler that sets the hyperparameters, held by a weak reference; None without one."""
        return None if self._schedule is None else self._schedule()

    @schedule.setter
    def schedule(self, scheduler: Any) -> None:
        self._schedule = None if scheduler is None else weakref.ref(scheduler)

    def read_by_steps(self, reads: Any) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Where a step reads options and hooks on the host, for recorded ones (see core/capture/host_reads.py)."""
        yield vars(self).get, "param_groups"
        yield len, self.param_groups
        yield _numbers_of_hooks, self
        if not is_library(type(self)):
            reads.attributes(self)
        for each in (*self.step_hooks().values(), *self.param_groups):
            reads.visit(each)

    # state

    @property
    def state(self) -> dict[Parameter, dict[str, Any]]:
        """Per parameter that has stepped: its moments, as views, step count, and a 16-bit one's master weights.

        Of an optimizer with a `step` and no `update` of its own: what that step stores here, empty dicts at first.
        Values under other keys than parameters are kept, and saved, as they are.
        """
        if self._has_custom_state():
            return self.custom_state
        return State(self.named_state, {parameter: entry for _, parameter, entry in self._entries()}, self._store)

    @state.setter
    def state(self, state: dict[Any, Any]) -> None:
        if not isinstance(state, Mapping):
            raise DTypeError(f"{type(self).__name__}.state", "a dict by parameter", shown(state))
        if self._has_custom_state():
            self.custom_state = state
            return
        self.follow_parameters()
        entries = {segment.number: state.get(segment.parameter, {}) for segment in self.segments()}
        self._load(entries, self._need_entries(f"{type(self).__name__}.state", entries))
        self.named_state = {key: value for key, value in state.items() if isinstance(key, str)}

    def _store(self, parameter: Any, entry: dict[str, Any] | None) -> None:
        # What a script stores in `state` for a parameter, or None to forget its state, which others may hold.
        self.follow_parameters()
        found = {id(segment.parameter): segment for segment in self.segments()}.get(id(parameter))
        if found is None:
            raise ArgumentError(f"{type(self).__name__}.state", "a parameter of the optimizer", shown(parameter))
        if entry is None:
            group = next(group for group in self.param_groups if found in group.segments)
            made = adopt(self, [parameter], found.number, storage_of(group))
            group.hold([*(segment for segment in group.segments if segment is not found), *made])
        else:
            where = f"{type(self).__name__}.state"
            checked = {found: need_entry(where, found, entry, self.state_shapes(found), self.moments)}
            load_entries(found.arena, [found], checked, self._state_array)

    def _has_custom_state(self) -> bool:
        return self.differentiable or type(self).update is Optimizer.update

    def _entries(self) -> Iterator[tuple[int, Parameter, dict[str, Any]]]:
        # The number, the parameter and the state of each that has one.
        if self.differentiable:
            numbered = enumerate(self._parameters())
            yield from ((number, p, self.custom_state[p]) for number, p in numbered if self.custom_state.get(p))
        for group in self._held_groups():
            steps = {a: backends.backend_of(a.steps).to_numpy(a.steps).tolist() for a in group.arenas}
            for segment in filter(lambda segment: segment.is_held, group.segments):
                taken = steps[segment.arena][segment.index]
                if self._has_custom_state():
                    entry = custom_state(segment, self.custom_state)
                else:
                    entry = state_entry(segment, taken, self.counts_steps)
                if entry:
                    yield segment.number, segment.parameter, entry

    def state_shapes(self, segment: Segment) -> dict[str, tuple[int, ...]]:
        """The shapes of a parameter's state arrays by name; those that are no moments are `segment.state_array`s."""
        return dict.fromkeys(self.moments, segment.shape)

    def state_dict(self) -> dict[str, Any]:
        """A snapshot, in PyTorch's layout: `state` by parameter number, and `param_groups`."""
        self._run_hooks("state_dict_pre")
        numbers: dict[int, int] = {}  # of a parameter in several groups: that of its first place
        for place, parameter in enumerate(self._parameters()):
            numbers.setdefault(id(parameter), place)
        groups = [{**group, "params": [numbers[id(p)] for p in group["params"]]} for group in self.param_groups]
        return self._run_hooks("state_dict_post", {"state": self._snapshots(), "param_groups": groups})

    def _snapshots(self) -> dict[Any, Any]:
        # Copies of the state of each parameter by its number, and of that which has a name.
        state = {number: parameter._of_state(snapshot(entry)) for number, parameter, entry in self._entries()}
        return {**dict(sorted(state.items())), **deepcopy(self.named_state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, ampkit's or PyTorch's. Raises ArgumentError, before anything changes, if it does not fit."""
        where = f"{type(self).__name__}.load_state_dict"
        if isinstance(state_dict, dict):
            state_dict = self._run_hooks("load_pre", dict(state_dict))
        self.follow_parameters()
        groups, state = checks.need_groups(where, state_dict, [len(group["params"]) for group in self.param_groups])
        saved_ids = [number for group in groups for number in group["params"]]
        options = [{k: to_python(v) for k, v in g.items() if k not in self.not_loaded} for g in groups]
        for group, saved in zip(self.param_groups, options, strict=True):
            group.check(saved)
        pairs = zip(saved_ids, self._parameters(), strict=True)
        entries = {number: p._from_state(state.get(saved, {})) for number, (saved, p) in enumerate(pairs)}
        entries = in_state_dtypes(where, entries, groups, self.param_groups, self.non_negative)
        checked = self._need_entries(where, entries)
        for group, saved in zip(self.param_groups, options, strict=True):
            group.set_checked(saved)
        self._load(entries, checked)
        self.named_state = {key: deepcopy(value) for key, value in state.items() if key not in saved_ids}
        self._run_hooks("load_post")

    def _need_entries(self, where: str, entries: dict[int, dict[str, Any]]) -> dict[Segment, Entry]:
        if self._has_custom_state():  # whose other items the subclass alone knows
            entries = {number: {"master": entry.get("master")} for number, entry in entries.items()}
        found = [(s, entries.get(s.number, {})) for s in self.segments()]
        return {s: need_entry(where, s, entry, self.state_shapes(s), self.moments) for s, entry in found}

    def _load(self, entries: dict[int, dict[str, Any]], checked: dict[Segment, Entry]) -> None:
        if self.differentiable:
            found = {p: snapshot(entries.get(number, {})) for number, p in enumerate(self._parameters())}
            self.custom_state = defaultdict(dict, {parameter: state for parameter, state in found.items() if state})
            return
        if self._has_custom_state():
            states = {s.parameter: copy_custom_state(s, entries.get(s.number, {})) for s in self.segments()}
            self.custom_state = defaultdict(dict, {parameter: state for parameter, state in states.items() if state})
            return
        for group in self._held_groups():
            for arena in group.arenas:
                load_entries(arena, [s for s in group.segments if s.arena is arena], checked, self._state_array)

    def _state_array(self, segment: Segment, name: str) -> Any:
        # A state array, flat.
        if name in self.moments:
            return segment.moment(name)
        return segment.state_array(name, self.state_shapes(segment)[name]).reshape(-1)

    # copies and pickles: arenas are not copied; a copy makes its own around its own parameters

    def __getstate__(self) -> dict[str, Any]:
        omitted = ("_groups", "steps", "custom_state", "_schedule", "_hooks")
        rest = {key: value for key, value in vars(self).items() if key not in omitted}
        groups, steps = [dict(group) for group in self.param_groups], int(read_scalar(self.steps))
        return {**rest, "copied": (groups, self._snapshots(), steps, self.schedule)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        groups, entries, steps, self.schedule = state.pop("copied")
        vars(self).update(state, _groups=Groups(self))
        for options in groups:
            self._append(options.pop("params"), options)
        self._load(entries, self._need_entries(f"copy of {type(self).__name__}", entries))
        self.steps = self._backend().asarray(steps, dtypes.int64)

    def __repr__(self) -> str:
        groups = "\n".join(f"Parameter Group {i}\n{group!r}" for i, group in enumerate(self.param_groups))
        return f"{type(self).__name__} (\n{groups}\n)"


def _numbers_of_hooks(optimizer: Optimizer) -> tuple[int, ...]:
    return tuple(optimizer.step_hooks())


_MADE_WHEN_READ: dict[str, Callable[[Optimizer], Any]] = {
    "_hooks": lambda optimizer: {},
    "_groups": Groups,
    "steps": lambda optimizer: optimizer._backend().zeros((), dtypes.int64),
    "custom_state": lambda optimizer: defaultdict(dict),
    "named_state": lambda optimizer: {},
}
