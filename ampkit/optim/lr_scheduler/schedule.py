"""LRScheduler: schedules that do not count the steps that a GradScaler skipped, on the device.

A schedule is a closed form f(n) of a count n. `scheduler.step()` advances n, except where the optimizer was called
since the last time and each of its steps was skipped. The device decides that without a synchronization: it holds a
table of f(0), f(1), ..., which the host extends by one row per call, since n is at most the number of calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import index
from typing import Any
from weakref import ref

import numpy as np

from ampkit import backends
from ampkit.backends import Array
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, StateError
from ampkit.core.arguments import checked_constructor, is_number, is_whole, shown
from ampkit.core.capture.code_names import is_library
from ampkit.core.dispatch import primitive
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.saved_state import need_count, need_keys, need_like, unchanged_on_error
from ampkit.core.tensor import Tensor

from ..argument_checks import is_tensor_with_grad
from ..flat.memory import read_scalar
from ..optimizer import Optimizer
from ..param_group import ParamGroup


@primitive("optim.elementwise")
def advance_schedule(count: Array, seen: Array, steps: Array, table: Array, row: Array) -> None:
    """In place: count += steps > seen; seen = steps, the real ones; row = table[count]."""
    np.add(count, np.greater(steps, seen), out=count)
    seen[...] = steps
    row[...] = np.take(table, count, axis=0)


def _position_of_a_schedule(scheduler: LRScheduler) -> int:
    return scheduler._calls


class LRScheduler:
    """Base class of schedules: a subclass implements `rates(n)`, the learning rate of each group at count n.

    A call of `step` counts, unless a GradScaler skipped all steps of the optimizer since the last one. base_lrs: the
    initial learning rates. last_epoch: the count so far; -1 starts a new schedule, another value resumes there. Every
    `step()` sets the learning rates again, so a value assigned to group["lr"] lasts until then. Of several schedules of
    one optimizer each multiplies the learning rates that it finds by f(n) / f(n - 1), as PyTorch's do, unless it is no
    factor (`is_factor`).
    A subclass may define PyTorch's `get_lr()` instead of `rates`, in which `last_epoch` is n.
    Raises DTypeError if `optimizer` is no Optimizer, StateError if last_epoch resumes without 'initial_lr' in a group.
    """

    is_factor = True  # whether, beside another schedule, it multiplies the learning rate; else it sets it
    constants: tuple[str, ...] = ()  # the attributes that state_dict holds besides the position
    _combined_by: Any = None  # a weak reference to the ChainedScheduler or SequentialLR that this one is a part of
    _stepped = False  # whether `step` was called, or a state was loaded
    _told: Any = None  # n, while `get_lr` runs, or what was assigned to last_epoch
    _told_rates: list[float] | None = None  # what was assigned to _last_lr
    choices: Mapping[str, Iterable[str]] = {}  # the allowed values of those that are one of several strings

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked_constructor(cls)

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        where = type(self).__name__
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(where, "an Optimizer", type(optimizer).__name__)
        self.optimizer = optimizer
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch != -1 and "initial_lr" not in group:
                cure = "load the optimizer's state first, or resume with scheduler.load_state_dict"
                needs = "'initial_lr' in the parameter groups"
                raise StateError(f"{where} with last_epoch={last_epoch}", needs, "none", cure)
            self._prepare(number, group)
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self._calls = 0
        self._rows: list[list[float]] = []
        optimizer.schedules_made += 1
        self._start(last_epoch + 1)
        self._apply(np.array(self.base_lrs))

    def _prepare(self, number: int, group: ParamGroup) -> None:
        if "lr" not in group:
            got = f"group {number} without 'lr'"
            raise ArgumentError(type(self).__name__, "an optimizer with a learning rate", got)
        if is_tensor_with_grad(group["lr"]):
            needs, got = "a learning rate that is a number", "a tensor that requires grad"
            raise DTypeError(type(self).__name__, needs, got, 'set it before each step: group["lr"] = ...')
        group.setdefault("initial_lr", group["lr"])

    def rates(self, n: int) -> list[float]:
        """The learning rate of each group at count `n`."""
        if not self._has_get_lr():
            raise NotImplementedError(f"{type(self).__name__}.rates")
        before, self._told = self._told, n
        try:
            return [float(rate) for rate in self.get_lr()]
        finally:
            self._told = before

    def get_lr(self) -> list[float]:
        """The learning rate of each group at `last_epoch`; waits for the device."""
        return self.rates(self.last_epoch)

    def _has_get_lr(self) -> bool:
        return type(self).get_lr is not LRScheduler.get_lr

    def values(self, n: int) -> list[dict[str, Any]]:
        """The hyperparameters of each group at count `n`; by default lr alone."""
        return [{"lr": rate} for rate in self.rates(n)]

    # on the device

    def _start(self, count: int) -> None:
        steps = self.optimizer.steps
        backend = backends.backend_of(steps)
        self._calls, self._told, self._told_rates, self._optimizer_calls = count, None, None, self.optimizer.calls
        self._count = backend.asarray(np.array(count, dtypes.int64))
        with backends.device_guard(steps):
            self._seen = steps.copy()
        self._filled = 0
        self._places = [(i, key, np.size(value)) for i, row in enumerate(self.values(0)) for key, value in row.items()]
        width = sum(size for *_, size in self._places)
        self._table = backend.zeros((max(64, count + 1), width), dtypes.float64)
        self._row = self._numbers(count)

    def _numbers(self, n: Any) -> Array:
        numbers = [np.ravel(value) for row in self.values(n) for value in row.values()]
        row = np.concatenate(numbers)
        if row.dtype.kind == "c":  # such as (-0.5) ** 1.5
            raise ArgumentError(f"{type(self).__name__}.step", "an epoch with real learning rates", shown(n))
        return backends.backend_of(self.optimizer.steps).asarray(row, dtypes.float64)

    def _extend(self) -> None:
        # Fill the table up to f(calls), since at most that many steps were real.
        held = self._table.shape[0]
        if self._calls >= held:
            wider = backends.backend_of(self._table).zeros((2 * self._calls, self._table.shape[1]), dtypes.float64)
            with backends.device_guard(wider):
                wider[:held] = self._table
            self._table = wider
        for n in range(self._filled, self._calls + 1):
            with backends.device_guard(self._table):
                self._table[n] = self._numbers(n)
        self._filled = self._calls + 1

    def _apply(self, before: Array | None = None) -> None:
        if before is None and self._shared():
            before = self._held_row()
        self._extend()
        advance_schedule(self._count, self._seen, self.optimizer.steps, self._table, self._row)
        self._set(before)

    def _held_row(self) -> Array:
        with backends.device_guard(self._row):  # a copy is made on the current device
            return self._row.copy()

    def _set(self, before: Array | None) -> None:
        # Write the row to the groups; beside other schedules, the change of lr since the row `before`.
        shared, start = self._shared(), 0
        for number, key, size in self._places:
            group = self.optimizer.param_groups[number]
            target = group.device[key]
            with backends.device_guard(target), ignore_fp_errors():
                value = backends.to_device_of(self._row[start : start + size].reshape(target.shape), target)
                if shared and before is not None:
                    old = backends.to_device_of(before[start : start + size].reshape(target.shape), target)
                    value = np.where(old == 0, value, target * (value / old))
                target[...] = value
            group.scheduled.add(key)
            start += size
        self.optimizer.schedule = self

    def _shared(self) -> bool:
        # Whether the learning rate is a product of this and other schedules.
        factor = self.is_factor and not self._has_get_lr() and type(self).values is LRScheduler.values
        return factor and self.optimizer.schedules_made > 1

    def read_by_steps(self, reads: Any) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Where a step reads the schedule on the host (see core/capture/host_reads.py): `step` counts its calls."""
        yield _position_of_a_schedule, self
        if not is_library(type(self)):
            reads.attributes(self)

    def step(self, epoch: float | None = None) -> None:
        """Advance by one, unless all steps of the optimizer since the last call were skipped; set the hyperparameters.

        epoch: go to f(epoch) instead, whether the optimizer has stepped or not; later calls count from there.
        Warns, once, where the optimizer has not been called yet: its first step would take f(1), and none f(0).
        """
        if not self._stepped:
            self._stepped = True
            if epoch is None and not self.optimizer.calls and not self.optimizer.recorded:
                said = "needs optimizer.step() before the first scheduler.step(): no step takes the first rate"
                warnings.warn(f"{type(self).__name__}.step: {said}", stacklevel=2)
        self._told_rates = None
        if epoch is None and self._told is not None:
            epoch = self._told + 1
        if epoch is None:
            self._calls += 1
            if self._optimizer_calls == self.optimizer.calls and not self.optimizer.recorded:
                with backends.device_guard(self._seen):
                    self._seen[...] = -1  # without a call of the optimizer no step was skipped
            self._optimizer_calls = self.optimizer.calls
            self._apply()
            return
        if not is_number(epoch) or not 0 <= _python_number(epoch) < 2**31:
            raise ArgumentError(f"{type(self).__name__}.step", "an epoch from 0, or none", shown(epoch))
        epoch = _python_number(epoch)
        before = self._held_row()
        self._start(int(epoch))
        self._row = self._numbers(epoch)
        self._set(before)

    # read on the host

    @property
    def last_epoch(self) -> int:
        """The count so far; waits for the device. A value assigned to it stays until the next step."""
        return int(read_scalar(self._count)) if self._told is None else self._told

    @last_epoch.setter
    def last_epoch(self, value: Any) -> None:
        if not is_number(value):
            raise DTypeError(f"{type(self).__name__}.last_epoch", "a number", shown(value))
        number = _python_number(value)
        if not abs(number) < 2**31:
            raise ArgumentError(f"{type(self).__name__}.last_epoch", "a number below 2^31", shown(value))
        self._told = number

    def get_last_lr(self) -> list[float]:
        """The learning rates that this schedule set last, or the product of several; waits for the device."""
        if self._told_rates is not None:
            return self._told_rates
        combined = None if self._combined_by is None else self._combined_by()
        if combined is not None:
            return combined.last_lr_of(self)
        if self._shared():
            return [group["lr"] for group in self.optimizer.param_groups]
        row = backends.backend_of(self._row).to_numpy(self._row).tolist()
        starts = np.cumsum([0, *(size for *_, size in self._places)])
        return [row[at] for at, (_, key, _) in zip(starts, self._places, strict=False) if key == "lr"]

    @property
    def _last_lr(self) -> list[float]:
        """What `get_last_lr` returns. A value that a subclass assigns to it stays until the next step."""
        return self.get_last_lr()

    @_last_lr.setter
    def _last_lr(self, rates: list[float]) -> None:
        self._told_rates = rates

    def __getstate__(self) -> dict[str, Any]:
        # A Tensor keeps its device, and a weak reference cannot be copied.
        combined = {"_combined_by": self._combined_by()} if self._combined_by is not None else {}
        return {k: Tensor(v) if backends.is_array(v) else v for k, v in {**vars(self), **combined}.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({k: v.array if isinstance(v, Tensor) else v for k, v in state.items()})
        if self._combined_by is not None:
            self._combined_by = ref(self._combined_by)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, the base learning rates and the constants, without functions; waits for the device."""
        with backends.device_guard(self._seen):
            stepped = read_scalar(np.greater(self.optimizer.steps, self._seen))
        constants = {name: getattr(self, name) for name in self.constants}
        count = self.last_epoch
        position = {"last_epoch": count, "_step_count": count + 1, "_pending": bool(stepped)}
        return {"base_lrs": list(self.base_lrs), **position, "_last_lr": self.get_last_lr(), **constants}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of `state_dict`, ampkit's or PyTorch's.

        Raises ArgumentError, with nothing changed, for one that does not fit.
        """
        if not isinstance(state_dict, Mapping):
            raise DTypeError(f"{type(self).__name__}.load_state_dict", "a dict", shown(state_dict))
        with unchanged_on_error(*self._with_parts()):
            self._load(state_dict)
        self._stepped = True

    def _with_parts(self) -> list[LRScheduler]:
        """This schedule and the schedules that it combines."""
        return [self]

    def _load(self, state: dict[str, Any]) -> None:
        where = f"{type(self).__name__}.load_state_dict"
        with suppress(KeyError, TypeError, ValueError, AttributeError, ArithmeticError):  # which the checks below name
            state = self._in_own_names(state)
        need_keys(where, state, ("base_lrs", "last_epoch", *self.constants))
        need_like(where, "base_lrs", state["base_lrs"], self.base_lrs)
        need_like(where, "_pending", state.get("_pending", False), like=False)
        for name in self.constants:
            self._need_constant(where, name, state[name])
        self.base_lrs = [float(rate) for rate in state["base_lrs"]]
        for name in self.constants:
            setattr(self, name, state[name])
        count = need_count(where, "last_epoch", state["last_epoch"], -1, 2**31 - 1)
        try:
            self._start(count)
            finite = bool(np.isfinite(backends.backend_of(self._row).to_numpy(self._row)).all())
        except ArithmeticError:
            finite = False
        if not finite:
            raise ArgumentError(where, "constants that give finite learning rates", str(state))
        self._extend()
        if state.get("_pending"):
            with backends.device_guard(self._seen):
                np.subtract(self._seen, 1, out=self._seen)

    def _in_own_names(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state with what a state of PyTorch has under other names."""
        return state

    def _need_constant(self, where: str, name: str, value: Any) -> None:
        need_like(where, name, value, getattr(self, name))
        if name in self.choices and value not in self.choices[name]:
            raise ArgumentError(where, f"{name} as one of {', '.join(self.choices[name])}", repr(value))


def positive_integer(where: str, name: str, value: Any) -> int:
    """Return `value` if it is an integer >= 1, else raise ArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(where, f"{name} as an integer >= 1", repr(value))
    return value


def fraction(where: str, name: str, value: Any) -> float:
    """Return `value` as a float if it is a number in [0, 1], else raise ArgumentError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ArgumentError(where, f"{name} in [0, 1]", repr(value))
    return float(value)


def factor_of(where: str, function: Any, n: int) -> Any:
    """Call the user's `function` with `n`. Raises DTypeError unless it returns a number."""
    factor = function(n)
    if not is_number(factor):
        raise DTypeError(where, "functions that return a number", shown(factor))
    return factor


def per_group(where: str, name: str, value: Any, groups: int) -> list[Any]:
    """`value`, one number or one per group, as a list of length `groups`.

    Raises ArgumentError for another length, DTypeError for what is no number.
    """
    found: list[Any] = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value] * groups
    if len(found) != groups:
        raise ArgumentError(where, f"{name} for {groups} parameter groups", f"{len(found)}")
    if strange := [each for each in found if not isinstance(each, Tensor) and not is_number(each)]:
        raise DTypeError(where, f"{name} as numbers", shown(strange[0]))
    return [each if isinstance(each, Tensor) else _python_number(each) for each in found]


def _python_number(value: Any) -> Any:
    # A number of any class, a Decimal too, as an int or a float.
    return value if isinstance(value, (int, float)) else index(value) if is_whole(value) else float(value)
