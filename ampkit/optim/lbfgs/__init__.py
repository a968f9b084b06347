"""LBFGS: steps by a Hessian that is learned from the last gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends import Array
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, NonFiniteError
from ampkit.core.autograd.grad_mode import enable_grad
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor

from ..argument_checks import need_groups, refuse_scaled
from ..flat.memory import look, narrow
from ..flat.segment import Slot
from ..optimizer import Optimizer
from ..options import need_whole, plain
from .curvature import Curvature, dot, need_history
from .line_search import Point, Search


class LBFGS(Optimizer):
    """Up to max_iter steps p <- p + t d a call, d = -H g with H the inverse Hessian that history_size steps tell.

    `step` takes a closure that clears the gradients, computes the loss, calls backward and returns the loss; it is
    called again and again, max_eval times at most (by default 1.25 max_iter). t is lr, or with line_search_fn
    "strong_wolfe" what a search from there finds. A call ends where no gradient is above tolerance_grad, or where
    neither weights nor loss move by more than tolerance_change. maximize=True climbs. One group of parameters, on one
    device, of which it reads the loss and products of vectors: no GradScaler and no recorded step. Computed in float32,
    float64 for float64 parameters; products in float64. The state is that of the first parameter, as in PyTorch.
    Raises ArgumentError for options out of range; NonFiniteError where the loss or its gradient is not finite to begin
    with, or after a step without search. Whatever a step raises, the parameters are then what they were before it.
    Liu, Nocedal 1989, Mathematical Programming 45; Nocedal, Wright 2006, Numerical Optimization, algorithms 7.4, 7.5.
    """

    from_0 = (*Optimizer.from_0, "tolerance_grad", "tolerance_change")
    flags = ("maximize",)
    needs_closure = True

    def __init__(
        self,
        params: Any,
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        *,
        maximize: bool = False,
    ):
        max_iter = plain(max_iter)
        need_whole("LBFGS", {"max_iter": max_iter}, "max_iter", 1)
        options = {"lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval}
        options |= {"tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change}
        options |= {"history_size": history_size, "line_search_fn": line_search_fn, "maximize": maximize}
        super().__init__(params, options)

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        for key in ("max_iter", "max_eval", "history_size"):
            need_whole("LBFGS", options, key, 1)
        search = options.get("line_search_fn")
        if search is not None and (type(search) is not str or search != "strong_wolfe"):
            raise ArgumentError("LBFGS", "line_search_fn None or 'strong_wolfe'", repr(options["line_search_fn"]))

    def _need_group(self, group: Any, taken: list[Parameter]) -> tuple[list[Parameter], dict[str, Any]]:
        parameters, options = super()._need_group(group, taken)
        if taken:
            raise ArgumentError("LBFGS", "one group of parameters", "another one", "make an optimizer for each")
        devices = sorted({str(parameter.device) for parameter in parameters})
        if len(devices) > 1:
            raise DeviceError("LBFGS", "parameters on one device", " and ".join(devices))
        return parameters, options

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Minimize for a while; returns what `closure`, which recomputes the loss, returned the first time.

        Raises DTypeError for a closure that cannot be called or returns no loss, StateError as other optimizers do.
        """
        if not callable(closure):
            raise DTypeError("LBFGS.step", "a closure", f"a {type(closure).__name__}", "one that returns the loss")
        self.present()  # all of them are ours still
        slots = sorted(self._slots(), key=lambda slot: slot.number)
        if not slots:
            return _Objective(self, slots, closure).call()
        with ignore_fp_errors(), backends.device_guard(slots[0].array):
            objective = _Objective(self, slots, closure)
            try:
                return self._minimize(objective)
            except BaseException:
                objective.place(objective.begin)
                raise

    def _minimize(self, objective: _Objective) -> Any:
        group, before = self.param_groups[0], self.kept.get(objective.slots[0].parameter, {})
        memory = Curvature.of(before, group["history_size"], objective.home, objective.dtype)
        now = objective.first()
        if not objective.still(now):
            for turn in range(1, group["max_iter"] + 1):
                past, t = now, memory.turn(now, group["lr"])
                slope = dot(now.gradient, memory.direction)
                if slope > -group["tolerance_change"] or not slope < 0:
                    break
                now = self._move(objective, memory, now._replace(t=0.0, slope=slope), t, turn == group["max_iter"])
                memory.t = now.t
                if objective.count >= group["max_eval"] or objective.still(now) or self._stalled(memory, past, now):
                    break
        memory.evaluations += objective.count
        self.kept[objective.slots[0].parameter] = memory.state()
        return objective.result

    def _move(self, objective: _Objective, memory: Curvature, now: Point, t: float, last: bool) -> Point:
        """Step along the direction: by t, or by what a line search finds from there."""
        start, group = objective.at, self.param_groups[0]
        if group["line_search_fn"] is None:
            objective.place(start + memory.direction * t)
            return now._replace(t=t) if last else objective.value(t, memory.direction)  # the last needs no look

        def look_at(t: float) -> Point:
            objective.place(start + memory.direction * t)
            return objective.value(t, memory.direction, finite=False)

        narrowest = group["tolerance_change"] / largest(memory.direction)
        found = Search(look_at, now, group["max_eval"] - objective.count, narrowest).run(t)
        objective.place(start + memory.direction * found.t)
        return found

    def _stalled(self, memory: Curvature, past: Point, now: Point) -> bool:
        least = self.param_groups[0]["tolerance_change"]
        return largest(memory.direction * memory.t) <= least or abs(now.loss - past.loss) < least

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, ours or PyTorch's. Raises ArgumentError, before anything changes, if it does not fit."""
        where = "LBFGS.load_state_dict"
        groups, state = need_groups(where, state_dict, self.param_groups)
        for number in groups[0]["params"]:
            need_history(where, state.get(number, {}), sum(slot.parameter.array.size for slot in self._slots()))
        super().load_state_dict(state_dict)


