"""LBFGS: steps by a Hessian that is learned from the last gradients."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.backends import Array
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, NonFiniteError, StateError
from ampkit.base.limits import NotNegative
from ampkit.core.autograd.grad_mode import enable_grad
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor

from ..argument_checks import hyperparameters, need_groups, need_integer, refuse_scaled, to_python
from ..flat.arena import gradients_of
from ..flat.memory import narrow, read_scalar
from ..flat.segment import Segment, mark_all_updated
from ..optimizer import Optimizer
from .inverse_hessian import InverseHessian, dot, need_history
from .line_search import LineSearch, Point


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

    needs_closure = True

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: NotNegative = 1e-7,
        tolerance_change: NotNegative = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
        *,
        maximize: bool = False,
    ):
        max_iter = to_python(max_iter)
        need_integer("LBFGS", {"max_iter": max_iter}, "max_iter", 1)
        max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, hyperparameters(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        super().check_options(options)
        for key in ("max_iter", "max_eval", "history_size"):
            need_integer("LBFGS", options, key, 1)
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

    def step(self, closure: Callable[[], Any]) -> Any:
        """Take up to max_iter steps; returns what `closure`, which recomputes the loss, returned the first time.

        Raises DTypeError for a closure that cannot be called or returns no loss, StateError as other optimizers do.
        """
        if not callable(closure):
            raise DTypeError("LBFGS.step", "a closure", f"a {type(closure).__name__}", "one that returns the loss")
        if len(self.param_groups) != 1:
            raise StateError("LBFGS.step", "one parameter group", f"{len(self.param_groups)}")
        self.present()  # raises if another optimizer took a parameter
        self.follow_parameters()
        segments = sorted(self.segments(), key=lambda segment: segment.number)
        if not segments:
            return _Objective(self, segments, closure).call()
        with ignore_fp_errors(), backends.device_guard(segments[0].array):
            objective = _Objective(self, segments, closure)
            try:
                return self._minimize(objective)
            except BaseException:
                objective.set_weights(objective.initial)
                raise

    def _minimize(self, objective: _Objective) -> Any:
        group, first = self.param_groups[0], objective.segments[0].parameter
        state = self.custom_state.get(first, {})
        hessian = InverseHessian.load(state, group["history_size"], objective.backend, objective.dtype)
        point = objective.first()
        if not objective.converged(point):
            for iteration in range(1, group["max_iter"] + 1):
                previous, t = point, hessian.next_direction(point, group["lr"])
                derivative = dot(point.gradient, hessian.direction)
                if derivative > -group["tolerance_change"] or not derivative < 0:
                    break
                start, last = point._replace(t=0.0, derivative=derivative), iteration == group["max_iter"]
                point = self._move(objective, hessian, start, t, last)
                hessian.t = point.t
                stalled = self._stalled(hessian, previous, point)
                if objective.evaluations >= group["max_eval"] or objective.converged(point) or stalled:
                    break
        hessian.evaluations += objective.evaluations
        self.custom_state[first] = hessian.state()
        return objective.result

    def _move(self, objective: _Objective, hessian: InverseHessian, start: Point, t: float, last: bool) -> Point:
        """Step along the direction: by t, or by the length that a line search from there finds."""
        weights, group = objective.weights, self.param_groups[0]
        if group["line_search_fn"] is None:
            objective.set_weights(weights + hessian.direction * t)
            return start._replace(t=t) if last else objective.at(t, hessian.direction)  # after the last nobody asks

        def evaluate(t: float) -> Point:
            objective.set_weights(weights + hessian.direction * t)
            return objective.at(t, hessian.direction, need_finite=False)

        min_bracket = group["tolerance_change"] / max_abs(hessian.direction)
        point = LineSearch(evaluate, start, group["max_eval"] - objective.evaluations, min_bracket).run(t)
        objective.set_weights(weights + hessian.direction * point.t)
        return point

    def _stalled(self, hessian: InverseHessian, previous: Point, point: Point) -> bool:
        tolerance = self.param_groups[0]["tolerance_change"]
        return max_abs(hessian.direction * hessian.t) <= tolerance or abs(point.loss - previous.loss) < tolerance

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, ampkit's or PyTorch's. Raises ArgumentError, before anything changes, if it does not fit."""
        where = "LBFGS.load_state_dict"
        groups, state = need_groups(where, state_dict, [len(group["params"]) for group in self.param_groups])
        size = sum(segment.parameter.array.size for segment in self.segments())
        for number in groups[0]["params"] if groups else ():
            need_history(where, state.get(number, {}), size)
        super().load_state_dict(state_dict)


