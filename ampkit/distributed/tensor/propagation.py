"""What operations do with DTensors: where their operands have to lie, and how the result does; as PyTorch's do.

Along each dimension of the mesh by itself: a function of local tensors is one of the whole tensors where no axis that
it mixes is cut, and where terms go through a linear operation. Elsewhere operands are redistributed before. The
gradient of an operand that each rank has whole is a sum of terms where the result is not whole, and is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import ops
from ...base.errors import ArgumentError, DTypeError, ShapeError
from ...core.op import Op
from ...core.tensor import Tensor
from ..device_mesh import Partial, Placement, Replicate, Shard
from ..fsdp.sharded_tensor import ShardedTensor
from .dtensor import DTensor, Spec, moved, with_gradients

Placements = Sequence[Placement]
REPLICATED, TERMS = Replicate(), Partial()
_CURE = "x.full_tensor() is a Tensor, to_local() this rank's"
_handlers: dict[str, Callable[..., Any]] = {}


def handle(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function or method of tensors on DTensors. Raises DTypeError for one that is not defined here."""
    name = str(getattr(func, "name", None) or getattr(func, "__name__", "") or func)
    handler = _handlers.get(name)
    function = func if isinstance(func, Op) else getattr(ops, name, None)
    if handler is None and isinstance(function, Op) and function.__module__.startswith("ampkit.ops.pointwise."):
        handler = _elementwise
    if handler is None or kwargs.get("out") is not None:
        raise DTypeError(name, "Tensors", "a DTensor, for which it is not defined", _CURE)
    return handler(func, *args, **kwargs)


def _on(*names: str) -> Callable[[Any], Any]:
    def register(handler: Any) -> Any:
        _handlers.update(dict.fromkeys(names, handler))
        return handler

    return register


def _operand(name: str, value: Any) -> Any:
    """A DTensor for what is one, numbers and tensors without axes as they are."""
    if isinstance(value, ShardedTensor):
        mesh, sharding = value.device_mesh, value._sharding
        if mesh is None or sharding.of is not None or sharding.blocks > 1:
            raise DTypeError(name, "parameters cut along one axis, on a DeviceMesh", "one cut otherwise", _CURE)
        return DTensor(value, Spec(mesh, value.placements, value.full_shape))
    if isinstance(value, Tensor) and value.ndim:
        got = "a Tensor beside one"
        raise DTypeError(name, "DTensors", got, "distribute_tensor(x, mesh) makes one of it, copies by default")
    return value


def _local(x: DTensor, targets: Placements, result: Placements) -> Tensor:
    """The local tensor of `x` placed as `targets`, for a result that is placed as `result`."""
    local = moved(x._local, x._spec, targets)
    terms = [TERMS if not isinstance(each, Replicate) else each for each in result]
    return with_gradients(local, x._spec._replace(placements=tuple(targets)), terms)


def _same_mesh(name: str, tensors: Sequence[DTensor]) -> Any:
    mesh = tensors[0].device_mesh
    if other := [x for x in tensors if x.device_mesh != mesh]:
        raise ArgumentError(name, f"operands on one mesh, {mesh}", repr(other[0].device_mesh))
    return mesh


def _name(func: Any) -> str:
    return str(getattr(func, "name", None) or func.__name__)


# elementwise


