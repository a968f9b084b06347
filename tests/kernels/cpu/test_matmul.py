"""Products of operands stored in 16 bits, by the kernel that converts them block by block, agree with float64."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu import widening_matmul
from ampkit.backends.cpu.native import library as native
from ampkit.backends.cpu.onednn import gemm
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.backends.cpu.threads import set_num_threads
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.tensor import Tensor
from ampkit.testing import Case, check_precision, normal

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(not native.has_products(), reason="needs kernels for a CPU with multiply-add"),
]
# M, K, N: blocks are 96 rows, 384 columns and 384 deep; less than a register's, and one more than a multiple.
SHAPES = [(8, 16, 32), (9, 17, 33), (97, 385, 40), (30, 20, 385), (193, 769, 65), (12, 1200, 400)]
LAYOUTS = {
    "rows": lambda a: a,
    "columns": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "backwards": lambda a: np.ascontiguousarray(a[..., ::-1, ::-1])[..., ::-1, ::-1],
    "one row": lambda a: np.broadcast_to(a[..., :1, :], a.shape),
    "one column": lambda a: np.broadcast_to(a[..., :1], a.shape),
}


def drawn(dtype, *shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def product(a, b, dtype, bias=None):
    out = np.full((*a.shape[:-1], b.shape[-1]), 7, dtype)
    assert widening_matmul.matmul_into(a, b, out, bias)
    return out


def check(a, b, dtype=float32, bias=None):
    exact = a.astype(float64) @ b.astype(float64) + (0 if bias is None else bias.astype(float64))
    size = np.abs(a.astype(float64)) @ np.abs(b.astype(float64)) + 1
    error = np.abs(product(a, b, dtype, bias).astype(float64) - exact)
    half_ulp = {float32: 0, float16: 2.0**-11, bfloat16: 2.0**-8}[dtype]
    assert (error <= size * 2e-6 + np.abs(exact) * half_ulp).all()


@pytest.mark.parametrize("out", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_are_those_of_float64_and_rounded_once(shape, dtype, out):
    rows, depth, columns = shape
    check(drawn(dtype, rows, depth), drawn(dtype, depth, columns), out)
    check(drawn(dtype, rows, depth), drawn(dtype, depth, columns), out, drawn(dtype, columns))


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
def test_operands_may_have_any_strides(first, second):
    check(LAYOUTS[first](drawn(bfloat16, 3, 50, 70)), LAYOUTS[second](drawn(bfloat16, 3, 70, 40)))


@pytest.mark.parametrize("lead", [(5,), (2, 3), (2, 1, 2)], ids=str)
def test_leading_axes_are_products_of_their_own(lead):
    check(drawn(float16, *lead, 20, 30), drawn(float16, *lead, 30, 50), float16)


def test_the_result_may_have_any_strides():
    a, b, out = drawn(bfloat16, 40, 30), drawn(bfloat16, 30, 50), np.zeros((50, 80), float16)
    assert widening_matmul.matmul_into(a, b, out[:, ::2].T, None)
    np.testing.assert_allclose(
        out[:, ::2].T.astype(float64), a.astype(float64) @ b.astype(float64), rtol=1e-3, atol=2e-3
    )
    assert (out[:, 1::2] == 0).all()


def test_one_operand_may_be_float32():
    check(drawn(float32, 40, 30), drawn(bfloat16, 30, 50))
    check(drawn(float16, 40, 30), drawn(float32, 30, 50), float16)


def test_values_that_are_not_finite_stay_in_their_row_and_column():
    a, b = np.ones((40, 400), bfloat16), np.ones((400, 70), bfloat16)
    a[3, 390], a[39, 1], b[5, 69] = np.inf, np.nan, -np.inf
    out = product(a, b, bfloat16)
    with np.errstate(invalid="ignore"):
        want = a.astype(float32) @ b.astype(float32)
    np.testing.assert_array_equal(out.astype(float32), want.astype(bfloat16).astype(float32))
    assert np.isinf(out).sum() == 69 + 38 and np.isnan(out).sum() == 70 + 1


@pytest.mark.parametrize(
    "refused",
    [
        (float32, (40, 30), (30, 50), float32),
        (float64, (40, 30), (30, 50), float64),
        (float16, (7, 30), (30, 50), float16),
        (float16, (40, 15), (15, 50), float16),
        (float16, (40, 30), (30, 31), float16),
        (float16, (0, 30), (30, 50), float16),
        (float16, (40, 0), (0, 50), float16),
        (float16, (2, 0, 40, 30), (2, 0, 30, 50), float16),
    ],
    ids=str,
)
def test_other_products_are_refused_and_nothing_is_written(refused):
    dtype, first, second, to = refused
    out = np.full((*first[:-1], second[-1]), 7, to)
    assert not widening_matmul.matmul_into(np.ones(first, dtype), np.ones(second, dtype), out, None)
    assert (out == 7).all()


def test_misaligned_operands_are_refused():
    a = np.frombuffer(b"\0" + drawn(float16, 40, 30).tobytes(), np.uint8)[1:].view(float16).reshape(40, 30)
    assert not widening_matmul.matmul_into(a, drawn(float16, 30, 50), np.empty((40, 50), float32), None)


def test_bits_do_not_depend_on_the_number_of_threads(two_threads):
    a, b = drawn(bfloat16, 300, 500), drawn(bfloat16, 500, 410)
    two = product(a, b, float32)
    set_num_threads(1)
    np.testing.assert_array_equal(product(a, b, float32), two)


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
@pytest.mark.parametrize(
    "case",
    [
        Case("linear", normal(4, 30, 64), normal(40, 64), normal(40)),
        Case("matmul", normal(2, 3, 40, 36), normal(2, 3, 36, 48)),
        Case("matmul", normal(5, 40, 36), normal(36, 48)),
        Case("addmm", normal(40), normal(70, 64), normal(64, 40)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_ops_run_it_forward_and_backward_where_the_cpu_has_no_units(case, dtype, monkeypatch):
    done, multiply = [], widening_matmul.matmul_into
    monkeypatch.setattr(widening_matmul, "matmul_into", lambda *given: (done.append(multiply(*given)), done[-1])[1])
    monkeypatch.setattr(gemm, "has_fast_matmul", lambda dtype: dtype == float32)
    check_precision(case, dtype)
    assert done == [True] * 3


@pytest.mark.skipif(library() is None, reason=unavailable_reason())
def test_a_float32_gradient_is_written_to_the_buffer_that_is_given(monkeypatch):
    monkeypatch.setattr(gemm, "has_fast_matmul", lambda dtype: dtype == float32)
    x, w = Tensor(drawn(bfloat16, 40, 64)), Tensor(drawn(float32, 48, 64), requires_grad=True)
    for _ in range(2):
        ops.linear(x, w.to(bfloat16)).float().sum().backward()
    want = 2 * np.broadcast_to(x.numpy().astype(float64).sum(0), (48, 64))
    np.testing.assert_allclose(w.grad.numpy(), want, rtol=1e-2, atol=0.1)
