"""What the tape has saved of full parameters, let go of after a forward and found again in backward.

A node keeps the arrays that its backward reads, weights among them, and so would keep every full parameter. In their
place it gets a description, from which backward gathers the parameters anew. Found are the arrays that lie in the
memory of the parameters or of their casts to other dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ... import backends
from ...backends import Array
from ...base.array_kinds import Absent
from ...base.dtypes import DType
from ...core.autograd.node import Node
from ...core.autograd.reachable import nodes_below
from ...core.autograd.saved import Saved
from ...core.autograd.saved_hooks import pack_items
from ...core.storage import address
from ...core.tensor import Tensor
from .group import Member, ShardedGroup, need_same_rows


class _Weight(NamedTuple):
    """A saved array: the member in whose `full`, cast to `dtype`, it lies, and where."""

    member: Member
    dtype: DType
    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    versions: list[int]


def pack_weights(group: ShardedGroup, outputs: Iterable[Tensor], since: int, unshard: Callable[[], None]) -> None:
    """Replace what nodes recorded after `since` saved of the group's full parameters; `unshard` gathers them again."""
    memory = _memory(group)
    versions = group.versions()

    def pack(given: Tensor) -> Any:
        found = _found(given.array, memory)
        return given if found is None else found._replace(versions=versions)

    def unpack(item: Any) -> Any:
        if not isinstance(item, _Weight):
            return item  # what `pack` left as it is
        need_same_rows(group, item.versions)
        unshard()
        return Tensor(_view(item.member.full.copy_in(item.dtype, True), item))

    roots = [node for tensor in outputs if (node := tensor._tape_node) is not None and node.serial > since]
    for node in nodes_below(roots, since):
        if type(node.saved) is Saved and node.saved.__dict__ and (names := _names(node, memory)):
            pack_items(node, names, (pack, unpack))


_Memory = list[tuple[int, int, Member, DType, Array]]  # first byte, byte behind the last, whose, in which dtype


def _memory(group: ShardedGroup) -> _Memory:
    found = []
    for member in group.members:
        casts = [array for _, array in (member.full._cast_copies or {}).values()]
        for array in (member.full._array, *casts):
            if type(array) is not Absent and array.flags.c_contiguous and array.size:
                found.append((address(array), address(array) + array.nbytes, member, array.dtype, array))
    return found


def _names(node: Node, memory: _Memory) -> list[str]:
    def is_weight(value: Any) -> bool:
        return backends.is_array(value) and _found(value, memory) is not None

    return [
        name
        for name, value in vars(node.saved).items()
        if is_weight(value)
        or (type(value) is tuple and all(map(backends.is_array, value)) and any(map(is_weight, value)))
    ]


def _found(array: Array, memory: _Memory) -> _Weight | None:
    first = address(array)
    for begin, end, member, dtype, whole in memory if first else ():
        if begin <= first < end and array.dtype == dtype and (_is_cpu(array) or _is_plain(array, whole, first - begin)):
            return _Weight(member, dtype, first - begin, array.shape, array.strides, [])
    return None


def _is_cpu(array: Array) -> bool:
    return isinstance(array, np.ndarray)


def _is_plain(array: Array, whole: Array, begin: int) -> bool:
    # Of a GPU's arrays those that are all of a parameter, or its transpose.
    same = (whole.shape, whole.strides), (whole.shape[::-1], whole.strides[::-1])
    return begin == 0 and (array.shape, array.strides) in same


def _view(array: Array, item: _Weight) -> Array:
    if array.shape == item.shape and array.strides == item.strides and not item.begin:
        return array
    if not _is_cpu(array):
        return array.T
    flat = array.reshape(-1)[item.begin // array.itemsize :]
    return np.lib.stride_tricks.as_strided(flat, item.shape, item.strides, writeable=False)
