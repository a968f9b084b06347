"""Steps recorded on the tape: `differentiable=True` lets gradients flow through an optimizer's update.

The parameters are then tensors of a graph, updated in place, and gradients, state and hyperparameters may need
gradients as well: meta-learning, and learning rates that are learned. There is no arena; an optimizer's formula runs
on tensors as it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import backends
from ..base.dtypes import Array, DType, accumulator, float32, float64, int64
from ..base.errors import StateError
from ..core.autograd.grad_mode import enable_grad
from ..core.autograd.inplace import succeed
from ..core.autograd.traced_array import TracedArray
from ..core.fp_errors import ignore_fp_errors
from ..core.tensor import Tensor
from ..ops import stack
from .argument_checks import is_tensor_with_grad, refuse_scaled, to_python

if TYPE_CHECKING:
    from .optimizer import Optimizer
    from .param_group import ParamGroup


class RecordedArray(TracedArray):
    """A TracedArray whose in-place operations make it hold their result, so that the tape records them."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, out: Any = (None,), **kwargs: Any) -> Any:
        result = super().__array_ufunc__(ufunc, method, *args, **kwargs)
        return result if out[0] is None or result is NotImplemented else out[0].hold(result)

    def __iadd__(self, other: Any) -> RecordedArray:
        return self.hold(self + other)

    def __isub__(self, other: Any) -> RecordedArray:
        return self.hold(self - other)

    def __imul__(self, other: Any) -> RecordedArray:
        return self.hold(self * other)

    def __setitem__(self, index: Any, value: Any) -> None:
        assert index is Ellipsis, "a formula overwrites whole arrays"
        self.hold(value)

    def __bool__(self) -> bool:
        return True  # a hyperparameter that requires grad takes part, whatever its value

    def hold(self, value: Any) -> RecordedArray:
        """Hold `value`, in this array's dtype; returns the array itself."""
        if not isinstance(value, TracedArray):
            value = TracedArray(Tensor(backends.backend_of(self.tensor.array).asarray(value, self.dtype)))
        self.tensor = value.tensor if value.dtype == self.dtype else value.tensor.to(self.dtype)
        return self


class RecordedSpan:
    """One parameter during a recorded step, with what an update reads of a Span and its segment.

    weights, moments: in the accumulator dtype, which an update changes; `commit` writes them to the parameter and to
    its `state`. steps: the steps taken so far, 0-d int64 on the device; 1 for a state that does not count them.
    """

    first = 0
    copies: tuple[Array, ...] = ()
    random_bits = None

    def __init__(self, parameter: Tensor, state: dict[str, Any]):
        self.parameter, self.state = parameter, state
        self._dtype: DType = accumulator(parameter.array.dtype)
        self._backend = backends.backend_of(parameter.array)
        self._arrays: dict[str, RecordedArray] = {}
        self.weights = RecordedArray(parameter.to(self._dtype))
        gradient = parameter._grad
        assert gradient is not None
        self.gradient = TracedArray(gradient.to(self._dtype))
        taken = int(to_python(state.get("step", 1 if state else 0)))
        self.steps: Array = self._backend.asarray(np.array(taken, int64))

    @property
    def arena(self) -> RecordedSpan:
        """The span itself."""
        return self

    @property
    def segments(self) -> list[RecordedSpan]:
        """The span itself, as a list."""
        return [self]

    def moment(self, name: str) -> RecordedArray:
        """The state `name` in the parameter's shape; zeros before the first step."""
        return self.state_array(name, self.weights.shape)

    def state_array(self, name: str, shape: tuple[int, ...]) -> RecordedArray:
        """The state `name`; zeros of `shape` before the first step."""
        if name not in self._arrays:
            held = self.state.get(name)
            tensor = Tensor(self._backend.zeros(shape, self._dtype)) if held is None else held.to(self._dtype)
            self._arrays[name] = RecordedArray(tensor)
        return self._arrays[name]

    def commit(self, counts_steps: bool) -> None:
        """Give the parameter and its state what the update made; graphs of earlier steps keep the earlier values."""
        succeed(self.parameter, self.weights.tensor)
        if counts_steps:
            self.state["step"] = Tensor((self.steps + 1).astype(float32))
        self.state.update({name: array.tensor for name, array in self._arrays.items()})


def step(optimizer: Optimizer) -> None:
    """Update every parameter that has a gradient, recorded.

    Raises StateError, before anything changes, for a leaf that requires grad, whose values are the user's, and for
    gradients that are scaled.
    """
    where = f"{type(optimizer).__name__}.step"
    present = [(group, p) for group in optimizer.param_groups for p in group["params"] if p._grad is not None]
    for _, parameter in present:
        if parameter.is_leaf and parameter.requires_grad:
            needs = "tensors of a graph with differentiable=True"
            raise StateError(where, needs, "a leaf that requires grad", "pass copies: p.clone()")
    refuse_scaled(where, [parameter._grad for _, parameter in present], "unscale them first: grad / scale")
    with enable_grad(), ignore_fp_errors():
        for group, parameter in present:
            with backends.device_guard(parameter.array):
                span: Any = RecordedSpan(parameter, optimizer.custom_state[parameter])
                traced: Any = _TracedGroup(group)
                optimizer.update(traced, span, None)
                span.commit(optimizer.counts_steps)


class _TracedGroup(dict[str, Any]):
    """The options of a group for a recorded step: tensors that require grad are traced, in float64."""

    def __init__(self, group: ParamGroup):
        tensors = {key: _traced(value) for key, value in group.items() if is_tensor_with_grad(value)}
        super().__init__({**group, **tensors})
        self.device = {**group.device, **tensors}
        self.scheduled = {*group.scheduled, *tensors}  # a value of 0 has a gradient too

    def may_be_set(self, key: str) -> bool:
        """See ParamGroup."""
        return key in self.scheduled or self[key] != 0


def _traced(value: Any) -> RecordedArray:
    items = [_float64(item) for item in value] if isinstance(value, (list, tuple)) else None
    return RecordedArray(_float64(value) if items is None else stack(items))


def _float64(value: Any) -> Tensor:
    return value.to(float64) if isinstance(value, Tensor) else Tensor(np.array(value, float64))
