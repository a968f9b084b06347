"""Optimizer: what SGD, Adam and optimizers of your own share.

Parameters live in an arena, hyperparameters that schedules move live on the device, and a step never reads the device
from the host.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import wraps
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, Backend
from ..base import dtypes, observe
from ..base.errors import ArgumentError, DTypeError, StateError
from ..core.autograd.grad_mode import enable_grad
from ..core.fp_errors import ignore_fp_errors
from ..core.parameter import Parameter
from ..core.tensor import uses
from .argument_checks import group_options, need_groups, parameters_of, refuse_scaled
from .flat.arena import Run, adopt
from .flat.memory import look
from .flat.segment import Slot
from .options import NOT_OURS, WORDS, need, need_betas, need_flags, need_words, plain
from .param_group import Group
from .state import Entry, entry_of, keep, kept_of, load_entries, need_entry


class Optimizer:
    """The base of optimizers; PyTorch's interface, with `step` written once.

    A subclass names its `moments`, the hyperparameters that schedules may move (`device_keys`), and implements
    `update(group, run, go)`: one pass over `run.master`, `run.gradient` and `run.moment(name)`, flat memory, that also
    rewrites `run.copies`. `go`, a 0-d boolean on the device or None for always, says whether the step is real; where it
    is false, nothing may change. One that brings a whole `step` of its own has its calls counted, for schedules.

    params: Parameters, (name, Parameter) pairs, or dicts with "params" and options of their own. A parameter given
    twice counts once. A parameter has one optimizer, the newest one made for it; an older one raises when it is used.
    Raises DTypeError for anything but floating-point Parameters, ArgumentError for none, for a parameter in two groups,
    and for options out of range.
    """

    moments: tuple[str, ...] = ()
    device_keys: tuple[str, ...] = ("lr",)
    counts_steps = True  # whether the state of a parameter has a "step"
    from_0: tuple[str, ...] = ("lr", "eps", "weight_decay", "momentum")  # options that are numbers from 0 on
    needs_closure = False  # whether `step` cannot do without one, and a GradScaler not with it
    flags: tuple[str, ...] = ("maximize", "stochastic_rounding")  # options that are True or False
    not_loaded: frozenset[str] = NOT_OURS  # of saved groups

    def __init__(self, params: Any, defaults: dict[str, Any]):
        self.defaults = {key: plain(value) for key, value in defaults.items()}
        self.check_options(self.defaults)
        self.param_groups: list[Group] = []
        self._schedule: Any = None
        self.kept: dict[Parameter, dict[str, Any]] = defaultdict(dict)  # the state of a `step` of one's own
        groups: list[tuple[list[Parameter], dict[str, Any]]] = []
        for options in group_options(params, type(self).__name__):
            groups.append(self._need_group(options, [p for parameters, _ in groups for p in parameters]))
        for parameters, options in groups:  # only now, when all of them are good, does a parameter move
            self._append(parameters, options)
        self.steps = self._backend().zeros((), dtypes.int64)  # real steps, on the device
        self.calls = 0  # steps taken or skipped

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in cls.__dict__:
            cls.step = _counted(cls.step)  # type: ignore[method-assign]

    def _backend(self) -> Backend:
        return next((b.backend for g in self.param_groups for b in g.blocks), backends.get(None))

    def check_options(self, options: dict[str, Any]) -> None:
        """Raise ArgumentError for hyperparameters out of range; `options` may hold some of them."""
        for key in self.from_0:
            need(type(self).__name__, options, key)
        if "betas" in self.device_keys:
            need_betas(type(self).__name__, options)
        need_flags(type(self).__name__, options, self.flags)
        given = {key: options[key] for key in (*WORDS, "differentiable") if key in options}
        need_words(type(self).__name__, **given)

    @property
    def schedule(self) -> Any:
        """The scheduler that drives it, as long as somebody holds that; None without one."""
        return None if self._schedule is None else self._schedule()

    @schedule.setter
    def schedule(self, scheduler: Any) -> None:
        self._schedule = None if scheduler is None else weakref.ref(scheduler)

    # groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: a dict with "params" and options. What is there already stays where it is."""
        self._append(*self._need_group(param_group, [p for group in self.param_groups for p in group["params"]]))

    def _need_group(self, group: Any, taken: list[Parameter]) -> tuple[list[Parameter], dict[str, Any]]:
        where = f"{type(self).__name__}, parameter group"
        if not isinstance(group, dict) or "params" not in group:
            raise DTypeError(where, "a dict with 'params'", repr(group)[:80])
        parameters, others = parameters_of(group["params"], where), {id(p) for p in taken}
        for number, parameter in enumerate(parameters):
            if id(parameter) in others:
                raise ArgumentError(where, "each parameter in one group", f"parameter {number} in two")
        options = {**self.defaults, **{key: plain(value) for key, value in group.items() if key != "params"}}
        self.check_options(options)
        return parameters, options

    def _append(self, parameters: list[Parameter], options: dict[str, Any]) -> None:
        first = sum(len(group["params"]) for group in self.param_groups)
        blocks = adopt(self, parameters, first, options.get("stochastic_rounding", False))
        self.param_groups.append(Group({"params": parameters, **options}, blocks, self.device_keys, weakref.ref(self)))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients. set_to_none=False fills them with zeros: such a parameter still takes part in steps."""
        for slot in self._slots():
            if set_to_none:
                slot.parameter.drop_grad()
            elif (gradient := slot.parameter._grad) is not None:
                gradient.zero_()

    # steps

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what `closure`, which recomputes the loss, returned.

        Raises StateError for gradients that are still scaled by a GradScaler, and for a parameter that a newer
        optimizer holds.
        """
        loss = None
        if closure is not None:
            if not callable(closure):
                raise DTypeError(f"{type(self).__name__}.step", "a closure or nothing", f"a {type(closure).__name__}")
            with enable_grad():
                loss = closure()
        present = self.present()
        refuse_scaled(
            f"{type(self).__name__}.step",
            [s.parameter for s in present],
            "call scaler.step(optimizer) instead",
        )
        self.advance(present, None)
        return loss

    def present(self) -> list[Slot]:
        """The slots whose parameter has a gradient, block by block. Raises StateError if one is not ours any more."""
        found = []
        for slot in self._slots():
            if not slot.held():
                raise self._lost(slot)
            if slot.parameter._grad is not None:
                found.append(slot)
        return found

    def advance(self, present: list[Slot], go: Array | None) -> None:
        """One step of the `present` slots, where `go`; a step that is not real changes and counts nothing."""
        uses(self)
        with ignore_fp_errors():
            for group in self.param_groups:
                for block in group.blocks:
                    with backends.device_guard(block.master):
                        go = None if go is None else backends.to_device_of(go, block.master)
                        for run in block.runs([s for s in present if s.block is block]):
                            self._advance(group, run, go)
            self._count(1 if go is None else go)

    def _advance(self, group: Group, run: Run, go: Array | None) -> None:
        name = f"{type(self).__name__.lower()}_update"
        if observe.profilers:
            observe.notify_start(name, "", run.gradient)
        self.update(group, run, go)
        run.written(go)
        if observe.observers:
            observe.notify_end(name, (run.gradient,), run.master)

    def _count(self, real: Any) -> None:
        self.calls += 1
        with backends.device_guard(self.steps):
            real = backends.to_device_of(real, self.steps) if hasattr(real, "dtype") else real
            np.add(self.steps, real, out=self.steps)

    def update(self, group: Group, run: Run, go: Array | None) -> None:
        """Update one run of flat memory; see the class."""
        raise NotImplementedError(f"{type(self).__name__}.update")

    def _slots(self) -> Iterator[Slot]:
        return (slot for group in self.param_groups for block in group.blocks for slot in block.slots)

    def _lost(self, slot: Slot) -> StateError:
        where, needs = f"{type(self).__name__}", "parameters that this optimizer holds"
        if slot.parameter.slot is slot:
            cure = "make the optimizer after the model has its device and dtype"
            return StateError(where, needs, f"{slot.title()}, whose memory was replaced", cure)
        cure = "use the newest optimizer, or make this one anew"
        return StateError(where, needs, f"{slot.title()}, which a newer optimizer holds", cure)

    # state

    @property
    def state(self) -> dict[Parameter, dict[str, Any]]:
        """Per parameter that has stepped: its moments, as views, step count, and a 16-bit one's float32 values.

        Of an optimizer with a `step` and no `update` of its own: what that step keeps here, empty dicts at first.
        """
        return self.kept if self._alone() else defaultdict(dict, {slot.parameter: e for slot, e in self._entries()})

    def _alone(self) -> bool:
        return type(self).update is Optimizer.update

    def _entries(self) -> Iterator[tuple[Slot, dict[str, Any]]]:
        for slot, taken in self._taken():
            found = kept_of(slot, self.kept) if self._alone() else entry_of(slot, taken, self.counts_steps)
            if found:
                yield slot, found

    def _taken(self) -> Iterator[tuple[Slot, int]]:
        for group in self.param_groups:
            for block in group.blocks:
                yield from zip(
                    block.slots, backends.backend_of(block.steps).to_numpy(block.steps).tolist(), strict=True
                )

    def state_dict(self) -> dict[str, Any]:
        """A snapshot, in PyTorch's layout: `state` by parameter number, and `param_groups`."""
        state = {slot.number: {k: deepcopy(item) for k, item in found.items()} for slot, found in self._entries()}
        groups, first = [], 0
        for group in self.param_groups:
            count = len(group["params"])
            groups.append(
                {
                    **{k: v for k, v in group.items() if k != "params"},
                    "params": list(range(first, first + count)),
                }
            )
            first += count
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, ours or PyTorch's. Raises ArgumentError, before anything changes, if it does not fit."""
        where = f"{type(self).__name__}.load_state_dict"
        groups, state = need_groups(where, state_dict, self.param_groups)
        saved_ids = [number for group in groups for number in group["params"]]
        options = [{k: plain(v) for k, v in g.items() if k not in self.not_loaded} for g in groups]
        for group, found in zip(self.param_groups, options, strict=True):
            group.check(found)
        entries = {number: state.get(saved, {}) for number, saved in enumerate(saved_ids)}
        loads = self._need_entries(where, entries)
        for group, found in zip(self.param_groups, options, strict=True):
            group.take(found)
        self._load(entries, loads)

    def _need_entries(self, where: str, entries: dict[int, dict[str, Any]]) -> dict[Slot, Entry]:
        if self._alone():  # of a step of one's own all else is its own affair
            entries = {number: {"master": entry.get("master")} for number, entry in entries.items()}
        found = ((s, entries.get(s.number, {}), self.state_shapes(s)) for s in self._slots())
        return {slot: need_entry(where, slot, entry, shapes, self.moments) for slot, entry, shapes in found}

    def state_shapes(self, slot: Slot) -> dict[str, tuple[int, ...]]:
        """What the state of a parameter holds besides its step, and in which shape; `slot.factor` what is no moment."""
        return dict.fromkeys(self.moments, slot.parameter.array.shape)

    def _home(self, slot: Slot, name: str) -> Array:
        if name in self.moments:
            return slot.of(slot.block.moment(name))
        return slot.factor(name, self.state_shapes(slot)[name])

    def _load(self, entries: dict[int, dict[str, Any]], loads: dict[Slot, Entry]) -> None:
        if self._alone():
            made = {slot.parameter: keep(slot, entries.get(slot.number, {})) for slot in self._slots()}
            self.kept = defaultdict(dict, {parameter: found for parameter, found in made.items() if found})
            return
        for block in (block for group in self.param_groups for block in group.blocks):
            load_entries(block, loads, self._home)

    # copies: blocks are not copied, a copy makes its own around its own parameters

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("param_groups", "steps", "kept", "_schedule")
        rest = {key: value for key, value in vars(self).items() if key not in left_out}
        groups, steps = [dict(group) for group in self.param_groups], int(look(self.steps))
        return {**rest, "copied": (groups, self.state_dict()["state"], steps, self.schedule)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        groups, entries, steps, self.schedule = state.pop("copied")
        vars(self).update(state)
        self.param_groups = []
        for options in groups:
            self._append(options.pop("params"), options)
        self._load(entries, self._need_entries(f"copy of {type(self).__name__}", entries))
        self.steps = self._backend().asarray(steps, dtypes.int64)

    def __repr__(self) -> str:
        groups = "\n".join(f"Parameter Group {i}\n{group!r}" for i, group in enumerate(self.param_groups))
        return f"{type(self).__name__} (\n{groups}\n)"


def _counted(step: Callable[..., Any]) -> Callable[..., Any]:
    # A subclass's own step: it counts as one unless it came to `advance`, which counts for itself.
    @wraps(step)
    def counted(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        before = self.calls
        out = step(self, *args, **kwargs)
        if self.calls == before:
            self._count(1)
        return out

    return counted
