"""Forward-mode derivatives by dual tensors; PyTorch's names.

    with forward_ad.dual_level():
        out = func(forward_ad.make_dual(x, tangent))
        value, jvp = forward_ad.unpack_dual(out)

Ops within a level are recorded, and `unpack_dual` passes the tangents on from the dual tensors to the one it is given.
So a dual tensor requires grad, and no tangent passes a block of `no_grad`. `ampkit.func.jvp` is the same for functions.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple
from weakref import ref

from ..base.errors import DTypeError, ShapeError, StateError
from ..core.arguments import shown
from ..core.autograd.forward_pass import push_forward
from ..core.autograd.grad_mode import enable_grad
from ..core.autograd.views import placed_at
from ..core.tensor import Edge, Tensor
from ..ops.argument_checks import check_all

__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]


class UnpackedDualTensor(NamedTuple):
    """What `unpack_dual` returns: the value, and its tangent or None."""

    primal: Tensor
    tangent: Tensor | None


class _Level:
    """An open level: its dual tensors and their tangents, and whether these can be differentiated."""

    def __init__(self) -> None:
        self.duals: list[ref[Tensor]] = []
        self.edges: list[Edge] = []  # where each stood on the tape when it was made
        self.tangents: list[Tensor] = []
        self.traced = False
        self.recording = enable_grad()


_level: ContextVar[_Level | None] = ContextVar("ampkit.forward_ad", default=None)


def enter_dual_level() -> int:
    """Open a level, in which dual tensors can be made. -> its number, 0. Raises StateError within another level."""
    if _level.get() is not None:
        raise StateError("dual_level", "no level around it", "a nested one", "nest ampkit.func.jvp instead")
    level = _Level()
    level.recording.__enter__()
    _level.set(level)
    return 0


def exit_dual_level(*, level: int | None = None) -> None:
    """Close the level; its dual tensors have no tangents any more."""
    _open("exit_dual_level").recording.__exit__(None, None, None)
    _level.set(None)


class dual_level:
    """A context manager: `enter_dual_level` and `exit_dual_level`."""

    def __enter__(self) -> int:
        return enter_dual_level()

    def __exit__(self, *error: object) -> None:
        exit_dual_level()


def make_dual(tensor: Tensor, tangent: Tensor, *, level: int | None = None) -> Tensor:
    """A tensor with the values of `tensor` that carries a tangent of its shape and dtype.

    A change in place of one of them shows in both. Raises StateError outside of a level and for a tangent that is a
    dual tensor, DTypeError for dtypes and ShapeError for shapes that differ.
    """
    opened = _open("make_dual")
    if not tensor.is_floating_point() or tangent.dtype != tensor.dtype:
        raise DTypeError("make_dual", "a float tensor and a tangent of its dtype", f"{tensor.dtype}, {tangent.dtype}")
    if tangent.shape != tensor.shape:
        raise ShapeError("make_dual", f"a tangent of shape {list(tensor.shape)}", f"shape {list(tangent.shape)}")
    if unpack_dual(tangent).tangent is not None:
        raise StateError("make_dual", "a tangent without a tangent", "a dual tensor", "nest ampkit.func.jvp instead")
    if tensor.requires_grad:
        dual = tensor.view_as(tensor)
    else:  # and no view of it, as a view of a leaf that requires grad cannot change in place
        start: Any = tensor.detach().requires_grad_()._tape_edge
        dual = placed_at(tensor, start)
    edge: Any = dual._tape_edge
    opened.duals.append(ref(dual))
    opened.edges.append(edge)
    opened.tangents.append(tangent)
    opened.traced |= tensor.requires_grad or tangent.requires_grad
    return dual


def unpack_dual(tensor: Tensor, *, level: int | None = None) -> UnpackedDualTensor:
    """(value, tangent) of a tensor: tangent None where it depends on no dual tensor, or outside of a level.

    Of a dual tensor that has not changed, the tangent is the one that it was made with. The value shares the tensor's
    memory; it requires grad if a tensor or a tangent of the level does.
    """
    if not isinstance(tensor, Tensor):
        raise DTypeError("unpack_dual", "a Tensor", shown(tensor))
    opened = _level.get()
    if opened is None or not opened.duals or not tensor.requires_grad:
        return UnpackedDualTensor(tensor, None)
    (found,) = push_forward([tensor], opened.edges, opened.tangents, opened.traced)
    if found is not None and all(dual() is not tensor for dual in opened.duals):
        found = found.clone() if any(found is one for one in opened.tangents) else found  # memory of its own
    return UnpackedDualTensor(tensor.view_as(tensor) if opened.traced else tensor.detach(), found)


def _open(where: str) -> _Level:
    level = _level.get()
    if level is None:
        raise StateError(where, "a level around it", "none", "with forward_ad.dual_level(): ...")
    return level


check_all(globals())
