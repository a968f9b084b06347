"""Sequences of different lengths: padded to one tensor, or packed time-major for recurrent layers.

Packed data are the first rows of all sequences, the longest sequence first, then the second rows, and so on. The host
computes the indices from the lengths; one gather moves the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from ampkit import backends, ops
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError, check_choice
from ampkit.core.tensor import Tensor
from ampkit.ops.argument_checks import check_all

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Fields):
    """Sequences packed step by step: data [sum of lengths, ...], batch_sizes [longest length], int64 on the CPU.

    batch_sizes is the number of sequences at each step. sorted_indices sorts the caller's sequences by length, longest
    first, and unsorted_indices is its inverse; None if they are sorted. `pack_sequence` and
    `pack_padded_sequence` make one.
    """

    on_host: np.ndarray[Any, Any] | None = None  # unsorted_indices on the host, if known

    def __new__(
        cls,
        data: Tensor,
        batch_sizes: Tensor | None = None,
        sorted_indices: Tensor | None = None,
        unsorted_indices: Tensor | None = None,
    ) -> Self:
        if not isinstance(data, Tensor) or not isinstance(batch_sizes, Tensor):
            raise DTypeError("PackedSequence", "data and batch_sizes as Tensors", type(batch_sizes).__name__)
        if batch_sizes.device != "cpu":
            raise DeviceError("PackedSequence", "batch_sizes on the CPU", str(batch_sizes.device), "batch_sizes.cpu()")
        back = _inverse(sorted_indices) if unsorted_indices is None else unsorted_indices
        return super().__new__(cls, data, batch_sizes, sorted_indices, back)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """A copy with `data.to(...)`; the indices move to its device."""
        return self.with_data(self.data.to(*args, **kwargs))

    def with_data(self, data: Tensor) -> PackedSequence:
        """The same sequences with other data rows."""
        order, back = (None if i is None else i.to(data.device) for i in self[2:])
        made = PackedSequence(data, self.batch_sizes, order, back)
        made.on_host = self.on_host
        return made

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """`to("cuda")`."""
        return self.to(self.data.cuda(*args, **kwargs).device)

    def cpu(self) -> PackedSequence:
        """`to("cpu")`."""
        return self.to("cpu")

    def half(self) -> PackedSequence:
        """`to(float16)`."""
        return self.to(dtypes.float16)

    def float(self) -> PackedSequence:
        """`to(float32)`."""
        return self.to(dtypes.float32)

    def double(self) -> PackedSequence:
        """`to(float64)`."""
        return self.to(dtypes.float64)

    @property
    def is_cuda(self) -> bool:
        """Whether the data are on a GPU."""
        return bool(self.data.is_cuda)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The inverse of `permutation`; None for None."""
    return _inverse(permutation)


def _inverse(order: Tensor | None) -> Tensor | None:
    return None if order is None else ops.argsort(order)


def _lengths(where: str, lengths: Any, count: int, longest: int) -> np.ndarray[Any, Any]:
    # The lengths of `count` sequences as a NumPy array, each from 1 to `longest`.
    if isinstance(lengths, Tensor) and lengths.device != "cpu":
        raise DeviceError(where, "lengths on the CPU", str(lengths.device), "lengths decide shapes: lengths.cpu()")
    found = np.asarray(lengths.numpy() if isinstance(lengths, Tensor) else lengths)
    if found.ndim != 1 or found.dtype.kind not in "iu" or len(found) != count:
        raise ArgumentError(where, f"lengths as {count} integers, one per sequence", repr(lengths)[:60])
    if not count or found.min() < 1 or found.max() > longest:
        raise ArgumentError(where, f"at least one length, each from 1 to {longest}", repr(found.tolist())[:60])
    return found.astype(np.int64)


