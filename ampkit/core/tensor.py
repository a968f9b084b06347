"""Tensor: an array on a device, its edge on the tape, and its gradient.

Arithmetic and most methods are ops, which `ops/__init__.py` binds here from one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from .. import backends
from ..backends.format_casts import copied
from ..backends.launch_queue import queue
from ..base import dtypes, observe
from ..base.dtypes import KNOWN, NARROW, Array, DType
from ..base.errors import AmpkitError, DeviceError, DTypeError, ShapeError, StateError, switch
from ..base.missing_names import missing_attribute
from ..base.version_counter import VersionCounter, come_back, leave, part_changed
from .autograd.accumulate import add_to, is_dense, sum_waits
from .autograd.scale_tag import ScaleTag, combine_tags
from .capture.recorder import recorders
from .casts import cast_unread
from .dispatch import overrides
from .fp_errors import ignore_fp_errors
from .tensor_base import ReadAlias, TensorBase, TensorType

if TYPE_CHECKING:
    from .autograd.node import Node
    from .autograd.views import Views
    from .tensor_methods import TensorMethods  # a stub: `ops` binds the methods when it is imported
else:
    TensorMethods = object

# One clock for recordings and in-place changes, so that backward can tell which of the two came first.
tick = count(1).__next__

_Kind = TypeVar("_Kind", bound="Tensor")

# Where the gradient of a tensor flows, and its shape and dtype: (node or leaf, output index, shape, dtype).
Edge = tuple[Any, int, tuple[int, ...], DType]


class Tensor(TensorBase, TensorMethods, metaclass=TensorType):
    """An array on a device and, where a gradient is wanted, its edge on the tape.

    array: the NumPy or CuPy array itself. Scripts may set attributes of their own on a tensor, by any other name that
    PyTorch does not use; they are copied and pickled with it.

    _tape_edge: where its gradient flows (see Edge), or None if operations on it are not recorded. _version_counter: the
    time of the last in-place change (see `tick`), in a list shared with its views; a second entry says that other code
    may write to the memory without notice (see `exposed`). _cast_copies: its values cast to other dtypes. _view_links:
    the tensors that share its memory (see core/autograd/views.py). _scale_tag: for a gradient, the loss scale that it
    is multiplied by.
    `ampkit.tensor` makes one from values; this constructor wraps `array` without a copy, of a subclass of ndarray its
    memory. As PyTorch's, it also makes a tensor of the default dtype from a list, `Tensor([1, 2])`, and of a shape,
    `Tensor(2, 3)`. Raises DTypeError for an array of a dtype that no tensor has, or in another byte order,
    ArgumentError for a np.ma.MaskedArray that hides elements.
    """

    # The slots `_dotted_name` and `_segment` are a Parameter's, unset in others; here, so that a leaf can become one.
    __slots__ = (
        "__dict__", "__weakref__", "_cast_copies", "_dotted_name", "_edge", "_grad", "_hooks", "_scale_tag", "_segment",
        "_version_counter", "_view_links", "array",
    )  # fmt: skip
    _hooks: Any  # of a leaf that has hooks; unset in others (see autograd/hooks.py)
    _unrounded = False  # whether its gradient is wanted in its own dtype, not in the one that an op read it in

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = object.__new__(cls)
        if cls.__new__ is not Tensor.__new__:  # the `__new__` of a subclass calls this one
            Tensor.__init__(made, *args, **kwargs)
        return made

    def __init__(self, array: Array = (), requires_grad: bool = False, *more: int):
        if type(self).__new__ is not Tensor.__new__ and hasattr(self, "_version_counter"):
            return  # what the `__new__` of a subclass made
        counter: list[int] | None = None
        if type(array) is not np.ndarray or array.dtype not in KNOWN:
            if isinstance(array, Tensor):  # the same memory
                counter, array = array._version_counter, Tensor.detach(array).array
            elif hasattr(array, "dtype"):
                array = backends.plain(array, "Tensor")
            else:
                array, requires_grad = _of_values_or_sizes(array, requires_grad, more), False
        self.array = array
        self._edge: Any = None  # `_tape_edge`, with None in place of the tensor itself: a leaf is no reference cycle
        self._version_counter: list[int] = counter or VersionCounter((0,))
        self._cast_copies: dict[DType, tuple[int, Array]] | None = None
        self._grad: Tensor | None = None
        self._scale_tag: ScaleTag | None = None
        self._view_links: Views | None = None
        if requires_grad:
            self.requires_grad = True

    # subclasses

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__new__" in vars(cls) and "__init__" not in vars(cls):
            setattr(cls, "__init__", _already_made)  # noqa: B010 - the type checker refuses an assignment
        if "array" in vars(cls):  # a property, which calls of ops read, too
            setattr(cls, "_array", vars(cls)["array"])  # noqa: B010
        overrides.register(cls, Tensor)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What a function of the library does where an argument is of a subclass: the result is of the subclass, too.

        A subclass may define another one, as in PyTorch.
        """
        if overrides.is_pytorchs(func) or not all(issubclass(cls, each) for each in types):
            return NotImplemented
        with overrides.DisableTorchFunctionSubclass():
            return _as_subclass(func(*args, **(kwargs or {})), cls)

    def as_subclass(self, cls: type[_Kind]) -> _Kind:
        """The same memory, on the tape where this tensor is, as a tensor of a subclass of Tensor, which is not called.

        Raises DTypeError for another class.
        """
        with overrides.DisableTorchFunctionSubclass():
            return self.reshape(tuple(self.array.shape))._of_class(cls)

    @staticmethod
    def _make_subclass(cls: type[_Kind], data: Tensor, require_grad: bool = False) -> _Kind:
        """A leaf of a subclass over the memory of `data`."""
        return Tensor.detach(data)._of_class(cls, require_grad)

    def _of_class(self, cls: type[_Kind], requires_grad: bool = False) -> _Kind:
        # This object, which nobody else holds, as one of a subclass, whose constructor may take other arguments.
        if not (isinstance(cls, type) and issubclass(cls, Tensor)):
            raise DTypeError("as_subclass", "a subclass of Tensor", repr(cls))
        made: Any = self
        try:
            made.__class__ = cls
        except TypeError:
            raise DTypeError("as_subclass", "a subclass of Tensor without slots of its own", cls.__name__) from None
        made._dotted_name, made._segment = "", None  # of a Parameter
        if requires_grad:
            made.requires_grad = True
        return made

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # what is looked up last: a method of PyTorch that ampkit lacks
            raise missing_attribute("torch.Tensor", self, name)

    # the tape

    @property
    def _tape_edge(self) -> Edge | None:
        """Where the gradient flows (see Edge); of a leaf that requires grad, to the leaf itself."""
        edge: Edge | None = self._edge
        return edge if edge is None or edge[0] is not None else (self, *edge[1:])

    @_tape_edge.setter
    def _tape_edge(self, edge: Edge | None) -> None:
        self._edge = edge if edge is None or edge[0] is not self else (None, *edge[1:])

    @property
    def requires_grad(self) -> bool:
        return self._edge is not None

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        wanted = switch("requires_grad", "requires_grad", wanted)
        if wanted and not self.is_floating_point():
            raise DTypeError("requires_grad", "a floating-point tensor", self.dtype.name, "cast it: x.float()")
        if not wanted and self._tape_node is not None:
            raise StateError("requires_grad", "a leaf", "the result of an operation", "use .detach()")
        if not wanted:
            self._edge = None
        elif self._edge is None:
            self._edge = (None, 0, self._array.shape, self._grad_dtype())

    def _grad_dtype(self) -> DType:
        return self._array.dtype

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Ask for a gradient (or no longer), in place."""
        self.requires_grad = requires_grad
        return self

    @property
    def _tape_node(self) -> Node | None:
        """The node that made it; None for a leaf."""
        source = None if self._edge is None else self._edge[0]
        return None if isinstance(source, Tensor) else source

    node = ReadAlias("_tape_node")

    @property
    def is_leaf(self) -> bool:
        return self._tape_node is None

    @property
    def grad_fn(self) -> Node | None:
        return None if self._tape_node is None else self._tape_node.shown()

    @property
    def output_nr(self) -> int:
        """Which output of its node it is; 0 for a leaf."""
        return 0 if self._edge is None else self._edge[1]

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward accumulated, or None."""
        for recorder in recorders:
            recorder.asks_gradient(self)
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None:
            self.drop_grad()
            return
        if not isinstance(value, Tensor):
            raise DTypeError("grad", "a Tensor or None", f"a {type(value).__name__}")
        if value is self or not value.is_floating_point():
            got = "the tensor itself" if value is self else value.dtype.name
            raise DTypeError("grad", "another floating-point Tensor", got)
        if value.shape != self.shape:
            raise ShapeError("grad", f"a Tensor of shape {tuple(self.shape)}", f"shape {tuple(value.shape)}")
        if backends.backend_of(value.array) is not backends.backend_of(self.array):
            got = f"one on {value.device}"
            raise DeviceError("grad", f"a Tensor on {self.device}", got, "move it with .to(device)")
        array, tag, edge = value.array, value._scale_tag, value._tape_edge
        self.drop_grad()
        with backends.device_guard(self.array):
            self.accumulate(array, tag)
        if edge is not None and self._grad is not None and self._grad.array.dtype == array.dtype:
            self._grad._tape_edge = edge  # read by a differentiable update, whose gradients flow on to `value`

    @grad.deleter
    def grad(self) -> None:
        self.drop_grad()

    def drop_grad(self) -> None:
        """Set the gradient to None; other references to it keep its values."""
        for recorder in recorders:
            recorder.writes_gradient(self)
        self._grad = None

    def accumulate(self, gradient: Array, tag: ScaleTag | None = None, owned: bool = False) -> None:
        """Add `gradient` [like self] to `grad`: the first write is a copy, later ones add.

        owned: nothing else refers to the memory of `gradient`, which then becomes `grad` where it has its dtype and
        layout and no optimizer holds the memory of `grad`.

        If the loss scale changed in between, the held gradient is rescaled to the new one. A sum of scaled and unscaled
        gradients is tagged as such, and raises where it is used.
        """
        for recorder in recorders:
            recorder.asks_gradient(self)
            recorder.writes_gradient(self)
        if self._grad is None:
            self._grad = Tensor(self._first_gradient(gradient, owned))
            self._grad._scale_tag = tag
            return
        if queue.waiting:
            if self._grad._scale_tag is tag and sum_waits(self._grad, gradient):
                return
            queue.flush((gradient,), (self._grad._array,))
        held = self._grad.array
        if self._grad._scale_tag is not tag:
            self._grad._scale_tag = combine_tags(held, self._grad._scale_tag, tag)
        if held.dtype in NARROW:
            raise DTypeError("backward", "one gradient", f"two to add in {self.dtype.name}", "use x.bfloat16() once")
        if self._grad._edge is not None:
            self._grad.changed()  # from create_graph=True: the tape may have saved it
        add_to(held, gradient.astype(held.dtype, copy=False))

    def _first_gradient(self, gradient: Array, owned: bool) -> Array:
        # The memory of `grad` with the values of `gradient`, which a compiled step may have to compute yet.
        if self._can_keep(gradient):
            own = gradient if owned else queue.held.copy(gradient) if queue.active else None
            if own is not None:
                return own
        buffer = self._new_grad_buffer(gradient)
        if gradient is buffer or (queue.waiting and queue.held.add_copy(gradient, buffer)):  # a backward has written it
            return buffer
        if queue.waiting:
            queue.flush((gradient,), (buffer,))
        backends.backend_of(buffer).copy(buffer, gradient)
        return buffer

    def _can_keep(self, gradient: Array) -> bool:
        array = self._array
        ordered = gradient.flags.c_contiguous and (array.flags.c_contiguous or not is_dense(array))
        return bool((ordered or gradient.strides == array.strides) and gradient.dtype == self._grad_dtype())

    def _new_grad_buffer(self, gradient: Array) -> Array:
        # In the order of axes of a dense leaf, as in PyTorch.
        array, make = self._array, backends.backend_of(self._array).empty
        if not array.flags.c_contiguous and is_dense(array):
            order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
            made = make(tuple([array.shape[axis] for axis in order]), self._grad_dtype())
            return made.transpose([order.index(axis) for axis in range(array.ndim)])
        return make(array.shape, self._grad_dtype())

    def rebind(self, array: Array) -> None:
        """Hold another array from now on (a view into an arena, a copy on another device or of another dtype)."""
        self._hold(array)
        self.changed()
        # Views of the old memory keep the old counter.
        self._version_counter = VersionCounter(self._version_counter[:1])

    def _hold(self, array: Array) -> None:
        if self._view_links is not None:
            from .autograd.views import hand_over

            hand_over(self)
        self.array = array
        if self._edge is not None and self._tape_node is None:
            self._edge = (None, 0, array.shape, self._grad_dtype())

    def detach(self) -> Tensor:
        """The same memory, off the tape."""
        out = Tensor(self._array)
        if self._tape_node is not None:
            self.exposed()  # a change in place must be seen by both
        out._version_counter = self._version_counter
        return out

    @property
    def data(self) -> Tensor:
        """The same memory, off the tape. Assigning a Tensor gives the tensor the other's memory, dtype and shape.

        Assigning an array or numbers, of the same shape, writes them into the memory.
        """
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._share_memory_of(value)
        else:
            self._write(value)

    def _share_memory_of(self, other: Tensor) -> None:
        """Hold the memory of `other` from now on, in its shape and dtype, off the tape; the old memory stays as it is.

        A backward through the old values raises, unless the tensor has its old memory back by then. Raises DTypeError
        for numbers that take no gradient where one is wanted, ShapeError for the result of an operation in another
        shape or dtype.
        """
        array, now = other.array, self.array
        if self._edge is not None and not other.is_floating_point():
            raise DTypeError("data", "a floating-point tensor, where a gradient is wanted", other.dtype.name)
        if self._tape_node is not None and (array.shape != now.shape or array.dtype != now.dtype):
            needs, got = (f"{t.dtype.name} of shape {tuple(t.shape)}" for t in (self, other))
            raise ShapeError("data", f"{needs}, as the result of an operation has", got)
        version = other.detach()._version_counter
        if version is not self._version_counter:
            leave(self._version_counter, tick())
            self._hold(array)
            self._version_counter = version
            come_back(version)
        elif array is not now:
            self._hold(array)
        self._cast_copies = None
        if self._tape_node is not None:
            self.exposed()

    def _write(self, values: Any) -> None:
        """Overwrite the values, in any mode and off the tape, by an array, a Tensor or numbers of the same shape."""
        new = values.array if isinstance(values, Tensor) else self._numbers(values)
        if new.shape != self.array.shape:
            raise ShapeError("data", f"shape {tuple(self.shape)}", f"{tuple(new.shape)}")
        with ignore_fp_errors(), backends.device_guard(self.array):
            if self.array.dtype in NARROW or new.dtype in NARROW:
                backends.backend_of(self.array).copy(self.array, new)
            else:
                self.array[...] = new
        self.changed()

    def _numbers(self, values: Any) -> Array:
        # The array of what is written into `data`.
        try:
            found = backends.backend_of(self.array).asarray(values)
        except AmpkitError:
            raise
        except (TypeError, ValueError):  # rows of several lengths
            found = None
        if found is None or found.dtype.kind in "OSUMmc":
            raise DTypeError("data", "an array or numbers", f"a {type(values).__name__}")
        return found

    @property
    def _version(self) -> int:
        """A number that grows with each change in place of the memory, by PyTorch's name; of `data` too."""
        return self._version_counter[0]

    def changed(self, part: Array | None = None) -> None:
        """Note an in-place change: cached casts become stale, and a backward through the old values raises.

        part: a view of the memory, if only its elements changed: a backward that reads others goes on.
        """
        if part is None:
            self._version_counter[0] = tick()
        else:
            part_changed(self._version_counter, tick(), part)
        for recorder in recorders:
            recorder.changed(self)

    def copy_in(self, dtype: DType, keep: bool) -> Array:
        """The values rounded to `dtype`, cached per (dtype, version) if `keep`: an unchanged tensor is cast once.

        Cached for Parameters and tensors on the tape, unless other code can write to the memory (see `exposed`).
        """
        keep = keep and self._is_worth_caching() and len(self._version_counter) == 1
        if keep and self._cast_copies is not None:
            version, held = self._cast_copies.get(dtype, (-1, None))
            if version == self._version_counter[0]:
                for recorder in recorders:
                    recorder.read(self, dtype, held)
                return held
        if observe.profilers:
            observe.notify_start("cast", "", self._array)
        made = self._cast(dtype)
        if observe.observers:
            observe.notify_end("cast", (self._array,), made, observe.FORWARD, operands=(self,))
        if keep:
            self._cast_copies = {**(self._cast_copies or {}), dtype: (self._version_counter[0], made)}
            for recorder in recorders:
                recorder.made(self)
        return made

    def _is_worth_caching(self) -> bool:
        # Only tensors that are trained or on the tape are likely to be read again.
        return self._edge is not None

    def _cast(self, dtype: DType) -> Array:
        if queue.active and len(self._version_counter) == 1:
            return cast_unread(self._array, dtype)
        return backends.backend_of(self.array).cast(self.array, dtype)

    def exposed(self) -> Array:
        """The array, for code that may write to it without notice: casts are no longer cached."""
        if len(self._version_counter) == 1:
            self._version_counter.append(tick())
            for recorder in recorders:
                recorder.exposed(self)
        return self.array

    # copies

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._tape_node is not None:
            raise StateError("pickle", "a leaf", "the result of a recorded operation", "use .detach()")
        from .shared_memory import pickled

        if (shared := pickled(self)) is not None:
            return shared
        values = backends.backend_of(self.array).to_numpy(self.array)
        what = (type(self), self.dtype.name, values.shape, values.tobytes(), self.requires_grad)
        return _unpickle, (*what, str(self.device)), vars(self) or None

    def _copy_gradient_of(self, gradient: Tensor) -> None:
        if gradient.array.shape == self.array.shape:
            self.accumulate(gradient.array, gradient._scale_tag)
        else:  # `data` has got another shape since
            self._grad = Tensor(copied(gradient.array))
            self._grad._scale_tag = gradient._scale_tag

    def __copy__(self) -> Tensor:
        # As PyTorch's: a leaf that shares the memory. That of a Parameter may be moved by its optimizer: it is copied.
        return self.__deepcopy__({}) if type(self) is not Tensor else self.detach().requires_grad_(self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._tape_node is not None:
            raise StateError("deepcopy", "a leaf", "the result of a recorded operation", "use .detach()")
        with backends.device_guard(self.array):
            twin = Tensor(copied(self.array))._of_class(type(self), self.requires_grad)
        memo[id(self)] = twin
        if self._grad is not None:
            with backends.device_guard(self.array):
                twin._copy_gradient_of(self._grad)
        vars(twin).update(deepcopy(vars(self), memo))
        return twin


def _already_made(self: Tensor, *args: Any, **kwargs: Any) -> None:
    """The constructor of a subclass whose `__new__` makes its tensors, with arguments of its own."""


def note_changes(tensors: Sequence[Tensor]) -> None:
    """Note an in-place change of several tensors, as `Tensor.changed` does of one."""
    for tensor in tensors:
        tensor._version_counter[0] = tick()
    for recorder in recorders:
        for tensor in tensors:
            recorder.changed(tensor)


def _of_values_or_sizes(first: Any, second: Any, more: tuple[int, ...]) -> Array:
    from .tensor_factory import made_of

    if not isinstance(first, (list, tuple, int)):
        cure = "ampkit.tensor(values) makes a Tensor of numbers, ampkit.empty(2, 3) one of a shape"
        raise DTypeError("Tensor", "an array", f"an object of type {type(first).__name__}", cure) from None
    return made_of((first, *(() if second is False else (second,)), *more), dtypes.default(), None).array


def _unpickle(
    kind: type[Tensor], dtype: str, shape: tuple[int, ...], data: bytes, tracked: bool, device: str = "cpu"
) -> Tensor:
    values = np.frombuffer(data, dtypes.parse(dtype)).reshape(shape).copy()
    return Tensor(backends.get(device).asarray(values))._of_class(kind, tracked)


def _as_subclass(result: Any, cls: type[Tensor]) -> Any:
    """A function's result, whose tensors become tensors of a subclass."""
    if isinstance(result, Tensor):
        return result if isinstance(result, cls) else result.as_subclass(cls)
    if isinstance(result, (list, tuple)):
        items = [_as_subclass(item, cls) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


overrides.register(Tensor, Tensor)
setattr(TensorBase, "_array", vars(Tensor)["array"])  # noqa: B010 - the same slot, which `guard_reads` leaves


def guard_reads() -> None:
    """From now on whatever reads `array` first computes what waits of it in a compiled step.

    Programs without such steps keep the slot, which is read several times as fast as a property.
    """
    slot: Any = vars(TensorBase)["_array"]
    if vars(Tensor)["array"] is not slot:
        return

    def read(tensor: Tensor) -> Array:
        array = slot.__get__(tensor)
        if queue.waiting:
            queue.flush((array,), (array,))
        return array

    setattr(Tensor, "array", property(read, slot.__set__))  # noqa: B010
