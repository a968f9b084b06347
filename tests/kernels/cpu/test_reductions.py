"""Compiled reductions over any axes of any layout: values and gradients against the references in float64."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, assert_close

compiled = pytest.mark.skipif(
    not available(), reason="the compiled kernels are not there: NumPy needs more memory, and rounds more"
)
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: np.asarray(x.T.copy().T),
    "every other": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "channels last": lambda x: np.moveaxis(np.moveaxis(x, 1, -1).copy(), -1, 1),
    "backwards": lambda x: x[::-1].copy()[::-1],
    "one row": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column": lambda x: np.broadcast_to(x[..., :1], x.shape),
}
OPS = {
    "sum": lambda x, dim: ops.sum(x, dim),
    "mean": lambda x, dim: ops.mean(x, dim, keepdim=True),
    "amax": lambda x, dim: ops.amax(x, dim),
    "amin": lambda x, dim: ops.amin(x, dim, keepdim=True),
    "var": lambda x, dim: ops.var(x, dim),
    "std": lambda x, dim: ops.std(x, dim, keepdim=True),
    "norm": lambda x, dim: ops.norm(x, 2, dim),
    "norm 1": lambda x, dim: ops.norm(x, 1, dim),
    "norm inf": lambda x, dim: ops.norm(x, inf, dim),
    "norm -inf": lambda x, dim: ops.norm(x, -inf, dim),
    "logsumexp": lambda x, dim: ops.logsumexp(x, tuple(range(x.ndim)) if dim is None else dim),
}
SHAPES = {(70, 5, 3, 11): [None, 0, 1, -1, (2, 3), (0, 2, 3), (1, 3), (0, 2)], (9001, 3): [0, 1], (3, 70001): [None, 1]}


def _values(shape, dtype, seed=0):
    return np.random.default_rng(seed).uniform(-1.5, 2, shape).astype(dtype)


def _run(name, array, dim, gradients):
    x = Tensor(array, requires_grad=True)
    y = OPS[name](x, dim)
    return y.detach().numpy(), grad(y, [x], Tensor(gradients(y.shape).astype(array.dtype)))[0].numpy()


@compiled
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients_of_any_axes_of_any_layout(name, layout, dtype):
    for shape, dims in SHAPES.items():
        array = LAYOUTS[layout](_values(shape, dtype))
        for dim in dims if len(shape) == 4 or layout == "contiguous" else dims[:1]:
            found = _run(name, array, dim, lambda shape: _values(shape, dtype, 1))
            with reference_only():
                want = _run(name, array.astype(float), dim, lambda shape: _values(shape, dtype, 1).astype(float))
            assert found[0].dtype == found[1].dtype == dtype
            largest = max(np.abs(want[0]).max(), 1)
            if dtype != float16 or largest < 65504:
                assert_close(found[0].astype(float) / largest, want[0] / largest, TOLERANCE[dtype])
            assert_close(found[1], want[1], GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("name", OPS)
def test_what_is_not_finite_shows(name):
    for value in (np.nan, -np.nan, inf, -inf):
        array = _values((40, 300), float32)
        array[7, 250] = array[9, 3] = value
        array[11] = value
        for dim in (0, 1, None):
            found = OPS[name](Tensor(array), dim).numpy()
            with reference_only():
                truth = OPS[name](Tensor(array), dim).numpy()
            np.testing.assert_allclose(found, truth, 1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", ["sum", "var", "amax"])
def test_one_thread_gives_the_same_bits_as_two(name, dtype):
    arrays = [_values((5, 300_001), dtype), _values((200_003, 7), dtype)]
    answers, before = [], get_num_threads()
    for threads in (1, 2, before):
        set_num_threads(threads)
        answers.append([_run(name, a, dim, np.ones)[0].tobytes() for a in arrays for dim in (0, 1, None)])
    assert answers[0] == answers[1]


@compiled
def test_a_gradient_that_is_a_broadcast_number_is_summed_without_being_stored():
    dy = np.broadcast_to(np.float32(0.1), (1 << 20, 1 << 20))
    found = sum_over(dy, (0,))
    assert found.shape == (1, 1 << 20)
    np.testing.assert_allclose(found[0, :5], 0.1 * 2**20, 1e-6)


@compiled
def test_sums_of_many_elements_are_exact_to_a_rounding():
    ones = np.ones((1 << 25,), np.float32)
    assert ops.sum(Tensor(ones)).item() == 1 << 25
    columns = np.broadcast_to(np.float32(1000.1), (1 << 18, 9)).copy()
    np.testing.assert_allclose(ops.mean(Tensor(columns), 0).numpy(), np.float32(1000.1), 1.2e-7)


def _factors(shape, dim, dtype):
    # Numbers near 1 and -1; along `dim` some rows with zeros, with what is not finite, and of very different sizes.
    random = np.random.default_rng(0)
    factors = np.exp(random.normal(0, 0.1, shape)) * random.choice([1, 1, -1], shape)
    if dim is not None:
        rows = np.moveaxis(factors, dim, -1)[(0,) * (len(shape) - 2)]
        rows[0, 3] = rows[1, 2] = rows[1, 4] = rows[3, 4] = 0
        rows[2, 1], rows[3, 0], rows[4, 3] = inf, -inf, np.nan
        rows[5] = 1e4 ** np.resize([1.0, -1], rows.shape[1])
    return factors.astype(dtype)


def _product(array, dim, gradients):
    x = Tensor(array, requires_grad=True)
    y = ops.prod(x, dim)
    return [y.detach(), *[grad(y, [x], Tensor(dy), retain_graph=True)[0] for dy in gradients]]


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_and_their_gradients_are_those_of_float64(layout, dtype):
    for shape, dims in {(70, 90): [None, 0, 1], (13, 7, 111): [None, 0, 1, -1], (8, 4001): [None, 1]}.items():
        for dim in dims[layout == "one column" :]:  # whose product of all is too large or too small
            array = LAYOUTS[layout](_factors(shape, dim, dtype))
            like = np.zeros(shape).sum(dim)
            dense = np.random.default_rng(1).normal(0, 1, like.shape).astype(dtype)
            gradients = [dense, np.broadcast_to(dtype.type(3), like.shape), np.asarray(dense.T.copy().T)]
            with np.errstate(all="ignore"):
                found = _product(array, dim, gradients)
                with reference_only():
                    wide = [each.astype(float) for each in gradients]
                    want = _product(array.astype(float), dim, wide)
                for each, truth in zip(found, want, strict=True):
                    assert each.dtype == dtype
                    assert_close(each.numpy(), truth.numpy().astype(dtype), GRADIENT_TOLERANCE[dtype])


@compiled
def test_products_and_their_gradients_have_kernels_that_reach_beyond_float32():
    x = np.full((600, 14), 1e-20, float32)
    x[:, ::2] = 1e20
    x = np.ascontiguousarray(np.sort(x, -1))
    for array, dim in ((x, 1), (x.T.copy(), 0)):
        value, gradient = _product(array, dim, [np.ones_like(array.sum(dim))])
        np.testing.assert_allclose(value.numpy(), 1, 1e-4)
        np.testing.assert_allclose(gradient.numpy(), 1 / array, 1e-4)
