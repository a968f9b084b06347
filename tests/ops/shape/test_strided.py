"""as_strided: views of the same memory that NumPy's strides show, as far as slices can express them."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ArgumentError, RangeError, StateError

CASES = [
    ((), (), None), ((3,), (4,), None), ((3,), (2,), 5), ((2, 3), (3, 1), 4), ((2, 1, 5), (5, 7, 1), None),
    ((4,), (0,), 3), ((0,), (1,), None), ((2, 0), (9, 9), None), ((1,), (50,), 11), ((1, 1), (3, 3), 2),
    ((2, 2), (1, 2), 5), ((2, 3), (1, 2), None), ((2, 3, 2), (1, 4, 2), None), ((3, 1, 2), (1, 0, 3), 2),
]  # fmt: skip


@pytest.mark.parametrize(("size", "stride", "offset"), CASES)
def test_the_elements_are_those_at_the_strides(size, stride, offset):
    values = np.arange(12.0)
    x = ampkit.tensor(values.reshape(3, 4), requires_grad=True)
    found = ampkit.as_strided(x, size, stride, offset)
    places = (offset or 0) + sum((np.indices(size)[k] * step for k, step in enumerate(stride)), np.zeros(size, int))
    np.testing.assert_array_equal(found.detach().numpy(), values[places])
    weights = np.arange(1.0, places.size + 1).reshape(size)
    (found * ampkit.tensor(weights)).sum().backward()
    np.testing.assert_array_equal(
        x.grad.numpy().reshape(-1), np.bincount(places.reshape(-1), weights.reshape(-1), minlength=12)
    )


def test_a_change_in_place_is_one_of_the_tensor_that_it_was_taken_of():
    x = ampkit.zeros(2, 3)
    x.as_strided((2,), (2,), 1).fill_(5)
    x.as_strided((), ()).add_(7)
    assert x.tolist() == [[7, 5, 0], [5, 0, 0]]


@pytest.mark.cpu  # an array of the emulated GPU does not know which one it is a view of
def test_an_offset_counts_from_the_begin_of_the_memory_and_its_default_from_the_view():
    part = ampkit.arange(10.0)[4:]
    assert part.as_strided((2,), (1,)).tolist() == [4, 5] == part.as_strided((2,), (1,), 4).tolist()
    with pytest.raises(RangeError, match="elements 0 to 5 of the input, got -4 to -4"):
        part.as_strided((1,), (1,), 0)


@pytest.mark.parametrize(
    ("call", "error", "needs"),
    [
        (lambda x: x.as_strided((2, 2), (1, 1)), ArgumentError, r"row-major strides, permuted as \(2, 1\)"),
        (lambda x: x.as_strided((2,), (1, 1)), ArgumentError, "sizes from 0, each with a stride from 0"),
        (lambda x: x.as_strided((2,), (-1,)), ArgumentError, "sizes from 0, each with a stride from 0"),
        (lambda x: x.as_strided((4,), (4,)), RangeError, "elements 0 to 11 of the input, got 0 to 12"),
        (lambda x: x.t().as_strided((2,), (1,)), StateError, "a tensor whose memory fits the new shape"),
    ],
)
def test_what_slices_cannot_express_is_refused(call, error, needs):
    with pytest.raises(error, match=needs):
        call(ampkit.arange(12.0).view(3, 4))
