"""Compiled distances of rows and their gradients: against float64, near each other, and where they are 0."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, assert_close

pytestmark = pytest.mark.cpu
SHAPES = [
    ((33, 70), (18, 70)), ((3, 2, 5, 600), (3, 2, 7, 600)), ((1, 5000), (40, 5000)), ((40, 1), (300, 1)),
    ((600, 20), (33, 20)), ((2, 300, 9), (2, 3, 9)),
]  # fmt: skip


def _normal(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _run(call, *arrays):
    inputs = [Tensor(array, requires_grad=True) for array in arrays]
    y = call(*inputs)
    dy = Tensor(_normal(y.shape, np.float16, 9).astype(y.dtype))
    return y.detach().numpy(), *(g.numpy() for g in grad(y, inputs, dy))


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_distances_and_gradients_are_those_of_float64(shapes, dtype):
    arrays = [_normal(shape, dtype, seed) for seed, shape in enumerate(shapes)]
    for given in (arrays, [a[..., ::-1] for a in arrays]):
        found = _run(ops.cdist, *given)
        with reference_only():
            want = _run(ops.cdist, *(a.astype(float) for a in given))
        scale = np.sqrt(max(shapes[0][-2:] + shapes[1][-2:]))
        assert {f.dtype for f in found} == {np.dtype(dtype)}
        assert_close(found[0].astype(float) / scale, want[0] / scale, TOLERANCE[dtype])
        for a, b in zip(found[1:], want[1:], strict=True):
            assert_close(a.astype(float) / scale, b / scale, GRADIENT_TOLERANCE[dtype])


def test_a_gradient_may_be_one_number_or_transposed():
    x, y = _normal((70, 130), float32, 0), _normal((40, 130), float32, 1)
    for dy in (np.broadcast_to(np.float32(2), (70, 40)), _normal((40, 70), float32, 2).T):
        found = []
        for given in (dy, dy.copy(order="C")):
            inputs = [Tensor(array, requires_grad=True) for array in (x, y)]
            found.append([g.numpy().tobytes() for g in grad(ops.cdist(*inputs), inputs, Tensor(given))])
        assert found[0] == found[1]


def test_rows_near_each_other_keep_their_digits():
    base = 1000 + _normal((1, 300), float32, 0)
    rows = (base + _normal((50, 300), float32, 1) * 1e-3).astype(np.float32)
    want = np.sqrt(((rows[:, None].astype(float) - rows) ** 2).sum(-1))
    np.testing.assert_allclose(ops.cdist(Tensor(rows), Tensor(rows)).numpy(), want, 1e-6)
    np.testing.assert_allclose(ops.pdist(Tensor(rows)).numpy(), want[np.triu_indices(50, 1)], 1e-6)


def test_where_rows_are_equal_or_not_finite_the_reference_is_followed():
    rows = _normal((40, 30), float32, 2)
    rows[5], rows[7, 3], rows[9, 2] = rows[4], np.nan, np.inf
    with np.errstate(invalid="ignore"):
        for call in (lambda x: ops.cdist(x, x), ops.pdist):
            found = _run(call, rows)
            with reference_only():
                want = _run(call, rows)
            for a, b in zip(found, want, strict=True):
                np.testing.assert_allclose(a, b, 1e-4, 1e-5)


def test_the_number_of_threads_changes_no_bit():
    x, y, threads = _normal((70, 900), float32, 3), _normal((90, 900), float32, 4), get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            set_num_threads(count)
            found.append([a.tobytes() for a in _run(ops.cdist, x, y)])
    finally:
        set_num_threads(threads)
    assert found[0] == found[1] == found[2]


COSINES = [((70, 90), (70, 90), 1), ((70, 90), (70, 90), 0), ((90, 1, 64), (1, 70, 64), -1), ((3, 40, 50), (40, 50), 1)]


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize(("first", "second", "dim"), COSINES, ids=str)
def test_cosines_and_gradients_are_those_of_float64(first, second, dim, dtype):
    arrays = [_normal(first, dtype, 0), _normal(second, dtype, 1)]
    found = _run(lambda a, b: ops.cosine_similarity(a, b, dim), *arrays)
    with reference_only():
        want = _run(lambda a, b: ops.cosine_similarity(a, b, dim), *(array.astype(float) for array in arrays))
    for got, truth in zip(found, want, strict=True):
        assert got.dtype == dtype
        assert_close(got, truth, GRADIENT_TOLERANCE[dtype])


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
@pytest.mark.parametrize(("first", "second", "dim"), COSINES, ids=str)
def test_the_kernel_is_what_runs(first, second, dim):
    vectors = [Tensor(_normal(shape, float32, 0), requires_grad=True) for shape in (first, second)]
    assert ops.cosine_similarity(*vectors, dim).node.kernel.name == "cosine_similarity_cpu"


def test_cosines_of_vectors_that_are_short_zero_or_not_finite_are_the_reference_s():
    a, b = _normal((70, 90), np.float32, 0), _normal((70, 90), np.float32, 1)
    a[3], a[4], a[5], b[6], a[7, 2], b[8, 5] = 0, 1e-10, 1e-3, 1e25, np.nan, np.inf
    found = _run(lambda x, y: ops.cosine_similarity(x, y, eps=1e-2), a, b)
    with reference_only():
        want = _run(lambda x, y: ops.cosine_similarity(x, y, eps=1e-2), a, b)
    for got, truth in zip(found, want, strict=True):
        np.testing.assert_allclose(got, truth, rtol=1e-4, atol=1e-5)