class _Objective:
    """The loss as a function of one flat vector, the weights of `slots`, which the closure evaluates.

    begin, at: the weights when the step began, and now. count: how often it was evaluated. result: what came first.
    """

    def __init__(self, optimizer: LBFGS, slots: list[Slot], closure: Callable[[], Any]):
        self.optimizer, self.slots, self.closure = optimizer, slots, closure
        self.sign, self.count, self.result = -1 if optimizer.param_groups[0]["maximize"] else 1, 0, None
        if slots:
            self.home, self.dtype = slots[0].block.backend, dtypes.promote(*(slot.block.dtype for slot in slots))
            self.begin = self.at = self._flat([slot.master() for slot in slots])

    def _flat(self, arrays: list[Array]) -> Array:
        flat, start = self.home.zeros((sum(slot.parameter.array.size for slot in self.slots),), self.dtype), 0
        for slot, array in zip(self.slots, arrays, strict=True):
            stop = start + slot.parameter.array.size
            if array is not None:
                flat[start:stop] = array.reshape(-1)
            start = stop
        return flat

    def call(self) -> Any:
        """What the closure returns."""
        self.count += 1
        with enable_grad():
            return self.closure()

    def first(self) -> Point:
        """Where the step begins."""
        self.result = self.call()
        return self._point(self.result, 0.0, None, True)

    def value(self, t: float, direction: Array, finite: bool = True) -> Point:
        """Loss, gradient and slope here, t along `direction`."""
        return self._point(self.call(), t, direction, finite)

    def _point(self, returned: Any, t: float, direction: Array | None, finite: bool) -> Point:
        loss, gradient = self.sign * _number(returned), self._gradient()
        slope = 0.0 if direction is None else dot(gradient, direction)
        if finite and not (math.isfinite(loss) and math.isfinite(largest(gradient))):
            got = f"a loss of {loss:g}" if not math.isfinite(loss) else "a gradient with inf or nan"
            cure = "the parameters are as they were; line_search_fn='strong_wolfe' or a smaller lr takes smaller steps"
            raise NonFiniteError("LBFGS.step", "a finite loss and gradient", got, cure)
        return Point(t, loss, gradient, slope)

    def _gradient(self) -> Array:
        present = self.optimizer.present()
        cure = "call backward on the loss itself, without GradScaler"
        refuse_scaled("LBFGS.step", [slot.parameter for slot in present], cure)
        flat = self._flat([slot.gradient if slot in present else None for slot in self.slots])
        return -flat if self.sign < 0 else flat

    def still(self, point: Point) -> bool:
        """Whether no gradient is above the tolerance."""
        return largest(point.gradient) <= self.optimizer.param_groups[0]["tolerance_grad"]

    def place(self, at: Array) -> None:
        """Make `at` the weights, and their 16-bit copies."""
        self.at, start = at, 0
        for slot in self.slots:
            stop, block = start + slot.parameter.array.size, slot.block
            slot.of(block.master)[...] = at[start:stop].reshape(slot.parameter.array.shape)
            for copy in block.copies.values():
                narrow(block.master[slot.start : slot.stop], copy[slot.start : slot.stop])
            slot.written()
            start = stop


def _number(loss: Any) -> float:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return float(look(loss.detach().array.reshape(())))
    if isinstance(loss, (int, float, np.floating)) and not isinstance(loss, bool):
        return float(loss)
    got = f"a Tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise DTypeError("LBFGS.step", "a closure that returns the loss, one number", got)


def largest(vector: Array) -> float:
    """The largest size of an element, 0 if there is none; waits for the device."""
    return float(look(np.abs(vector).max())) if vector.size else 0.0
