"""Parameter: a leaf that an optimizer trains."""

from __future__ import annotations

import sys
from copy import deepcopy
from typing import Any, cast

from .. import backends
from ..base.dtypes import Array, DType, accumulator
from ..base.errors import ShapeError, switch
from .arguments import shown
from .autograd import hooks
from .capture.recorder import recorders
from .dispatch import overrides
from .tensor import Tensor
from .tensor_factory import tensor


def _array(data: Any) -> Array:
    if backends.is_array(data):
        return data
    try:
        return tensor(data).array
    except ShapeError:
        raise ShapeError("Parameter", "lists of one length on every axis", shown(data)) from None


def _share_version(made: Tensor, data: Any) -> None:
    # `made` has the memory of `data`: changes in place of a tensor show in its version, those of an array nowhere.
    if isinstance(data, Tensor):
        made._version_counter = data.detach()._version_counter
    elif made.array is data:
        made._version_counter.append(0)


class Buffer(Tensor):
    """A tensor that an assignment to an attribute of a Module registers as a buffer; not trained.

    persistent: whether it is in the `state_dict`. It shares the memory of `data`.
    """

    __slots__ = ("persistent",)
    __torch_function__ = overrides.disabled

    def __init__(self, data: Any, *, persistent: bool = True):
        super().__init__(data.array if isinstance(data, Tensor) else _array(data))
        self.persistent = persistent
        _share_version(self, data)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        with backends.device_guard(self.array):
            twin = memo[id(self)] = Buffer(Tensor(self.array.copy()), persistent=self.persistent)
        vars(twin).update(deepcopy(vars(self), memo))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_buffer, (Tensor(self.array), self.persistent), vars(self) or None


def _unpickle_buffer(values: Tensor, persistent: bool) -> Buffer:
    return Buffer(values, persistent=persistent)


class Parameter(Tensor):
    """A leaf that an optimizer trains; its gradient is kept in float32 (float64 for float64 parameters).

    _dotted_name: the name a Module knows it by, for messages.
    """

    __slots__ = ()
    __torch_function__ = overrides.disabled
    _unrounded = True

    def __init__(self, data: Any = (), requires_grad: bool = True):
        self._dotted_name = ""
        self._segment: Any = None  # a weak reference to `_arena_segment`
        super().__init__(
            data.array if isinstance(data, Tensor) else _array(data),
            switch("Parameter", "requires_grad", requires_grad),
        )
        _share_version(self, data)

    def _hold(self, array: Array) -> None:
        super()._hold(array)
        segment = self._arena_segment
        if segment is not None and not segment.fits(array):
            self._segment = None  # its optimizer makes another one at the next step

    @property
    def _arena_segment(self) -> Any:
        """Its segment of the newest optimizer's arena; None without an optimizer, and once that is gone."""
        return None if self._segment is None else self._segment()

    def drop_grad(self) -> None:
        for recorder in recorders:
            recorder.writes_gradient(self)
        held, self._grad = self._grad, None
        if held is not None and sys.getrefcount(held) > 2 and self._arena_segment is not None:  # others hold it
            with backends.device_guard(held.array):
                held.array = held.array.copy()

    @property
    def grad_buffer(self) -> Array | None:
        """The optimizer's memory for the gradient, while there is none yet; else None."""
        if self._grad is not None or self._segment is None or id(self) in hooks.leaf_hooks:
            return None
        segment = self._segment()
        return None if segment is None else segment.gradient

    def _can_keep(self, gradient: Array) -> bool:
        return (self._segment is None or self._segment() is None) and super()._can_keep(gradient)

    def _new_grad_buffer(self, gradient: Array) -> Array:
        segment = None if self._segment is None else self._segment()
        return super()._new_grad_buffer(gradient) if segment is None else segment.gradient

    def _grad_dtype(self) -> DType:
        return accumulator(self._array.dtype)

    def _is_worth_caching(self) -> bool:
        return True

    def _cast(self, dtype: DType) -> Array:
        segment = self._arena_segment
        return super()._cast(dtype) if segment is None or not segment.owns_parameter() else segment.cast(dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        twin = cast(Parameter, super().__deepcopy__(memo))
        twin._dotted_name = self._dotted_name
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        how, what, *_ = super().__reduce__()
        return how, what, (vars(self) or None, {"_dotted_name": self._dotted_name})

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


def become_parameter(leaf: Tensor) -> Parameter:
    """Make a leaf a Parameter, the same object, which an optimizer can hold."""
    leaf.__class__ = Parameter
    parameter = cast(Parameter, leaf)
    parameter._dotted_name, parameter._segment = "", None
    if parameter.requires_grad:
        parameter._tape_edge = (parameter, 0, parameter.array.shape, parameter._grad_dtype())
    return parameter
