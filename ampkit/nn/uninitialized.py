"""Parameters and buffers without a shape, which lazy layers hold before their first batch."""

from __future__ import annotations

from typing import Any, Self

from .. import backends
from ..backends import Array, Device
from ..base import dtypes, public_dtypes
from ..base.errors import ShapeError
from ..core.dispatch import overrides
from ..core.parameter import Buffer, Parameter
from ..core.tensor import Tensor
from ..core.tensor_base import TensorBase

RUN_FIRST = "run a batch through the model first"
_slot: Any = vars(TensorBase)["_array"]


class Uninitialized(Tensor):
    """A Tensor without a shape; its dtype and device are those that it will have.

    What reads its shape or values raises ShapeError, which says to run a batch through the model.
    """

    __slots__ = ()
    __torch_function__ = overrides.disabled
    initialized: Any = Tensor  # the class that it becomes

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None):
        kind = dtypes.default() if dtype is None else dtypes.parse(dtype)
        Tensor.__init__(self, backends.get(device).empty((0,), kind))
        self.requires_grad = requires_grad

    @property
    def array(self) -> Array:  # which Tensor has as a slot
        raise ShapeError(type(self).__name__, "a shape", "a parameter or buffer without one", RUN_FIRST)

    @array.setter
    def array(self, value: Array) -> None:
        _slot.__set__(self, value)

    @property
    def dtype(self) -> public_dtypes.dtype:
        return public_dtypes.DTYPES[_slot.__get__(self).dtype]

    @property
    def device(self) -> Device:
        placeholder = _slot.__get__(self)
        return Device(backends.backend_of(placeholder).device_of(placeholder))

    @property
    def requires_grad(self) -> bool:
        return self._tape_edge is not None

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self._tape_edge = (self, 0, (0,), self.dtype.dtype) if wanted else None

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Become uninitialized memory of that shape, in its dtype and on its device unless others are given."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        self.set_destination(device, None if dtype is None else dtypes.parse(dtype))
        self.become(backends.get(self.device).empty(sizes, self.dtype.dtype))

    def become(self, array: Array) -> None:
        """Become a Parameter, or a buffer, that holds `array`."""
        trained = self.requires_grad
        self._tape_edge = None
        self.__class__ = self.initialized
        self.rebind(array)
        self.requires_grad = trained

    def set_destination(self, device: Any, dtype: dtypes.DType | None) -> None:
        """Be of that dtype and on that device once there is a shape; None leaves it."""
        there = backends.get(self.device if device is None else device)
        self.array = there.empty((0,), self.dtype.dtype if dtype is None else dtype)

    def detach(self) -> Self:
        """Itself: there is no memory to share yet."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        twin = memo[id(self)] = type(self)(self.requires_grad, self.device, self.dtype)
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.requires_grad, str(self.device), self.dtype.name)

    _repr_html_: Any = None  # a notebook shows the text

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(Uninitialized, Parameter):
    """A Parameter without a shape: `materialize(shape)` makes it one, the same object, with uninitialized memory.

    device, dtype: what it will have, by default those of `ampkit.empty`. Reading its shape or values raises ShapeError.
    """

    __slots__ = ()
    initialized = Parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None):
        self._dotted_name, self._segment = "", None
        super().__init__(requires_grad, device, dtype)


class UninitializedBuffer(Uninitialized, Buffer):
    """A buffer without a shape; see UninitializedParameter. persistent: whether it is in the `state_dict`."""

    __slots__ = ()
    initialized = Buffer

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True):
        self.persistent = persistent
        super().__init__(requires_grad, device, dtype)
