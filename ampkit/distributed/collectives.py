"""The collectives by PyTorch's names, for tensors and Python objects; they change tensors in place, without the tape.

Each is called by all ranks of a group, with tensors of equal dtypes and shapes. `group` None is all processes. With
async_op=True a collective runs in the background and returns a Work, whose `wait()` ends it; else it returns None when
it is complete. Raises DistError for ranks that call something else, or nothing within the group's time limit.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ..core.tensor import Tensor
from . import reduction
from .process_group import ProcessGroup, Work, describe, need_tensor
from .reduction import ReduceOp
from .transport import LARGEST_TAG, Call, Transport, call_site
from .world import group_or_world

__all__ = [
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "irecv", "isend", "recv", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter", "send",
]  # fmt: skip


def _call(said: str) -> Call:
    return Call(said, call_site())


def _in_place(group: ProcessGroup, tensor: Tensor, action: Callable[[Transport, Array], Any], async_op: bool) -> Any:
    """Run action(transport, the tensor's flat array), which changes it."""

    def run() -> None:
        group.on_flat(action, tensor.array)
        tensor.changed()

    return group.run(run, async_op, tensor.array)


# sums


def all_reduce(
    tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False,
    wire_dtype: Any = None,
) -> Work | None:  # fmt: skip
    """Replace `tensor` by its reduction over all ranks, with the same bits on each.

    Floats are reduced in the accumulator dtype, in rank order, and rounded once. wire_dtype: float16 or bfloat16, in
    which the values travel (docs/numerics.md has the bound of the error); None: the tensor's own.
    Raises DTypeError for bits of floats and means of integers.
    """
    here, tensor = group_or_world("all_reduce", group), need_tensor("all_reduce", tensor)
    wire = None if wire_dtype is None else dtypes.parse(wire_dtype)
    reduction.check("all_reduce", op, tensor.array.dtype, wire)
    said = f"all_reduce({op.name}, {describe(tensor.array)}{'' if wire is None else f', wire {wire.name}'})"
    call = _call(said)
    return _in_place(here, tensor, lambda via, flat: reduction.all_reduce(via, call, flat, op, wire), async_op)


def reduce(
    tensor: Tensor, dst: int = 0, op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """`all_reduce` whose result only the rank `dst` has; the tensors of the others keep their values."""
    here, tensor = group_or_world("reduce", group), need_tensor("reduce", tensor)
    reduction.check("reduce", op, tensor.array.dtype)
    to, call = here.rank_of("reduce", dst), _call(f"reduce({op.name}, {describe(tensor.array)}, to {dst})")

    def action(via: Transport, flat: Array) -> None:
        none = flat[:0]
        received = np.empty_like(flat, shape=(via.size, flat.size)) if via.rank == to else [none] * via.size
        via.exchange(call, [flat if rank == to else none for rank in range(via.size)], list(received))
        if via.rank == to:
            reduction.combined(received, op, flat)

    return _in_place(here, tensor, action, async_op)


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Reduce `input`, of as many equal parts along axis 0 as there are ranks; `output` is this rank's part of it.

    Raises ShapeError for an output of another size than a part.
    """
    here, where = group_or_world("reduce_scatter_tensor", group), "reduce_scatter_tensor"
    output, input = need_tensor(where, output), need_tensor(where, input)
    reduction.check(where, op, input.array.dtype)
    _need_parts(where, "input", input, output, here.size())
    call = _call(f"{where}({op.name}, {describe(input.array)})")

    def action(via: Transport, flat: Array) -> None:
        sent = here.flat_for(via, input.array)
        reduction.reduce_scatter(via, call, reduction.parts(sent, via.size), op, flat)

    return _in_place(here, output, action, async_op)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Reduce each tensor of `input_list`, one per rank; `output` is the one of this rank's number."""
    here = group_or_world("reduce_scatter", group)
    inputs = _need_list("reduce_scatter", "input_list", input_list, output, here.size())
    reduction.check("reduce_scatter", op, output.array.dtype)
    call = _call(f"reduce_scatter({op.name}, {describe(output.array)})")

    def action(via: Transport, flat: Array) -> None:
        sent = [here.flat_for(via, tensor.array) for tensor in inputs]
        reduction.reduce_scatter(via, call, sent, op, flat)

    return _in_place(here, output, action, async_op)


# copies


def broadcast(tensor: Tensor, src: int = 0, group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Overwrite `tensor` with that of the rank `src`."""
    here, tensor = group_or_world("broadcast", group), need_tensor("broadcast", tensor)
    source, call = here.rank_of("broadcast", src), _call(f"broadcast({describe(tensor.array)}, from {src})")
    return _in_place(here, tensor, lambda via, flat: via.broadcast(call, flat, source), async_op)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Write the input_tensor of every rank into output_tensor, one after the other along axis 0.

    Raises ShapeError for an output_tensor of another size.
    """
    here, where = group_or_world("all_gather_into_tensor", group), "all_gather_into_tensor"
    output, input = need_tensor(where, output_tensor), need_tensor(where, input_tensor)
    _need_parts(where, "output_tensor", output, input, here.size())
    call = _call(f"{where}({describe(input.array)})")

    def action(via: Transport, flat: Array) -> None:
        via.exchange(call, [here.flat_for(via, input.array)] * via.size, reduction.parts(flat, via.size))

    return _in_place(here, output, action, async_op)


def all_gather(
    tensor_list: Sequence[Tensor], tensor: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Write the `tensor` of rank r into tensor_list[r], on every rank."""
    here = group_or_world("all_gather", group)
    outputs = _need_list("all_gather", "tensor_list", tensor_list, tensor, here.size())
    return _exchange(here, f"all_gather({describe(tensor.array)})", [tensor] * here.size(), outputs, async_op)


def gather(
    tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int = 0, group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Write the `tensor` of rank r into gather_list[r] of the rank `dst`; the others give no list."""
    here, tensor = group_or_world("gather", group), need_tensor("gather", tensor)
    to = here.rank_of("gather", dst)
    received = _of_root("gather", "gather_list", gather_list, tensor, here, to)
    sent = [tensor if rank == to else None for rank in range(here.size())]
    return _exchange(here, f"gather({describe(tensor.array)}, to {dst})", sent, received, async_op)


def scatter(
    tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0, group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Overwrite the `tensor` of rank r with scatter_list[r] of the rank `src`; the others give no list."""
    here, tensor = group_or_world("scatter", group), need_tensor("scatter", tensor)
    source = here.rank_of("scatter", src)
    sent = _of_root("scatter", "scatter_list", scatter_list, tensor, here, source)
    received = [tensor if rank == source else None for rank in range(here.size())]
    return _exchange(here, f"scatter({describe(tensor.array)}, from {src})", sent, received, async_op)


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:  # fmt: skip
    """Write input_tensor_list[r] of each rank s into output_tensor_list[s] of rank r; sizes may differ by pair."""
    here = group_or_world("all_to_all", group)
    for name, tensors in (("output_tensor_list", output_tensor_list), ("input_tensor_list", input_tensor_list)):
        if len(tensors) != here.size():
            raise ShapeError("all_to_all", f"{here.size()} tensors in {name}, one per rank", str(len(tensors)))
    return _all_to_all("all_to_all", here, input_tensor_list, output_tensor_list, async_op)


def all_to_all_single(
    output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None, group: ProcessGroup | None = None, async_op: bool = False,
) -> Work | None:  # fmt: skip
    """`all_to_all` of the parts of `input` along axis 0, which become parts of `output`.

    The split sizes are lengths along axis 0, one per rank; by default all parts are equal.
    Raises ShapeError for sizes that do not sum to the length of axis 0.
    """
    here = group_or_world("all_to_all_single", group)
    sent = _split("all_to_all_single", "input", input, input_split_sizes, here.size())
    received = _split("all_to_all_single", "output", output, output_split_sizes, here.size())
    return _all_to_all("all_to_all_single", here, sent, received, async_op)


def _all_to_all(
    where: str, here: ProcessGroup, sent: Sequence[Tensor], received: Sequence[Tensor], async_op: bool
) -> Work | None:
    dtype, own, place = need_tensor(where, sent[0]).dtype, sent[here.rank()], received[here.rank()]
    if other := [tensor for tensor in (*sent, *received) if need_tensor(where, tensor).array.dtype != dtype]:
        raise DTypeError(where, f"tensors of one dtype, {dtype.name}", other[0].dtype.name)
    if own.numel() != place.numel():
        needs = f"an output of {own.numel()} elements for what rank {here.rank()} sends to itself"
        raise ShapeError(where, needs, str(place.numel()))
    return _exchange(here, f"{where}({dtype.name})", sent, received, async_op)


def _exchange(
    here: ProcessGroup, said: str, sent: Sequence[Tensor | None], received: Sequence[Tensor | None], async_op: bool
) -> Any:
    """Send sent[r] to each rank r, and write what it sends into received[r]; None is nothing."""
    call = _call(said)
    some = next(tensor for tensor in (*sent, *received) if tensor is not None).array
    via = here.transport_of(some)

    def flat(tensor: Tensor | None) -> Array:
        return here.flat_for(via, some)[:0] if tensor is None else here.flat_for(via, tensor.array)

    def run() -> None:
        outgoing, incoming = [flat(tensor) for tensor in sent], [flat(tensor) for tensor in received]
        via.exchange(call, outgoing, incoming)
        for tensor, values in zip(received, incoming, strict=True):
            if tensor is not None:
                here.store(tensor.array, values)
                tensor.changed()

    return here.run(run, async_op, some)


# messages between two ranks


def send(tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> None:
    """Send `tensor` to the rank `dst`, which calls `recv` with the same tag."""
    isend(tensor, dst, group, tag).wait()


def isend(tensor: Tensor, dst: int, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """`send` in the background; the tensor must not change before `wait()` has returned."""
    here, tensor = group_or_world("send", group), need_tensor("send", tensor)
    to, call = _other_rank("send", here, dst, tag), _call(f"send({describe(tensor.array)}, to {dst})")
    via = here.transport  # NCCL's messages have neither tags nor "from any rank"
    return here.message(via.send(call, here.flat_for(via, tensor.array), to, tag))


def recv(tensor: Tensor, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> int:
    """Overwrite `tensor` with what the rank `src`, or any rank, sends with `tag`. -> the rank that sent it."""
    return int(irecv(tensor, src, group, tag).result())


def irecv(tensor: Tensor, src: int | None = None, group: ProcessGroup | None = None, tag: int = 0) -> Work:
    """`recv` in the background."""
    here, tensor = group_or_world("recv", group), need_tensor("recv", tensor)
    source = None if src is None else _other_rank("recv", here, src, tag)
    call = _call(f"recv({describe(tensor.array)}, from {'any' if src is None else src})")
    via = here.transport
    flat = here.flat_for(via, tensor.array)
    finish = via.receive(call, flat, source, tag)

    def run() -> int:
        sender = finish()
        here.store(tensor.array, flat)
        tensor.changed()
        return here.ranks[sender]

    return here.message(run)


def barrier(group: ProcessGroup | None = None, async_op: bool = False) -> Work | None:
    """Return when every rank has called it."""
    here, call = group_or_world("barrier", group), _call("barrier()")
    return here.run(lambda: here.transport.barrier(call), async_op)


# Python objects, as pickles: only of ranks of the same run, which execute the same code


def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """Put the picklable object of rank r into object_list[r], on every rank."""
    here = group_or_world("all_gather_object", group)
    if len(object_list) != here.size():
        raise ShapeError("all_gather_object", f"a list of {here.size()}, one per rank", f"one of {len(object_list)}")
    object_list[:] = gathered_objects(here, obj, _call("all_gather_object()"))


def gathered_objects(group: ProcessGroup, obj: Any, call: Call) -> list[Any]:
    """The picklable objects of all ranks, in order."""
    pickled = np.frombuffer(pickle.dumps(obj), np.uint8)
    via, sizes = group.transport, np.zeros(group.size(), np.int64)

    def run() -> list[Any]:
        mine = np.array([pickled.size], np.int64)
        via.exchange(call, [mine] * via.size, reduction.parts(sizes, via.size))
        received = [np.empty(size, np.uint8) for size in sizes]
        via.exchange(call, [pickled] * via.size, received)
        return [pickle.loads(values.tobytes()) for values in received]

    return group.run(run, False)


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: ProcessGroup | None = None, device: Any = None
) -> None:
    """Replace the picklable objects of the list by those of the rank `src`; `device` has no effect."""
    here = group_or_world("broadcast_object_list", group)
    source, call = here.rank_of("broadcast_object_list", src), _call(f"broadcast_object_list(from {src})")
    mine = list(object_list) if here.rank() == source else None
    found = gathered_objects(here, mine, call)[source]
    if len(found) != len(object_list):
        raise ShapeError("broadcast_object_list", f"{len(found)} objects, as on rank {src}", str(len(object_list)))
    object_list[:] = found


# checks


def _other_rank(where: str, here: ProcessGroup, rank: int, tag: int) -> int:
    if not isinstance(tag, int) or not 0 <= tag <= LARGEST_TAG:
        raise ArgumentError(where, f"a tag from 0 to {LARGEST_TAG}", repr(tag))
    found = here.rank_of(where, rank)
    if found == here.rank():
        raise StateError(where, "another rank", f"rank {here.ranks[here.rank()]}, which calls it")
    return found


def _need_parts(where: str, name: str, whole: Tensor, part: Tensor, count: int) -> None:
    if whole.array.dtype != part.array.dtype or whole.array.size != part.array.size * count:
        needs = f"{name} of {part.array.size * count} elements in {part.dtype.name}"
        raise ShapeError(where, needs, f"{whole.array.size} in {whole.dtype.name}")


def _need_list(where: str, name: str, tensors: Sequence[Tensor], like: Tensor, count: int) -> list[Tensor]:
    found = [need_tensor(where, tensor) for tensor in tensors]
    same = all(tensor.shape == like.shape and tensor.array.dtype == like.array.dtype for tensor in found)
    if len(found) != count or not same:
        got = f"{len(found)}: {', '.join(describe(tensor.array) for tensor in found[:3])}"
        raise ShapeError(where, f"{count} tensors {describe(like.array)} in {name}, one per rank", got)
    return found


def _of_root(
    where: str, name: str, given: Sequence[Tensor] | None, like: Tensor, here: ProcessGroup, root: int
) -> list[Any]:
    # The list that the rank `root` alone gives; None for each tensor on others.
    if (here.rank() == root) != (given is not None):
        needs = f"{name} on the one rank that has all parts, None on others"
        raise ArgumentError(where, needs, "None" if given is None else "a list")
    return [None] * here.size() if given is None else _need_list(where, name, given, like, here.size())


def _split(where: str, name: str, tensor: Tensor, sizes: Sequence[int] | None, count: int) -> list[Tensor]:
    length = need_tensor(where, tensor).shape[0] if tensor.ndim else 0
    lengths = [length // count] * count if sizes is None else list(sizes)
    if len(lengths) != count or sum(lengths) != length:
        raise ShapeError(where, f"{count} parts of {name}, of {length} rows in all", f"parts of {lengths}")
    ends = np.cumsum(lengths).tolist()
    return [Tensor(tensor.array[end - n : end]) for end, n in zip(ends, lengths, strict=True)]
