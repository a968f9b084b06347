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