def _like(values: np.ndarray[Any, Any], tensor: Tensor) -> Tensor:
    return Tensor(backends.backend_of(tensor.array).constant(values))


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack padded sequences: input [T, N, ...], with batch_first [N, T, ...], lengths N integers from 1 to T.

    enforce_sorted: the sequences come longest first; False sorts them. Raises ArgumentError for lengths that do not
    fit, or out of order, ShapeError for an input without two axes.
    """
    where = "pack_padded_sequence"
    _need_axes(where, input)
    rows = ops.transpose(input, 0, 1) if batch_first else input
    steps, count = rows.shape[:2]
    found = _lengths(where, lengths, count, steps)
    order = np.argsort(-found, kind="stable")
    if enforce_sorted and (np.diff(found) > 0).any():
        raise ArgumentError(where, "lengths that never grow", repr(found.tolist())[:60], "or enforce_sorted=False")
    sizes = (found > np.arange(found.max())[:, None]).sum(1)
    index = np.concatenate([at * count + order[:size] for at, size in enumerate(sizes)])
    data = ops.index_select(ops.reshape(rows, (steps * count, *rows.shape[2:])), 0, _like(index, input))
    if enforce_sorted:
        return PackedSequence(data, Tensor(sizes))
    back = np.argsort(order)
    packed = PackedSequence(data, Tensor(sizes), _like(order, input), _like(back, input))
    packed.on_host = back
    return packed


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Unpack: -> padded [T, N, ...], with batch_first [N, T, ...], and the lengths [N], int64 on the CPU.

    The sequences come in the order in which they were packed. T is the longest length, or total_length, which must not
    be less: ArgumentError.
    """
    where = "pad_packed_sequence"
    if not isinstance(sequence, PackedSequence):
        raise DTypeError(where, "a PackedSequence", type(sequence).__name__, "pack_padded_sequence makes one")
    sizes = sequence.batch_sizes.numpy()
    lengths = (sizes[:, None] > np.arange(sizes[0])).sum(0)  # the longest first
    steps = len(sizes) if total_length is None else total_length
    if steps < len(sizes):
        raise ArgumentError(where, f"total_length of at least {len(sizes)}", str(total_length))
    data, count = sequence.data, int(sizes[0])
    index = np.full((steps, count), len(data))  # one row beyond the data: the padding
    for at, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
        index[at, :size] = np.arange(end - size, end)
    padding = ops.full((1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    rows = ops.index_select(ops.cat([data, padding]), 0, _like(index.reshape(-1), data))
    padded = ops.reshape(rows, (steps, count, *data.shape[1:]))
    if sequence.unsorted_indices is not None:
        padded = ops.index_select(padded, 1, sequence.unsorted_indices)
        known = sequence.on_host
        lengths = lengths[sequence.unsorted_indices.numpy(force=True) if known is None else known]
    return ops.transpose(padded, 0, 1) if batch_first else padded, Tensor(lengths)


def pad_sequence(
    sequences: Tensor | Iterable[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Stack padded sequences [length, ...]: -> [T, N, ...], with batch_first [N, T, ...], T the longest length.

    Raises ArgumentError for no sequence or an unknown side, ShapeError where axes but the first differ.
    """
    where = "pad_sequence"
    rows = _checked_sequences(where, sequences)
    check_choice(where, "padding_side", padding_side, "left", "right")
    longest = max(len(row) for row in rows)
    padded = [_padded(row, longest - len(row), padding_value, padding_side == "left") for row in rows]
    return ops.stack(padded, 0 if batch_first else 1)


def _checked_sequences(where: str, sequences: Any) -> list[Tensor]:
    if not isinstance(sequences, Iterable):
        raise DTypeError(where, "a sequence of Tensors", type(sequences).__name__)
    rows = list(ops.unbind(sequences) if isinstance(sequences, Tensor) else sequences)
    if not rows or not all(isinstance(row, Tensor) and row.ndim for row in rows):
        raise ArgumentError(where, "at least one Tensor [length, ...]", repr([type(row).__name__ for row in rows][:4]))
    if len({row.shape[1:] for row in rows}) > 1:
        got = " and ".join(str(list(row.shape)) for row in rows[:4])
        raise ShapeError(where, "sequences that differ in their first axis alone", got)
    return rows


def _padded(row: Tensor, more: int, value: float, left: bool) -> Tensor:
    if not more:
        return row
    padding = ops.full((more, *row.shape[1:]), value, dtype=row.dtype, device=row.device)
    return ops.cat([padding, row] if left else [row, padding])


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences that were padded at their end: [T, N, ...], with batch_first [N, T, ...] -> N of [length, ...]."""
    where = "unpad_sequence"
    _need_axes(where, padded_sequences)
    rows = ops.unbind(padded_sequences, 0 if batch_first else 1)
    found = _lengths(where, lengths, len(rows), padded_sequences.shape[1 if batch_first else 0])
    return [row[: int(n)] for row, n in zip(rows, found, strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences [length, ...]; enforce_sorted as in `pack_padded_sequence`."""
    rows = _checked_sequences("pack_sequence", sequences)
    return pack_padded_sequence(pad_sequence(rows), [len(row) for row in rows], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The packed sequences [length, ...], in their original order."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)


def _need_axes(where: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor) or tensor.ndim < 2:
        got = str(list(tensor.shape)) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ShapeError(where, "a Tensor [T, N, ...]", got)


check_all(globals())