class _Objective:
    """The loss as a function of one flat vector, the weights of `segments`; the closure evaluates it.

    initial, weights: the vector before the step, and now. evaluations: counted. result: of the first one.
    """

    def __init__(self, optimizer: LBFGS, segments: list[Segment], closure: Callable[[], Any]):
        self.optimizer, self.segments, self.closure = optimizer, segments, closure
        self.sign, self.evaluations, self.result = -1 if optimizer.param_groups[0]["maximize"] else 1, 0, None
        if segments:
            self.backend = segments[0].arena.backend
            self.dtype = dtypes.promote(*(segment.arena.dtype for segment in segments))
            self.initial = self.weights = self._concatenate([segment.master_weights() for segment in segments])

    def _concatenate(self, arrays: list[Array]) -> Array:
        flat, start = self.backend.zeros((sum(s.parameter.array.size for s in self.segments),), self.dtype), 0
        for segment, array in zip(self.segments, arrays, strict=True):
            stop = start + segment.parameter.array.size
            if array is not None:
                flat[start:stop] = array.reshape(-1)
            start = stop
        return flat

    def call(self) -> Any:
        """What the closure returns."""
        self.evaluations += 1
        with enable_grad():
            return self.closure()

    def first(self) -> Point:
        """The point where the step begins."""
        self.result = self.call()
        return self._point(self.result, 0.0, None, True)

    def at(self, t: float, direction: Array, need_finite: bool = True) -> Point:
        """Loss, gradient and derivative at the present weights, t along `direction`."""
        return self._point(self.call(), t, direction, need_finite)

    def _point(self, returned: Any, t: float, direction: Array | None, need_finite: bool) -> Point:
        loss, gradient = self.sign * _number(returned), self._gradient()
        derivative = 0.0 if direction is None else dot(gradient, direction)
        if need_finite and not (math.isfinite(loss) and math.isfinite(max_abs(gradient))):
            got = f"a loss of {loss:g}" if not math.isfinite(loss) else "a gradient with inf or nan"
            cure = "the parameters are as they were; line_search_fn='strong_wolfe' or a smaller lr takes smaller steps"
            raise NonFiniteError("LBFGS.step", "a finite loss and gradient", got, cure)
        return Point(t, loss, gradient, derivative)

    def _gradient(self) -> Array:
        present = self.optimizer.present()
        cure = "call backward on the loss itself, without GradScaler"
        refuse_scaled("LBFGS.step", gradients_of(present), cure)
        with_gradients = {segment for span in present for segment in span.segments}
        flat = self._concatenate([segment.gradient if segment in with_gradients else None for segment in self.segments])
        return -flat if self.sign < 0 else flat

    def converged(self, point: Point) -> bool:
        """Whether no element of the gradient exceeds tolerance_grad."""
        return max_abs(point.gradient) <= self.optimizer.param_groups[0]["tolerance_grad"]

    def set_weights(self, weights: Array) -> None:
        """Write the vector to the master weights and their 16-bit copies."""
        self.weights, start = weights, 0
        for segment in self.segments:
            stop, arena = start + segment.parameter.array.size, segment.arena
            segment.view(arena.master)[...] = weights[start:stop].reshape(segment.parameter.array.shape)
            for copy in arena.copies.values():
                narrow(arena.master[segment.start : segment.stop], copy[segment.start : segment.stop])
            start = stop
        mark_all_updated(self.segments)


def _number(loss: Any) -> float:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return float(read_scalar(loss.detach().array.reshape(())))
    if isinstance(loss, (int, float, np.floating)) and not isinstance(loss, bool):
        return float(loss) if not isinstance(loss, int) or abs(loss) <= sys.float_info.max else math.inf
    got = f"a Tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise DTypeError("LBFGS.step", "a closure that returns the loss, one number", got)


def max_abs(vector: Array) -> float:
    """The largest absolute value, 0 of an empty vector; waits for the device."""
    return float(read_scalar(np.abs(vector).max())) if vector.size else 0.0
