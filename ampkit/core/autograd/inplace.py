"""In-place changes: a tensor takes the values of a result, and its edge on the tape.

The values are written into the tensor's memory, so that its views and other holders of the memory see them. Only a
result of an op whose memory no other tensor shares takes over the memory of the new result instead, without a copy;
backward then still has the old values that the tape saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit import backends
from ampkit.backends.format_casts import byte_of, copied
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError, StateError

from ..capture.recorder import recorders
from ..dispatch.batching.array import innermost, live_levels, need_room
from ..dispatch.batching.boundary import beside
from ..fp_errors import ignore_fp_errors
from ..nested import tensors_in
from ..tensor import Tensor
from .grad_mode import grad_scope, no_grad
from .views import is_alone, move, need_changeable, need_views_on_tape


def change(function: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Overwrite self with `function(self, ...)`, rounded to self's dtype: recorded where a gradient is wanted. -> self.

    Raises StateError for a tensor that must not change (see `views.need_changeable`), DTypeError for floats into
    integers, ShapeError if the answer has another shape.
    """
    if not isinstance(self, Tensor):
        raise DTypeError(function.__name__, "a Tensor to change in place", type(self).__name__)
    need_changeable(self)
    if not is_recorded(self, *args, *kwargs.values()):
        with no_grad():
            made = function(self, *args, **kwargs)
        return self if made is self else write(self, fitting(self, made).array)
    replaces = self._tape_edge is not None and is_alone(self)
    source = self if replaces else _copy_of(self)
    if source is not self:
        args = tuple([source if a is self else a for a in args])
        kwargs = {name: source if a is self else a for name, a in kwargs.items()}
    made = function(source, *args, **kwargs)
    if made is source:
        return self
    made = fitting(self, made)
    return _replace(self, made, (*args, *kwargs.values())) if replaces else take(self, made)


def is_recorded(*items: Any) -> bool:
    """Whether operations are recorded here, and a tensor among `items`, which may be sparse, requires grad."""
    return grad_scope().value and any(
        item._tape_edge is not None if isinstance(item, Tensor) else getattr(item, "requires_grad", False) is True
        for item in items
    )


def fitting(self: Tensor, made: Any) -> Tensor:
    """`made` as it can be written into self: of its shape, and rounded to its dtype. Raises DTypeError, ShapeError."""
    made = made if isinstance(made, Tensor) else made.to_dense()  # a product with a sparse tensor is sparse
    if made.array.dtype in dtypes.DIFFERENTIABLE:
        need_float(self)
    if self.array.dtype == dtypes.bool_ != made.array.dtype:
        raise DTypeError("in-place change", "True and False, for bool", made.dtype.name, "cast first: x.int()")
    if made.shape != self.shape:
        raise ShapeError("in-place change", f"an answer of shape {tuple(self.shape)}", f"{tuple(made.shape)}")
    return made if made.array.dtype == self.array.dtype else made.to(self.dtype)


def need_float(self: Tensor) -> None:
    """Raise DTypeError for a tensor that cannot hold floats."""
    if self.array.dtype not in dtypes.DIFFERENTIABLE:
        raise DTypeError("in-place change", f"whole numbers, for {self.dtype.name}", "floats", "cast first: x.float()")


def write(self: Tensor, values: Any) -> Tensor:
    """Overwrite self with constants, an array or a number: its gradient is zeros from now on. -> self."""
    need_changeable(self)
    for recorder in recorders:
        recorder.written(self, values)
    with ignore_fp_errors(), backends.device_guard(self.array):
        _assign(self.array, values)
    self.changed(_part(self))
    if is_recorded(self):
        move(self, None)
    return self


def _part(self: Tensor) -> Any:
    # The elements of a view, which are not all of the memory.
    views = self._view_links
    return None if views is None or views.parent is None else self.array


def _assign(target: Any, values: Any) -> None:
    # An array or a number.
    if live_levels:
        need_room(target, values)
    if target.dtype in dtypes.NARROW and not hasattr(values, "dtype"):
        target.view(dtypes.uint8)[...] = byte_of(values, target.dtype)
    elif target.dtype in dtypes.NARROW or getattr(values, "dtype", None) in dtypes.NARROW:
        backends.backend_of(target).copy(target, values)
    else:
        target[...] = values