@_on("div", "where")  # functions before their ops
def _elementwise(func: Any, *args: Any, **kwargs: Any) -> DTensor:
    name = _name(func)
    args = tuple([_operand(name, each) for each in args])
    kwargs = {key: _operand(name, each) for key, each in kwargs.items()}
    found = [each for each in (*args, *kwargs.values()) if isinstance(each, DTensor)]
    mesh, shape = _same_mesh(name, found), tuple(np.broadcast_shapes(*(x.shape for x in found)))
    scalars = any(isinstance(each, (int, float, Tensor)) for each in args[:2])
    columns = [_elementwise_along(name, dim, found, args, scalars, shape) for dim in range(mesh.ndim)]
    result = tuple([column[-1] for column in columns])
    targets = {id(x): [column[place] for column in columns] for place, x in enumerate(found)}

    def local(each: Any) -> Any:
        return _local(each, targets[id(each)], result) if isinstance(each, DTensor) else each

    made = func(*map(local, args), **{key: local(each) for key, each in kwargs.items()})
    spec = Spec(mesh, result, shape)
    if not isinstance(made, Tensor) or tuple(made.shape) != spec.local_shape:
        raise DTypeError(name, "Tensors", "a DTensor, of whose axes it mixes some", _CURE)
    return DTensor(made, spec)


def _elementwise_along(
    name: str, dim: int, found: list[DTensor], args: tuple[Any, ...], scalars: bool, shape: tuple[int, ...]
) -> list[Placement]:
    # The placements of the operands, and at last of the result.
    given = [x.placements[dim] for x in found]
    for x, placement in zip(found, given, strict=True):
        if isinstance(placement, Shard):
            axis = placement.dim - x.ndim  # from behind, as shapes are broadcast
            if x.shape[axis] == shape[axis] and shape[axis] != 1:
                cut = [x.ndim >= -axis and x.shape[axis] == shape[axis] for x in found]
                placed = [Shard(axis + x.ndim) if has else REPLICATED for x, has in zip(found, cut, strict=True)]
                return [*placed, Shard(axis + len(shape))]
    if _is_linear(name, [isinstance(placement, Partial) for placement in given], found, args, scalars):
        return [*(TERMS if isinstance(each, Partial) else REPLICATED for each in given), TERMS]
    return [REPLICATED] * (len(found) + 1)


def _is_linear(name: str, terms: list[bool], found: list[DTensor], args: tuple[Any, ...], scalars: bool) -> bool:
    """Whether the sum of what the terms of operands give is what their sums give."""
    if name in ("add", "sub"):
        return all(terms) and not scalars
    if name == "mul":
        return sum(terms) == 1
    if name == "div":
        return sum(terms) == 1 and args[0] is found[terms.index(True)] and len(args) < 3
    return all(terms) and name in ("neg", "clone")


@_on("to", "float", "double", "half", "bfloat16", "detach", "contiguous", "type_as")
def _kept(func: Any, x: DTensor, *args: Any, **kwargs: Any) -> DTensor:
    made = func(x._local, *args, **kwargs)
    if made.device != x.device:
        raise ArgumentError(_name(func), f"the device of the mesh, {x.device}", str(made.device))
    return DTensor(made, x._spec)


# products


@_on("matmul", "mm", "bmm", "__matmul__")
def _matmul(func: Any, a: Any, b: Any) -> DTensor:
    return _product("matmul", ops.matmul, _operand("matmul", a), _operand("matmul", b), -2, -1)


@_on("linear")
def _linear(func: Any, input: Any, weight: Any, bias: Any = None) -> DTensor:
    x, matrix, term = (_operand("linear", each) for each in (input, weight, bias))
    return _product("linear", ops.linear, x, matrix, -1, -2, term)


def _product(name: str, op: Any, a: Any, b: Any, inner: int, column: int, bias: Any = None) -> DTensor:
    # inner, column: the axes of `b` that are summed over, and that the result has last.
    if not (isinstance(a, DTensor) and isinstance(b, DTensor)) or a.ndim < 2 or b.ndim < 2:
        raise ShapeError(name, "two DTensors of at least 2 axes", ", ".join(_said(each) for each in (a, b)))
    if b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        raise ShapeError(name, "a matrix, or matrices for the same leading axes", f"{_said(a)} and {_said(b)}")
    if a.shape[-1] != b.shape[inner]:
        raise ShapeError(name, f"{a.shape[-1]} rows, as the first has columns", _said(b))
    mesh = _same_mesh(name, [a, b, *([] if bias is None else [bias])])
    rows = [_product_along(a, b, dim, inner % b.ndim, column % b.ndim) for dim in range(mesh.ndim)]
    result = [row[2] for row in rows]
    operands = [_local(a, [row[0] for row in rows], result), _local(b, [row[1] for row in rows], result)]
    spec = Spec(mesh, tuple(result), (*a.shape[:-1], b.shape[column]))
    if bias is None or any(isinstance(each, Partial) for each in result):
        made = DTensor(op(*operands), spec)
        return made if bias is None else _elementwise(ops.add, made, bias)
    last = [Shard(0) if each == Shard(a.ndim - 1) else REPLICATED for each in result]
    return DTensor(op(*operands, _local(bias, last, result)), spec)


