"""DTensor: a tensor of which each rank of a mesh has a local one, a part, a copy or a term; PyTorch's name.

Operations act on the local tensors, after collectives where the placements of the operands do not fit each other, and
say how the result lies (see propagation.py). The tape is that of the local tensors: the gradient of a part is the part
of the gradient, that of a copy or of a term the whole one.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from ...base.errors import ArgumentError, DTypeError, ShapeError
from ...core.tensor import Tensor
from ...core.tensor_base import Shape
from ..device_mesh import DeviceMesh, Partial, Placement, Replicate, Shard
from ..fsdp.sharded_tensor import ShardedTensor
from ..process_group import need_tensor
from .redistribute import redistribute

_WHERE = "DTensor"


class Spec(NamedTuple):
    """How a tensor of `shape` lies: a placement along each dimension of `mesh`, axes counted from 0."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's local tensor."""
        place = self.mesh.get_coordinate()
        assert place is not None
        found = list(self.shape)
        for dim, placement in enumerate(self.placements):  # an axis that several dimensions cut is cut in their order
            if isinstance(placement, Shard):
                length, most = found[placement.dim], -(-found[placement.dim] // self.mesh.size(dim))
                found[placement.dim] = min(length, most * (place[dim] + 1)) - min(length, most * place[dim])
        return tuple(found)


def spec_of(where: str, mesh: Any, placements: Any, shape: Sequence[int]) -> Spec:
    """The Spec of what a caller gave; None as placements is Replicate() along all dimensions."""
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentError(where, "a DeviceMesh", f"a {type(mesh).__name__}")
    given = [Replicate()] * mesh.ndim if placements is None else list(placements)
    if len(given) != mesh.ndim or not all(isinstance(each, Shard | Replicate | Partial) for each in given):
        needs = f"{mesh.ndim} placements: Replicate(), Shard(dim) or Partial()"
        raise ArgumentError(where, needs, repr(placements))
    found = list[Placement]()
    for each in given:
        if isinstance(each, Shard):
            if not -len(shape) <= each.dim < len(shape):
                raise ShapeError(where, f"a tensor with an axis {each.dim}", f"shape {tuple(shape)}")
            each = Shard(each.dim % len(shape))
        elif isinstance(each, Partial) and each.reduce_op != "sum":
            raise ArgumentError(where, 'Partial("sum")', repr(each))
        found.append(each)
    return Spec(mesh, tuple(found), tuple(shape))


def moved(local: Tensor, source: Spec, targets: Sequence[Placement]) -> Tensor:
    """The local tensor of the placements `targets`; all ranks of the mesh call it."""
    mesh, now = source.mesh, list(source.placements)
    changed = [was != target for was, target in zip(now, targets, strict=True)]
    for dim, (was, target) in enumerate(zip(now, targets, strict=True)):
        if changed[dim] and isinstance(target, Partial):
            raise ArgumentError("redistribute", "targets Replicate() or Shard(dim)", f"{target} from {was}")
        axes = {p.dim for p in (was, target) if changed[dim] and isinstance(p, Shard)}
        for later in range(dim + 1, mesh.ndim):  # parts of parts are joined before the parts
            changed[later] |= any(isinstance(p, Shard) and p.dim in axes for p in (now[later], targets[later]))

    def length(axis: int, dim: int) -> int:  # of what the ranks along `dim` cut
        return source._replace(placements=(*now[:dim], *[Replicate()] * (mesh.ndim - dim))).local_shape[axis]

    for dim in reversed(range(mesh.ndim)):
        was = now[dim]
        if changed[dim] and isinstance(was, Shard):
            local = redistribute(local, mesh.get_group(dim), was, Replicate(), length=length(was.dim, dim))
            now[dim] = Replicate()
    for dim, target in enumerate(targets):
        if changed[dim] and now[dim] != target:
            count = length(target.dim, dim) if isinstance(target, Shard) else None
            local = redistribute(local, mesh.get_group(dim), now[dim], target, length=count)
            now[dim] = target
    return local


def with_gradients(local: Tensor, spec: Spec, gradients: Sequence[Placement]) -> Tensor:
    """A local tensor whose gradients are summed where `gradients` has Partial() and `spec` Replicate()."""
    for dim, (placement, gradient) in enumerate(zip(spec.placements, gradients, strict=True)):
        if isinstance(placement, Replicate) and isinstance(gradient, Partial):
            local = redistribute(local, spec.mesh.get_group(dim), placement, placement, gradient)
    return local


class _Kind(ABCMeta):
    """Lets the parameters of sharded and divided layers be DTensors, too."""


class DTensor(metaclass=_Kind):
    """A tensor that the ranks of `device_mesh` have together. `shape` is of the whole tensor.

    Made by `distribute_tensor` and `from_local`. The operations on it are elementwise ones, products of matrices, sums
    and means, softmax, layer norms, and changes of the order and lengths of axes, by methods, operators or functions.
    Others raise DTypeError with `full_tensor()` as the cure, and so do plain tensors beside it, unless they have no
    axes. All ranks of the mesh make the same calls.
    """

    __slots__ = ("__weakref__", "_local", "_spec")
    handler: Callable[..., Any]  # of functions that it is given to, see propagation.py

    def __init__(self, local: Tensor, spec: Spec):
        self._local, self._spec = local, spec

    @staticmethod
    def from_local(
        local_tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None, *,
        run_check: bool = False, shape: Sequence[int] | None = None, stride: Any = None,
    ) -> DTensor:  # fmt: skip
        """The DTensor of which this rank has `local_tensor`; gradients flow to it.

        shape: of the whole tensor, where the ranks do not divide it evenly. run_check and stride have no effect:
        nothing is sent. Raises ShapeError for a local tensor of another shape than the placements give this rank.
        """
        need_tensor("from_local", local_tensor)
        spec = spec_of("from_local", device_mesh, placements, local_tensor.shape)
        lengths = list(local_tensor.shape)
        for dim, placement in enumerate(spec.placements):
            if isinstance(placement, Shard):
                lengths[placement.dim] *= device_mesh.size(dim)
        spec = spec._replace(shape=tuple(lengths if shape is None else shape))
        if len(spec.shape) != local_tensor.ndim or spec.local_shape != tuple(local_tensor.shape):
            needs = f"a local tensor {list(spec.local_shape)} of {list(spec.shape)} in all"
            raise ShapeError("from_local", needs, str(list(local_tensor.shape)))
        return DTensor(local_tensor, spec)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """This rank's local tensor, on the tape. grad_placements: of its gradient, Partial() where it is a term."""
        if grad_placements is None:
            return self._local
        given = spec_of("to_local", self.device_mesh, grad_placements, self.shape).placements
        for placement, gradient in zip(self.placements, given, strict=True):
            if gradient != placement and not (isinstance(placement, Replicate) and isinstance(gradient, Partial)):
                if isinstance(placement, Partial) and isinstance(gradient, Replicate):
                    continue
                raise ArgumentError("to_local", f"grad_placements that fit {self.placements}", repr(grad_placements))
        return with_gradients(self._local, self._spec, given)

    def redistribute(
        self, device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None, *,
        async_op: bool = False,
    ) -> DTensor:  # fmt: skip
        """The same tensor, placed otherwise; gradients come back as `self` lies. async_op has no effect.

        Raises ArgumentError for another mesh, and for Partial() where it is not so already.
        """
        if device_mesh is not None and device_mesh != self.device_mesh:
            raise ArgumentError("redistribute", f"the mesh {self.device_mesh}", repr(device_mesh))
        spec = spec_of("redistribute", self.device_mesh, placements, self.shape)
        return DTensor(moved(self._local, self._spec, spec.placements), spec)

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> Tensor:
        """The whole tensor on each rank, on the tape. grad_placements: Partial() where its gradient is a term."""
        return self.redistribute().to_local(grad_placements=grad_placements)

    # what it is

    device_mesh = property(lambda self: self._spec.mesh)
    placements = property(lambda self: self._spec.placements)
    shape = property(lambda self: Shape(self._spec.shape))
    ndim = property(lambda self: len(self._spec.shape))
    dtype = property(lambda self: self._local.dtype)
    device = property(lambda self: self._local.device)
    requires_grad = property(lambda self: self._local.requires_grad)
    is_leaf = property(lambda self: self._local.is_leaf)
    T = property(lambda self: self.t())

    @property
    def grad(self) -> DTensor | None:
        """The gradient, placed as this tensor; a whole one where this tensor is of terms."""
        found = self._local.grad
        placed = [Replicate() if isinstance(each, Partial) else each for each in self.placements]
        return None if found is None else DTensor(found, self._spec._replace(placements=tuple(placed)))

    def size(self, dim: int | None = None) -> Any:
        """The shape of the whole tensor, or the length of an axis."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements of the whole tensor."""
        return prod(self.shape)

    def is_floating_point(self) -> bool:
        return self._local.is_floating_point()

    def requires_grad_(self, requires_grad: bool = True) -> DTensor:
        """Let gradients be kept in `grad`; -> self."""
        self._local.requires_grad_(requires_grad)
        return self

    def backward(self, gradient: DTensor | None = None, retain_graph: bool | None = None) -> None:
        """The gradients of this tensor, of one element, or times `gradient`, which lies as this tensor's `grad`."""
        if gradient is None and self.numel() != 1:
            raise ShapeError("backward", "a tensor of one element, or a gradient", str(list(self.shape)))
        self._local.backward(None if gradient is None else gradient.to_local(), retain_graph=retain_graph)

    def __repr__(self) -> str:
        return f"DTensor(local_tensor={self._local!r}, device_mesh={self.device_mesh!r}, placements={self.placements})"

    def __len__(self) -> int:
        return self.shape[0]

    # what is computed from it

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.handler(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        method = None if name.startswith("_") else getattr(Tensor, name, None)
        if not callable(method):
            raise AttributeError(
                f"DTensor has no attribute {name!r}; full_tensor() is a Tensor, to_local() this rank's"
            )
        return lambda *args, **kwargs: DTensor.handler(method, (self, *args), kwargs)

    def _value(self, *args: Any) -> Any:
        got = "a DTensor, whose values ranks have together"
        raise DTypeError(_WHERE, "a Tensor to read values of", got, "x.full_tensor() is one")

    __float__ = __int__ = __bool__ = __index__ = __array__ = __iter__ = __getitem__ = __setitem__ = _value


DTensor.register(ShardedTensor)
