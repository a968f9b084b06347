"""DelayedScaling: the scales of a weight's products that follow from the largest magnitudes of earlier steps.

Micikevicius et al. 2022 (arXiv:2209.05433); the formula and its defaults are Transformer Engine's. The state belongs
to the weight: it is in the `state_dict` of the weight's module, beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np

from ... import backends
from ...base.dtypes import Array, float32
from ...base.errors import ArgumentError, ShapeError
from .recipe import LARGEST, Quantization, QuantizationRecipe

INPUT, WEIGHT, GRAD_OUTPUT = range(3)  # the rows of `values`
_NAME = "_delayed_scaling"  # the attribute of a Parameter
_LEAST, _MOST = np.finfo(np.float32).tiny, np.finfo(np.float32).max  # scales whose inverse is finite
SUFFIX = ".delayed_scaling"  # of the weight's name in a state_dict


class ScaleLog:
    """The scales that a function takes where it runs, so that its second run in `recompute` takes the same ones.

    The largest magnitudes are those of the first run, whichever runs come between.
    """

    __slots__ = ("outer", "replayed", "scales")

    def __init__(self, outer: ScaleLog | None, replayed: list[Array] | None = None):
        self.outer, self.scales = outer, list[Array]()
        self.replayed: Iterator[Array] | None = None if replayed is None else iter(replayed)

    def take(self, now: Array) -> tuple[Array, bool]:
        """The scale to use where the state has `now`, and whether its step is to be recorded."""
        if self.replayed is not None:
            return next(self.replayed, now), False
        scale, is_first = (now, True) if self.outer is None else self.outer.take(now)
        self.scales.append(scale)
        return scale, is_first


running: ContextVar[ScaleLog | None] = ContextVar("ampkit.scale_log", default=None)


class DelayedScaling:
    """Scales and histories for the products of one weight.

    values: float32 [3, 1 + history], on the weight's device: a row for the input, the weight and the gradient of the
    output; of each the scale of the next step, then the largest magnitudes of the last steps, the newest first.
    """

    __slots__ = ("values",)

    def __init__(self, values: Array):
        self.values = values

    def __deepcopy__(self, memo: dict[int, Any]) -> DelayedScaling:
        with backends.device_guard(self.values):
            return DelayedScaling(self.values.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        from ..tensor import Tensor  # which imports the policy, and knows to which device its values return

        return _from_tensor, (Tensor(self.values),)

    def scale(self, row: int) -> Array:
        """What values are multiplied by in this step: [1, 1] float32, a copy."""
        return self.values[row : row + 1, :1].copy()

    def record(self, row: int, largest: Array, how: Quantization, recipe: QuantizationRecipe) -> None:
        """Add the largest magnitude [1, 1] of this step, and set the scale of the next one.

        The scale stays where no step had a value other than 0. Infinities and NaN count as 0.
        """
        top, factor = np.float32(LARGEST[how.format]), np.float32(2**recipe.margin)
        if isinstance(self.values, np.ndarray):
            _record_on_host(self.values[row], largest[0, 0], top, factor)
            return
        zero, scale = np.float32(0), self.values[row : row + 1, :1]
        newest = np.where(np.isfinite(largest), largest, zero)
        history = np.concatenate([newest, self.values[row : row + 1, 1:-1]], 1)
        with np.errstate(divide="ignore", over="ignore", under="ignore"):
            wanted = (top / history.max(1, keepdims=True)) / factor
        wanted = np.clip(wanted, _LEAST, _MOST)
        scale = np.where(history.any(1, keepdims=True), wanted, scale)
        self.values[row : row + 1] = np.concatenate([scale, history], 1)


def _record_on_host(values: Array, newest: np.float32, top: np.float32, factor: np.float32) -> None:
    # The same in place, by few calls: values [1 + history].
    history = values[1:]
    history[1:] = history[:-1]
    history[0] = newest if math.isfinite(newest) else 0
    largest = history.max()
    if largest:
        with np.errstate(over="ignore", under="ignore"):
            wanted = top / largest / factor
        values[0] = min(max(wanted, _LEAST), _MOST)


def _from_tensor(values: Any) -> DelayedScaling:
    return DelayedScaling(values.array)


def scaling_of(weight: Any, recipe: QuantizationRecipe) -> DelayedScaling:
    """The state of a weight, made with scales of 1 at the first use.

    Raises ArgumentError for a weight that is no Parameter, which has no next step.
    """
    if not hasattr(weight, "_dotted_name") or not weight.is_leaf:
        needs = f'a Parameter as weight, whose history recipe "{recipe.name}" keeps'
        raise ArgumentError("linear", needs, "another tensor", 'use recipe="current"')
    found: DelayedScaling | None = vars(weight).get(_NAME)
    backend = backends.backend_of(weight.array)
    if found is None:
        found = vars(weight)[_NAME] = DelayedScaling(fresh(backend, recipe.history))
    elif backends.backend_of(found.values) is not backend or found.values.shape[1] != 1 + recipe.history:
        kept = backend.asarray(backends.backend_of(found.values).to_numpy(found.values))[:, : 1 + recipe.history]
        found.values = fresh(backend, recipe.history)
        found.values[:, : kept.shape[1]] = kept
    return found


def fresh(backend: Any, history: int) -> Array:
    """The state before the first step: scales of 1, no magnitudes."""
    values = backend.zeros((3, 1 + history), float32)
    values[:, 0] = 1
    return values


def state_of(weight: Any) -> Array | None:
    """The state of a weight, as it is saved; None for one that delayed scaling has not met."""
    found = vars(weight).get(_NAME)
    return None if found is None else found.values


def without_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """A `state_dict` without the entries of delayed scaling, for files that others read."""
    return {name: value for name, value in state.items() if not name.endswith(SUFFIX)}


def copy_state(weight: Any, source: Any) -> None:
    """Give `weight` the state of `source`, on its own device, if that has one."""
    if (values := state_of(source)) is not None:
        load_state(weight, backends.to_device_of(values, weight.array))


def follow_weight(weight: Any) -> None:
    """Let the scale of a weight whose values were replaced follow its largest magnitude now, as after a step with it.

    Else an evaluation, which records nothing, would saturate values larger than those of the history.
    """
    values, array = state_of(weight), weight.array
    if values is None or not array.size:
        return
    before = values[WEIGHT : WEIGHT + 1, 1:].max(1, keepdims=True)
    now = np.abs(array).max().astype(np.float32).reshape(1, 1)
    known = (before > 0) & (now > 0) & np.isfinite(now)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.minimum(values[WEIGHT : WEIGHT + 1, :1] * (before / now), np.finfo(np.float32).max)
    history = np.concatenate([now, np.zeros_like(values[:1, 2:])], 1)
    changed = np.concatenate([scale, history], 1)
    values[WEIGHT : WEIGHT + 1] = np.where(known, changed, values[WEIGHT : WEIGHT + 1])


def load_state(weight: Any, values: Any) -> None:
    """Set the state of a weight to a copy of `values`, a tensor or an array [3, n]; None forgets it.

    Raises ShapeError for another shape, ArgumentError for scales and magnitudes that no step has left.
    """
    if values is None:
        vars(weight).pop(_NAME, None)
        return
    array = getattr(values, "array", values)
    if len(array.shape) != 2 or array.shape[0] != 3 or array.shape[1] < 2:
        raise ShapeError("delayed scaling", "a state [3, 1 + history]", str(list(array.shape)))
    array = array.astype(np.float32, copy=True)
    if not bool((np.isfinite(array) & (array >= 0)).all() & (array[:, 0] > 0).all()):
        needs = "finite scales above 0, and finite magnitudes from 0"
        cure = "the file is damaged: load the weights without this entry, and the history begins anew"
        raise ArgumentError("delayed scaling", needs, "others in the state that is loaded", cure)
    vars(weight)[_NAME] = DelayedScaling(array)