def into(where: str, out: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Write `function(...)` into the tensor `out`, or a tuple of results into one of tensors, rounded to their dtypes.

    An empty `out` takes the result's shape. -> out. Raises StateError where a gradient is wanted, DTypeError for
    floats into integers and numbers into bool, ShapeError for an `out` with elements and another shape.
    """
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    for one in outs:
        if not isinstance(one, Tensor):
            raise DTypeError(where, "out as a Tensor, or a tuple of them", type(one).__name__)
    if is_recorded(*outs, *tensors_in((args, kwargs))):
        raise StateError(
            where, "no gradient with out=", "a tensor that requires grad", "leave out= out, or use no_grad"
        )
    for one in outs:
        need_changeable(one)
    with no_grad():
        made = function(*args, **kwargs)
    results = made if isinstance(made, tuple) else (made,)
    if not all(isinstance(result, Tensor) for result in results):
        raise ArgumentError(where, "no out=, for a result that is no tensor", "out=")
    if len(results) != len(outs):
        raise ArgumentError(where, f"out of {len(results)} tensors", f"{len(outs)}")
    for one, result in zip(outs, results, strict=True):
        _need_room(where, one, result)
    for one, result in zip(outs, results, strict=True):
        values = result.to(one.dtype)
        if one.shape == result.shape:
            write(one, values.array)
        else:
            one.data = _copy_of(values)
    return out if not isinstance(made, tuple) else type(made)(*outs) if hasattr(made, "_fields") else outs


def _need_room(where: str, out: Tensor, made: Tensor) -> None:
    if out.device != made.device:
        raise DeviceError(where, f"out on {made.device}", out.device)
    if _RANKS[made.array.dtype.kind] > _RANKS[out.array.dtype.kind]:
        raise DTypeError(where, f"out of a dtype that holds {made.dtype.name}", out.dtype.name)
    if out.shape != made.shape and out.numel():
        raise ShapeError(where, f"out of shape {tuple(made.shape)}, or without elements", f"{tuple(out.shape)}")


# Of NumPy's kinds of dtypes, each of which those of a higher rank hold; V: bfloat16 and narrower floats.
_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}


def take(self: Tensor, made: Tensor) -> Tensor:
    """Overwrite self with the values of `made`, which fits it, and let the gradient go where that of `made` goes."""
    if made._tape_edge is not None:
        need_views_on_tape(self)
        if live_levels and (level := innermost((self.array,))) is not None:
            made = beside(made, level)
    for recorder in recorders:
        recorder.written(self, made.array)
    with ignore_fp_errors(), backends.device_guard(self.array):
        _assign(self.array, made.array)
    self.changed(_part(self))
    if made._tape_edge is not None and self._tape_edge is None:
        self.exposed()  # a leaf until now: its memory may be known outside
    if made._tape_edge is not None or self._tape_edge is not None:
        move(self, made._tape_edge)
    return self


def succeed(self: Tensor, made: Tensor) -> Tensor:
    """Overwrite self with `made`, in new memory where no other tensor shares the old: the tape keeps what it saved."""
    made = fitting(self, made)
    recorded = self._tape_edge is not None or made._tape_edge is not None
    return _replace(self, made, ()) if recorded and is_alone(self) and made is not self else take(self, made)


def _replace(self: Tensor, made: Tensor, given: tuple[Any, ...]) -> Tensor:
    owned = made._view_links is None and getattr(made.array.flags, "writeable", True)
    owned = owned and all(made is not g for g in given)
    with backends.device_guard(made.array):
        array, version = (made.array, made._version_counter) if owned else (copied(made.array), [0])
    move(self, made._tape_edge)
    assert self._tape_node is not None
    version[0] = self._tape_node.serial
    self.array, self._version_counter, self._cast_copies = array, version, None
    return self


def _copy_of(tensor: Tensor) -> Tensor:
    # What the tape saves of it stays as it is.
    with backends.device_guard(tensor.array):
        out = Tensor(copied(tensor.array))
    out._tape_edge = tensor._tape_edge
    return out
