"""The gradient of embedding: sums of rows by index, as precise as sums in pairs, the same bits every time."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

RNG = np.random.default_rng(0)
INDICES = {
    "letters": (65, RNG.integers(0, 65, (8, 256))),
    "positions": (300, np.arange(256)),
    "turned": (256, RNG.permutation(256)),
    "most only once": (70000, RNG.integers(0, 70000, 900)),
    "one of them": (7, np.full(3000, 5)),
    "of a length that runs divide": (3, np.repeat([2, 0], 1024)),
    "one": (4, np.array(3)),
    "int32": (65, RNG.integers(0, 65, 500).astype(np.int32)),
    "uint8": (65, RNG.integers(0, 65, 500).astype(np.uint8)),
    "every other": (65, RNG.integers(0, 65, 500)[::-2]),
    "none": (5, np.zeros(0, int)),
}


def _gradient(index, rows, gradients, dtype, padding_idx=None):
    table = Tensor(np.zeros((rows, gradients.shape[-1]), dtype), requires_grad=True)
    out = ops.embedding(Tensor(index), table, padding_idx)
    return grad(out, [table], Tensor(gradients.astype(dtype)))[0]


@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", INDICES)
def test_rows_of_one_index_add_up(name, dtype, padding):
    rows, index = INDICES[name]
    gradients = np.random.default_rng(1).standard_normal((*index.shape, 24)).astype(dtype)
    want = np.zeros((rows, 24))
    np.add.at(want, index.reshape(-1), gradients.reshape(-1, 24).astype(float))
    if padding is not None:
        want[padding] = 0
    found = _gradient(index, rows, gradients, dtype, padding)
    assert found.dtype == dtype
    assert_close(found, want, GRADIENT_TOLERANCE[dtype])


def test_many_repeats_are_summed_as_precisely_as_in_pairs():
    index = np.zeros(30000, int)
    gradients = np.random.default_rng(1).uniform(0, 1, (30000, 40)).astype(np.float32)
    want = gradients.sum(0, dtype=float)
    found = _gradient(index, 2, gradients, float32).numpy()[0]
    with reference_only():
        pairs = _gradient(index, 2, gradients, float32).numpy()[0]
    worst = [np.abs(each - want).max() / want.max() for each in (found, pairs)]
    assert worst[0] < 3e-7
    assert worst[0] < 4 * worst[1] + 6e-8


def test_what_is_not_finite_stays_with_its_index():
    index = np.random.default_rng(0).integers(0, 9, 2000)
    gradients = np.ones((2000, 16), np.float32)
    gradients[np.flatnonzero(index == 4)[7], 3] = np.nan
    gradients[np.flatnonzero(index == 6)[-1], 0] = np.inf
    found = _gradient(index, 9, gradients, float32).numpy()
    assert np.argwhere(~np.isfinite(found)).tolist() == [[4, 3], [6, 0]]


def test_a_padding_row_gets_none_whatever_its_gradients():
    gradients = np.full((40, 8), np.nan, np.float32)
    found = _gradient(np.full(40, 2), 3, gradients, float32, padding_idx=2)
    assert (found.numpy() == 0).all()


def test_the_same_bits_every_time():
    rows, index = INDICES["letters"]
    gradients = np.random.default_rng(1).standard_normal((*index.shape, 24)).astype(np.float32)
    first = _gradient(index, rows, gradients, float32).numpy().tobytes()
    assert all(_gradient(index, rows, gradients, float32).numpy().tobytes() == first for _ in range(3))


BAGS = [
    (np.arange(41)[:-1].reshape(8, 5) % 7, None),
    (RNG.integers(0, 7, (3, 100)), None),
    (RNG.integers(0, 7, 200).astype(np.int32), np.array([0, 0, 3, 90, 200])),
]


def _bags(index, begins, table, mode, padding, scaled):
    weight = Tensor(table, requires_grad=True)
    scales = np.random.default_rng(4).standard_normal(index.shape).astype(table.dtype)
    given = [weight, Tensor(scales, requires_grad=True)] if scaled else [weight]
    offsets = None if begins is None else Tensor(begins)
    options = {"mode": mode, "padding_idx": padding, "per_sample_weights": given[1] if scaled else None}
    out = ops.embedding_bag(Tensor(index), weight, offsets, **options)
    gradients = np.random.default_rng(5).standard_normal(out.shape).astype(np.float16).astype(table.dtype)
    return out.detach().numpy(), *(g.numpy() for g in grad(out, given, Tensor(gradients)))


@pytest.mark.cpu
@pytest.mark.parametrize("width", [3, 600])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "scaled"])
def test_bags_and_their_gradients_are_those_of_the_reference(mode, dtype, padding, width):
    for index, begins in BAGS:
        table = (np.random.default_rng(3).integers(-40, 40, (7, width)) / 16).astype(dtype)
        given = index, begins, table, mode.replace("scaled", "sum"), padding, mode == "scaled"
        found = _bags(*given)
        with reference_only():
            want = _bags(*given)
        for a, b in zip(found, want, strict=True):
            assert a.dtype == b.dtype
            assert_close(a, b, GRADIENT_TOLERANCE[dtype])
            assert mode != "max" or a.dtype == bfloat16 or np.array_equal(a == 0, b == 0)


@pytest.mark.cpu
def test_of_a_bag_the_first_extreme_row_gets_the_gradient():
    table = np.full((4, 300), -np.inf, np.float32)
    table[1, ::2], table[2], table[3, 7] = -0.0, np.where(np.arange(300) % 5, 0, np.nan), np.nan
    for index in ([[0, 1, 2, 3]], [[3, 2, 1, 0]], [[0, 0, 0, 0]]):
        given = np.array(index), None, table, "max", None, False
        with reference_only():
            want = _bags(*given)
        for a, b in zip(_bags(*given), want, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


@pytest.mark.cpu
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_every_length_are_added_up(mode):
    lengths = np.arange(70)
    table = np.random.default_rng(8).integers(-99, 99, (50, 20)).astype(np.float32)
    index = np.random.default_rng(9).integers(0, 50, lengths.sum())
    begins = np.cumsum(lengths) - lengths
    found = ops.embedding_bag(Tensor(index), Tensor(table), Tensor(begins), mode=mode).numpy()
    want = np.stack([table[index[at : at + n]].sum(0) for at, n in zip(begins, lengths, strict=True)])
    np.testing.assert_allclose(found, want / np.maximum(lengths, 1)[:, None] if mode == "mean" else want, 1e-6)


@pytest.mark.cpu
def test_the_sum_of_a_long_bag_keeps_its_digits():
    table = np.random.default_rng(6).uniform(0, 1, (50, 20)).astype(np.float32)
    index = np.random.default_rng(7).integers(0, 50, (2, 100000))
    found = ops.embedding_bag(Tensor(index), Tensor(table), mode="sum").numpy()
    want = np.stack([np.bincount(row, minlength=50) @ table.astype(float) for row in index])
    np.testing.assert_allclose(found, want, 2e-7)
