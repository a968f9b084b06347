"""Products whose 16-bit rows are not at 16-byte boundaries: what is copied, and that the values stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator

import ampkit
from ampkit import Tensor, nn, ops
from ampkit.backends.cuda.launch import row_alignment
from ampkit.backends.cuda.libs import gemm
from ampkit.base.dtypes import bfloat16, float16, float32, float64

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = frozenset(["copy_rows"])
HALVES = pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)


@pytest.fixture
def small(monkeypatch):
    """Let a copy pay for products of any size."""
    monkeypatch.setattr(gemm, "LEAST_PRODUCTS", 1)
    monkeypatch.setattr(gemm, "LEAST_DEPTH", 1)


def draw(shape, dtype, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("cols", [1, 7, 8, 9, 63, 300])
@pytest.mark.parametrize(("from_extra", "to_extra"), [(0, 0), (0, 5), (5, 0), (1, 2)])
def test_rows_are_copied_from_any_step_to_any_step(cols, from_extra, to_extra, device):
    values = draw((2, 3, cols), float16)
    source, target = (emulated_cupy.empty((2, 3, cols + n), float16) for n in (from_extra, to_extra))
    source[...], target[...] = float16.type(7), float16.type(-1)
    source[..., :cols] = device.asarray(values)
    row_alignment.copy_rows(source[..., :cols], target[..., :cols])
    np.testing.assert_array_equal(target.get()[..., :cols], values)
    np.testing.assert_array_equal(target.get()[..., cols:], -1)


def assert_aligned(products):
    """Each product has aligned rows, and the largest of each result has multiples of eight along them."""
    for product in products:
        matrices = [m for m in (product.a, product.b, product.d) if m.rows > 1 and m.columns > 1]
        assert all(not m.leading * m.dtype.itemsize % 16 for m in matrices), product
        if all(m.rows > 8 for m in (product.a, product.b, product.d)):
            assert all(not m.rows % 8 for m in (product.a, product.b, product.d)), product


@HALVES
@pytest.mark.parametrize("shape", [(24, 16, 37), (24, 37, 16), (37, 24, 16), (13, 15, 17)], ids=str)
def test_every_operand_and_the_result_have_aligned_rows(shape, dtype, device, small):
    m, k, n = shape
    x, weight = draw((2, m, k), dtype), draw((n, k), dtype, 1)
    mine, truth = [
        [Tensor(place(a.astype(kind)), True) for a in (x, weight)]
        for place, kind in ((device.asarray, dtype), (np.asarray, float64))
    ]
    outs = [ops.linear(*tensors) for tensors in (mine, truth)]
    dy = draw(outs[0].shape, dtype, 2)
    outs[0].backward(Tensor(device.asarray(dy)))
    outs[1].backward(Tensor(dy.astype(float64)))
    assert outs[0].is_contiguous()
    for got, want in zip((outs[0], *(t.grad for t in mine)), (outs[1], *(t.grad for t in truth)), strict=True):
        wanted = want.detach().numpy()
        error = {float16: 2e-3, bfloat16: 1.6e-2}[dtype] * np.abs(wanted).max()
        np.testing.assert_allclose(got.detach().numpy(force=True).astype(float64), wanted, rtol=0, atol=error)
    assert_aligned(device.cublaslt.ran)


def test_a_small_product_a_float32_one_and_an_aligned_one_copy_nothing(device, launches):
    for dtype, n in ((float16, 37), (float32, 37), (float16, 40)):
        ops.linear(Tensor(device.asarray(draw((4, 16), dtype))), Tensor(device.asarray(draw((n, 16), dtype))))
    assert not launches


@pytest.mark.parametrize(
    ("shape", "needs"),
    [
        ((16384, 768, 50257), True), ((16384, 64, 50257), False), ((8, 256, 50257), False),
        ((16384, 768, 50264), False),
        ((16384, 50257, 768), True), ((16385, 768, 50264), True), ((256, 57, 57), False),
    ],
)  # fmt: skip
def test_parts_pay_where_the_product_is_large_in_every_direction(shape, needs):
    m, k, n = shape
    a, b, out = [
        np.lib.stride_tricks.as_strided(np.empty(1, float16), size, (2 * size[1], 2))
        for size in ((m, k), (k, n), (m, n))
    ]
    assert gemm._needs_parts(a, b, out) == needs


@HALVES
def test_logits_of_a_large_vocabulary_and_their_gradient_have_aligned_rows_and_are_not_copied(
    dtype, device, small, launches
):
    classes, rows = 5003, 6
    x, labels = draw((rows, 16), dtype), np.arange(rows) * 800
    weight = nn.Parameter(device.asarray(draw((classes, 16), float32, 1)))
    with ampkit.autocast("cuda", dtype=dtype):
        logits = ops.linear(Tensor(device.asarray(x), True), weight)
        ops.cross_entropy(logits.view(2, 3, classes).flatten(0, 1), Tensor(device.asarray(labels))).backward()
    assert not launches
    assert not logits.is_contiguous()
    assert_aligned(device.cublaslt.ran)
    truth = Tensor(weight.detach().numpy(force=True).astype(dtype).astype(float64), True)
    ops.cross_entropy(ops.linear(Tensor(x.astype(float64)), truth), Tensor(labels)).backward()
    want = truth.grad.numpy()
    np.testing.assert_allclose(weight.grad.numpy(force=True), want, rtol=0, atol=2e-2 * np.abs(want).max())


@pytest.mark.parametrize("dim", [-1, 0])
def test_softmax_and_views_read_rows_that_lie_apart(dim, device, small):
    x, weight = draw((6, 16), float16), draw((5003, 16), float16, 1)
    logits = ops.linear(Tensor(device.asarray(x)), Tensor(device.asarray(weight)))
    assert logits.stride() == (5008, 1)
    dense = Tensor(device.asarray(logits.numpy(force=True)))
    for apart, want in zip(logits.view(2, 3, 5003), dense.view(2, 3, 5003), strict=True):
        np.testing.assert_array_equal(apart.numpy(force=True), want.numpy(force=True))
    for f in (ops.softmax, ops.log_softmax, ops.argmax, ops.sum):
        got, wanted = (f(one, dim).numpy(force=True).astype(float64) for one in (logits, dense))
        np.testing.assert_allclose(got, wanted, rtol=2e-3)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_that_grad_returns_is_dense(create_graph, device):
    logits = Tensor(device.asarray(draw((4, 5003), float16)), True)
    (found,) = ampkit.grad(
        ops.cross_entropy(logits, Tensor(device.asarray(np.arange(4)))), logits, create_graph=create_graph
    )
    assert found.is_contiguous() and found.view(-1).shape == (4 * 5003,)
