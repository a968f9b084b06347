"""Sequences of different lengths: padded, packed, and back."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import tensor
from ampkit.base.dtypes import float16
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from ampkit.nn.utils import rnn


def counted(*lengths, width=2):
    """Sequences of these lengths; sequence n has n * 100 + t at time t."""
    return [tensor(100.0 * n + np.arange(k)[:, None] + np.zeros(width)) for n, k in enumerate(lengths)]


def test_padding_puts_sequences_side_by_side():
    a, b = counted(3, 1, width=1)
    assert rnn.pad_sequence([a, b], padding_value=9.0)[..., 0].tolist() == [[0, 100], [1, 9], [2, 9]]
    assert rnn.pad_sequence([a, b], True)[..., 0].tolist() == [[0, 1, 2], [100, 0, 0]]
    assert rnn.pad_sequence([a, b], True, padding_side="left")[..., 0].tolist() == [[0, 1, 2], [0, 0, 100]]


def test_packed_rows_come_step_by_step_the_longest_sequence_first():
    packed = rnn.pack_sequence(counted(2, 4, 1), enforce_sorted=False)
    assert packed.data[:, 0].tolist() == [100, 0, 200, 101, 1, 102, 103]
    assert packed.batch_sizes.tolist() == [3, 2, 1, 1]
    assert packed.sorted_indices.tolist() == [1, 0, 2]
    assert packed.unsorted_indices.tolist() == [1, 0, 2]
    assert packed.batch_sizes.device == "cpu"


@pytest.mark.parametrize("lengths", [(4, 2, 2), (2, 4, 1), (1,), (3, 3)])
def test_unpacking_gives_back_what_was_packed(lengths):
    rows = counted(*lengths)
    for got, want in zip(rnn.unpack_sequence(rnn.pack_sequence(rows, False)), rows, strict=True):
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("batch_first", [False, True])
def test_unpadding_cuts_the_ends_off(batch_first):
    rows = counted(4, 2, 2)
    padded = rnn.pad_sequence(rows, batch_first)
    for got, want in zip(rnn.unpad_sequence(padded, tensor([4, 2, 2], device="cpu"), batch_first), rows, strict=True):
        assert got.tolist() == want.tolist()


def test_padding_can_go_to_a_total_length_with_a_value():
    packed = rnn.pack_sequence(counted(2, 1, width=1))
    padded, lengths = rnn.pad_packed_sequence(packed, True, -1.0, 3)
    assert padded[..., 0].tolist() == [[0, 1, -1], [100, -1, -1]]
    assert lengths.tolist() == [2, 1]
    with pytest.raises(ArgumentError, match="pad_packed_sequence: needs total_length of at least 2, got 1"):
        rnn.pad_packed_sequence(packed, total_length=1)


def test_gradients_come_back_through_packing_and_unpacking():
    rows = [row.requires_grad_() for row in counted(1, 3)]
    padded, _ = rnn.pad_packed_sequence(rnn.pack_sequence(rows, False), padding_value=5.0)
    (padded * padded).sum().backward()
    for row in rows:
        assert row.grad.tolist() == (2 * row.numpy(force=True)).tolist()


def test_packed_sequences_move_and_change_their_format():
    packed = rnn.pack_sequence(counted(1, 3), False)
    low = packed.half()
    assert (low.data.dtype, low.to(packed.data.dtype).data.dtype) == (float16, packed.data.dtype)
    assert low.sorted_indices.tolist() == packed.sorted_indices.tolist() == [1, 0]
    assert packed.cpu().is_cuda is False
    again = rnn.PackedSequence(packed.data, packed.batch_sizes, packed.sorted_indices)
    assert again.unsorted_indices.tolist() == packed.unsorted_indices.tolist()


X = np.zeros((3, 2, 1))


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: rnn.pack_padded_sequence(tensor(X), [1, 3]), ArgumentError, "needs lengths that never grow, got .1, 3."),
    (lambda: rnn.pack_padded_sequence(tensor(X), [4, 3]), ArgumentError, "at least one length, each from 1 to 3"),
    (lambda: rnn.pack_padded_sequence(tensor(X), [3, 0]), ArgumentError, "at least one length, each from 1 to 3"),
    (lambda: rnn.pack_padded_sequence(tensor(X), [3]), ArgumentError, "lengths as 2 integers, one per sequence"),
    (lambda: rnn.pack_padded_sequence(tensor(X), [3, 2.5]), ArgumentError, "lengths as 2 integers"),
    (lambda: rnn.pack_padded_sequence(tensor(X), None), ArgumentError, "lengths as 2 integers"),
    (lambda: rnn.pack_padded_sequence(tensor(X[0, 0]), [1]), ShapeError, r"needs a Tensor \[T, N, ...\], got \[1\]"),
    (lambda: rnn.pad_packed_sequence(tensor(X)), DTypeError, "pad_packed_sequence: needs sequence as a PackedSequence"),
    (lambda: rnn.pad_sequence(5), DTypeError, "pad_sequence: needs sequences as a Tensor or an iterable"),
    (lambda: rnn.pad_sequence([]), ArgumentError, "pad_sequence: needs at least one Tensor"),
    (lambda: rnn.pad_sequence([tensor(X), tensor(X[0])]), ShapeError, "that differ in their first axis alone"),
    (lambda: rnn.pad_sequence([tensor(X)], padding_side="up"), ArgumentError, "padding_side 'left' or 'right'"),
    (lambda: rnn.PackedSequence(tensor(X)), DTypeError, "data and batch_sizes as Tensors"),
])  # fmt: skip
def test_what_does_not_fit_is_said_in_a_line(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_lengths_on_a_gpu_are_asked_for_on_the_cpu(monkeypatch):
    lengths = tensor([3, 2], device="cpu")
    monkeypatch.setattr(type(lengths), "device", property(lambda self: "cuda:0"))
    with pytest.raises(DeviceError, match=r"needs lengths on the CPU, got cuda:0\nhelp: .*lengths.cpu\(\)"):
        rnn.pack_padded_sequence(tensor(X), lengths)