def _product_along(a: DTensor, b: DTensor, dim: int, inner: int, column: int) -> tuple[Placement, Placement, Placement]:
    # The placements of both operands and of the result along a dimension of the mesh.
    first, second, last = a.placements[dim], b.placements[dim], a.ndim - 1
    if isinstance(first, Shard) and first.dim != last:
        return first, first if b.ndim > 2 and first.dim < last - 1 else REPLICATED, first
    if isinstance(second, Shard) and second.dim == column:
        return REPLICATED, second, Shard(last)
    if isinstance(second, Shard) and second.dim != inner:  # of the leading axes
        return second, second, second
    if isinstance(first, Shard) or isinstance(second, Shard):
        return Shard(last), Shard(inner), TERMS
    if isinstance(first, Partial):
        return TERMS, REPLICATED, TERMS
    if isinstance(second, Partial):
        return REPLICATED, TERMS, TERMS
    return REPLICATED, REPLICATED, REPLICATED


def _said(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, DTensor) else f"a {type(value).__name__}"


# along axes


@_on("sum", "mean")
def _summed(func: Any, x: DTensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> DTensor:
    name = _name(func)
    given = range(x.ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else [dim]
    axes = {_axis(name, x, each) for each in given}
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    result = list[Placement]()
    for each in x.placements:
        inside = isinstance(each, Shard) and each.dim in axes
        if isinstance(each, Shard) and not inside:
            each = each if keepdim else Shard(kept.index(each.dim))
        result.append(TERMS if inside else each)
    shape = [1 if axis in axes else n for axis, n in enumerate(x.shape) if keepdim or axis not in axes]
    options = {} if dtype is None else {"dtype": dtype}
    local = ops.sum(x._local, sorted(axes), keepdim, **options) if x.ndim else x._local
    if name == "mean":
        local = local / int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    return DTensor(local, Spec(x.device_mesh, tuple(result), tuple(shape)))


def _axis(name: str, x: DTensor, axis: Any) -> int:
    if not isinstance(axis, int) or not -x.ndim <= axis < x.ndim:
        raise ShapeError(name, f"an axis from {-x.ndim} to {x.ndim - 1}", repr(axis))
    return axis % x.ndim


def _whole_along(x: DTensor, axes: set[int]) -> list[Placement]:
    # The placements of `x` with these axes whole.
    return [each if isinstance(each, Shard) and each.dim not in axes else REPLICATED for each in x.placements]


@_on("softmax", "log_softmax")
def _softmax(func: Any, x: DTensor, dim: int, *args: Any, **kwargs: Any) -> DTensor:
    placed = _whole_along(x, {_axis(_name(func), x, dim)})
    return DTensor(func(_local(x, placed, placed), dim, *args, **kwargs), x._spec._replace(placements=tuple(placed)))


@_on("layer_norm", "rms_norm")
def _normalized(func: Any, x: DTensor, normalized_shape: Any, *args: Any, **kwargs: Any) -> DTensor:
    lengths = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
    placed = _whole_along(x, set(range(x.ndim - len(lengths), x.ndim)))

    def local(value: Any) -> Any:
        found = _operand(_name(func), value)
        return _local(found, [REPLICATED] * len(placed), placed) if isinstance(found, DTensor) else found

    made = func(_local(x, placed, placed), lengths, *map(local, args), **{k: local(v) for k, v in kwargs.items()})
    return DTensor(made, x._spec._replace(placements=tuple(placed)))


# axes


@_on("transpose", "swapaxes")
def _transposed(func: Any, x: DTensor, dim0: int, dim1: int) -> DTensor:
    order = list(range(x.ndim))
    first, second = _axis("transpose", x, dim0), _axis("transpose", x, dim1)
    order[first], order[second] = second, first
    return _permuted(None, x, order)


@_on("t")
def _t(func: Any, x: DTensor) -> DTensor:
    return _permuted(None, x, list(range(x.ndim))[::-1])


@_on("permute")
def _permuted(func: Any, x: DTensor, *dims: Any) -> DTensor:
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = [_axis("permute", x, each) for each in given]
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError("permute", f"each of {x.ndim} axes once", repr(tuple(given)))
    placed = [Shard(order.index(each.dim)) if isinstance(each, Shard) else each for each in x.placements]
    shape = tuple([x.shape[axis] for axis in order])
    return DTensor(ops.permute(x._local, order), Spec(x.device_mesh, tuple(placed), shape))


@_on("unsqueeze")
def _unsqueezed(func: Any, x: DTensor, dim: int) -> DTensor:
    if not isinstance(dim, int) or not -x.ndim - 1 <= dim <= x.ndim:
        raise ShapeError("unsqueeze", f"an axis from {-x.ndim - 1} to {x.ndim}", repr(dim))
    at = dim % (x.ndim + 1)
    return _reshaped(func, x, [*x.shape[:at], 1, *x.shape[at:]])


@_on("reshape", "view")
def _reshaped(func: Any, x: DTensor, *shape: Any) -> DTensor:
    """An axis stays cut where it begins one of the new axes and the ranks divide both; else it is made whole before."""
    given = list(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
    known = int(np.prod([n for n in given if n != -1], dtype=np.int64))
    wanted = [x.numel() // max(known, 1) if n == -1 else n for n in given]
    if int(np.prod(wanted, dtype=np.int64)) != x.numel():
        raise ShapeError("reshape", f"a shape of {x.numel()} elements", repr(given))
    starts = {int(np.prod(wanted[:axis], dtype=np.int64)): axis for axis, n in enumerate(wanted) if n != 1}
    targets, result = list[Placement](), list[Placement]()
    for dim, each in enumerate(x.placements):
        if isinstance(each, Shard):
            axis = starts.get(int(np.prod(x.shape[: each.dim], dtype=np.int64)))
            count = x.device_mesh.size(dim)
            alone = sum(isinstance(p, Shard) and p.dim == each.dim for p in x.placements) == 1
            fits = axis is not None and alone and not (x.shape[each.dim] % count or wanted[axis] % count)
            targets.append(each if fits else REPLICATED)
            result.append(Shard(axis) if fits and axis is not None else REPLICATED)
        else:
            targets.append(each)
            result.append(each)
    spec = Spec(x.device_mesh, tuple(result), tuple(wanted))
    return DTensor(ops.reshape(moved(x._local, x._spec, targets), spec.local_shape), spec)


DTensor.handler = handle


def _operator(name: str, swapped: bool = False) -> Callable[..., Any]:
    function = getattr(ops, name)
    return lambda *operands: handle(function, operands[::-1] if swapped else operands, {})


for _name_of in ("add", "sub", "mul", "div", "pow", "matmul"):
    _as_operator = "truediv" if _name_of == "div" else _name_of
    setattr(DTensor, f"__{_as_operator}__", _operator(_name_of))
    setattr(DTensor, f"__r{_as_operator}__", _operator(_name_of, True))
for _name_of in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs"):
    setattr(DTensor, f"__{_name_of}__", _operator(_name_of))
