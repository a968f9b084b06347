"""Shards: layers computed in as many parts as a script says, of the same shapes on any number of ranks.

Each rank computes its shards one after the other. Activations between divided layers are LocalShards: a call with one
is a call for each shard. What is a sum over shards is added in one binary tree, first those of a rank, then over the
ranks (docs/decisions/0045-parts-of-a-model-on-ranks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ... import backends
from ...autograd import Function
from ...backends import Array
from ...base.array_kinds import Absent, on_device
from ...base.dtypes import DType, accumulator
from ...base.errors import DTypeError, StateError
from ...core import random
from ...core.autograd.backward_pass import BackwardPass
from ...core.autograd.grad_mode import is_grad_enabled
from ...core.autograd.node import Node, WideNode
from ...core.casts import cast
from ...core.fp_errors import ignore_fp_errors
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ..fsdp.full_parameter import FullParameter
from ..fsdp.group import stand_in
from ..process_group import ProcessGroup
from ..reduction import in_tree


class Division(NamedTuple):
    """So many shards, a power of 2, of which each rank of `group` has consecutive ones; None: this process has all."""

    group: ProcessGroup | None
    shards: int

    def __deepcopy__(self, memo: dict[int, Any]) -> Division:  # averages of models copy them
        return self

    @property
    def each(self) -> int:
        """How many shards a rank has."""
        return self.shards // (1 if self.group is None else self.group.size())

    @property
    def mine(self) -> range:
        """The numbers of this rank's shards."""
        first = 0 if self.group is None else self.group.rank() * self.each
        return range(first, first + self.each)

    def bounds(self, length: int) -> list[int]:
        """Where the shards of an axis begin, and its end: equal parts, the last one shorter where need be."""
        most = -(-length // self.shards)
        return [min(length, most * number) for number in range(self.shards + 1)]


class LocalShards:
    """This rank's shards of an activation, each a Tensor. A function, method or operator is called for each shard.

    `shape` and other attributes are those of the first shard. Random numbers are drawn for each by its number, so that
    masks of dropout do not depend on the ranks.
    """

    __slots__ = ("__weakref__", "first", "tensors")

    def __init__(self, tensors: Sequence[Any], first: int):
        self.tensors, self.first = list(tensors), first

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return for_each(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"LocalShards has no attribute {name!r}")
        found = getattr(Tensor, name)
        if callable(found):
            return lambda *args, **kwargs: for_each(found, (self, *args), kwargs)
        return getattr(self.tensors[0], name)

    def __repr__(self) -> str:
        return f"LocalShards({len(self.tensors)} of shape {tuple(self.shape)}, from number {self.first})"

    def _value(self, *args: Any) -> Any:
        got = "shards of one between layers that ranks divide"
        raise DTypeError("LocalShards", "a Tensor to read values of, or to write to", got)

    __float__ = __int__ = __bool__ = __index__ = __array__ = __iter__ = __len__ = __setitem__ = _value


def _operator(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)
    return lambda *operands: for_each(method, operands, {})


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul"):
    setattr(LocalShards, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(LocalShards, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("neg", "abs", "eq", "ne", "lt", "le", "gt", "ge", "getitem"):
    setattr(LocalShards, f"__{_name}__", _operator(f"__{_name}__"))


def for_each(function: Any, args: Any, kwargs: Any) -> Any:
    """What `function` gives for each shard of the LocalShards among its arguments; other arguments are the same."""
    given = next(each for each in _flat((args, kwargs)) if isinstance(each, LocalShards))
    state, found = random.default.state(), []
    stream: random.Stream | None = None
    for place in range(len(given.tensors)):
        stream = random.apart(given.first + place, state)
        with random.drawing_from(stream):
            found.append(function(*_of_shard(args, place), **_of_shard(kwargs, place)))
    if stream is not None and stream.call != state[1]:
        random.default.restore((state[0], stream.call))
    return _joined(found, given.first)


def _flat(values: Any) -> Any:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, list | tuple | dict):
            yield from _flat(value)
        else:
            yield value


def _of_shard(values: Any, place: int) -> Any:
    if isinstance(values, LocalShards):
        return values.tensors[place]
    if isinstance(values, dict):
        return {key: _of_shard(value, place) for key, value in values.items()}
    return type(values)([_of_shard(v, place) for v in values]) if type(values) in (list, tuple) else values


def _joined(found: list[Any], first: int) -> Any:
    if isinstance(found[0], Tensor):
        return LocalShards(found, first)
    if type(found[0]) in (list, tuple):
        return type(found[0])([_joined(list(each), first) for each in zip(*found, strict=True)])
    return found[0]


# sums and copies


@ignore_fp_errors()
def _total(arrays: Sequence[Array], division: Division, bias: Array | None = None) -> Array:
    """The sum over all shards in the accumulator dtype, rounded once; then that of it and a bias. All ranks call it."""
    dtype: DType = arrays[0].dtype
    with backends.device_guard(arrays[0]):
        wide = accumulator(dtype)
        total = arrays[0] if len(arrays) == 1 else in_tree([cast(array, wide) for array in arrays], np.add)
        if len(arrays) == 1 or not total.flags.c_contiguous:
            total = total.copy(order="C")
        if division.group is not None:
            division.group.all_reduce_array(total, tree=True)
        total = cast(total, dtype)  # before the bias, too, as 16 bits are what ranks send
        return total if bias is None else cast(cast(total, wide) + cast(bias, wide), dtype)


class _Copied(Function):
    """A tensor for each shard, whose gradients are added up."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, division: Division) -> tuple[Tensor, ...]:
        ctx.division = division
        return tuple([whole.detach() for _ in division.mine])

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Any, ...]:
        return Tensor(_total([dy.array for dy in dys], ctx.division)), None


class _Summed(Function):
    """The sum of terms of all shards, and of a bias, each of which gets the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, division: Division, bias: Tensor | None, *terms: Tensor) -> Tensor:
        ctx.count = len(terms)
        added = None if bias is None else bias.array
        return Tensor(_total([term.array for term in terms], division, added))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        return None, dy if ctx.needs_input_grad[1] else None, *[dy] * ctx.count


class _Gathered(Function):
    """The shards of all ranks joined along the last axis, of a `length` in all."""

    @staticmethod
    def forward(ctx: Any, division: Division, length: int, *parts: Tensor) -> Tensor:
        bounds = division.bounds(length)
        ctx.parts = [slice(bounds[number], bounds[number + 1]) for number in division.mine]
        with backends.device_guard(parts[0].array):
            local = np.concatenate([part.array for part in parts], -1)
            if division.group is None or division.group.size() == 1:
                return Tensor(local)
            columns = np.moveaxis(local, -1, 0).copy(order="C")
            size = int(np.prod(columns.shape[1:], dtype=np.int64))
            whole = backends.backend_of(local).empty((length, *columns.shape[1:]), local.dtype)
            begins = [bound * size for bound in bounds[:: division.each]]
            division.group.gather_ranges(columns.reshape(-1), whole.reshape(-1), begins)
            return Tensor(np.moveaxis(whole, 0, -1).copy(order="C"))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        with backends.device_guard(dy.array):
            return None, None, *[Tensor(dy.array[..., part].copy(order="C")) for part in ctx.parts]


def copied(whole: Tensor, division: Division) -> Any:
    """`whole` for each of this rank's shards; its gradient is the sum of those of all shards."""
    return LocalShards(_Copied.apply(whole, division), division.mine.start)


def summed(terms: Any, division: Division, bias: Tensor | None = None) -> Tensor:
    """The sum of the terms of all shards, and a bias [last axis], on every rank."""
    found: Tensor = _Summed.apply(division, bias, *terms.tensors)
    return found


def gathered(parts: Any, division: Division, length: int) -> Tensor:
    """The parts of all shards, joined along the last axis to its `length`, on every rank."""
    found: Tensor = _Gathered.apply(division, length, *parts.tensors)
    return found


# parts of parameters


class Cut(NamedTuple):
    """How this rank's part of a parameter is cut into shards: along `dim`, each of `blocks` from bounds to bounds."""

    dim: int
    blocks: int
    bounds: tuple[int, ...]
    first: int  # the number of the first shard

    def of(self, array: Array, place: int) -> Array:
        """A shard of the part, in memory in one piece."""
        begin, end = self.bounds[place : place + 2]
        if len(self.bounds) == 2:
            return array
        if self.dim == 0 and self.blocks == 1:
            return array[begin:end]
        with backends.device_guard(array):
            return self._in_blocks(array)[self._index(begin, end)].copy(order="C").reshape(self.shape(array, place))

    def shape(self, array: Any, place: int) -> tuple[int, ...]:
        """The shape of a shard."""
        found, (begin, end) = list(array.shape), self.bounds[place : place + 2]
        found[self.dim] = (end - begin) * self.blocks
        return tuple(found)

    def joined(self, shards: Sequence[Array | None], like: Any) -> Array:
        """The part, of the shape of `like`, from its shards; zeros for None."""
        if len(shards) == 1 and shards[0] is not None:
            return shards[0]
        found = next(each for each in shards if each is not None)
        backend = backends.backend_of(found)
        with backends.device_guard(found):
            made = (backend.zeros if any(each is None for each in shards) else backend.empty)(like.shape, found.dtype)
            for place, each in enumerate(shards):
                if each is not None:
                    target = self._in_blocks(made)[self._index(*self.bounds[place : place + 2])]
                    target[...] = each.reshape(target.shape)
        return made

    def _in_blocks(self, array: Array) -> Array:
        return array.reshape(*array.shape[: self.dim], self.blocks, -1, *array.shape[self.dim + 1 :])

    def _index(self, begin: int, end: int) -> tuple[slice, ...]:
        return (*(slice(None),) * (self.dim + 1), slice(begin, end))


class _Join:
    """The op of a node whose outputs are the shards of a parameter: their gradients are those of its parts."""

    name = "shards"

    def __init__(self, cut: Cut, like: Any):
        self.cut, self.like = cut, like

    def vjp(self, node: Node, dys: list[Any], needs: Any, backward_pass: BackwardPass) -> tuple[Any, ...]:
        return (self.cut.joined(dys, self.like),)

    def replay(self, *given: Any) -> Any:
        raise StateError("backward", "first derivatives", "second ones of layers in shards")

    jvp = replay

    def needs(self, node: Node) -> tuple[DType | None, ...]:
        return (None,)


class _ShardParameter(FullParameter):
    """A shard of a parameter. Its values, or a copy in 16 bits, are those of the parameter when an op reads them."""

    __slots__ = ()
    _whole: Any  # the parameter
    _of: Callable[[Array], Array]  # the shard of an array like it

    def copy_in(self, dtype: DType, keep: bool) -> Array:
        if dtype == self._array.dtype:
            return self.array
        return self._of(self._whole.copy_in(dtype, keep))


def parts_of(parameter: Any, cut: Cut) -> Any:
    """This rank's shards of a parameter, for ops; their gradients come unrounded, as that of a parameter does."""
    held, node = parameter._array, None
    if is_grad_enabled() and parameter.requires_grad:
        node = WideNode(_Join(cut, held), (parameter._tape_edge,), ())
        places = range(len(cut.bounds) - 1)
        node.outputs = tuple([(cut.shape(held, place), parameter._grad_dtype()) for place in places])
    return LocalShards([_part(parameter, cut, node, i) for i in range(len(cut.bounds) - 1)], cut.first)


def _part(parameter: Any, cut: Cut, node: Any, place: int) -> Parameter:
    held = parameter._array
    like = stand_in(on_device(held), cut.shape(held, place), held.dtype)
    made: Any = _ShardParameter(Tensor(like), False)
    made._whole, made._of = parameter, partial(cut.of, place=place)
    made._hold(Absent(like, backends.backend_of(like), lambda: made._hold(made._of(parameter.array))))
    made._version_counter, made._dotted_name = parameter._version_counter, parameter._dotted_name
    made._tape_edge = None if node is None else (node, place, *node.outputs[place])
    return made
