"""Matrix products: one rounding, gradients in every combination, nothing kept in vain, clear errors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import autocast

RANDOM = np.random.default_rng(0)
LOW = pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)


def positive(dtype, *shape):
    return tensor(RANDOM.uniform(0.1, 0.6, shape), dtype=dtype)


def ulps(got, exact):
    """The largest distance of `got` from `exact` rounded once, in units in the last place."""
    a, b = (x.view(np.int16).astype(int) for x in (got, exact.astype(got.dtype)))
    return np.abs(np.where(a < 0, -(a & 0x7FFF), a) - np.where(b < 0, -(b & 0x7FFF), b)).max()


def wide(*tensors):
    return [t.array.astype(np.float64) for t in tensors]


@LOW
@pytest.mark.parametrize("side", [0, 1])
def test_the_gradient_of_a_broadcast_operand_is_the_exact_sum_over_the_batch_rounded_once(dtype, side):
    shapes = [(64, 5, 16), (64, 16, 7)]
    shapes[side] = (1, *shapes[side][1:])
    a, b = (tensor(RANDOM.standard_normal(shape), dtype=dtype, requires_grad=True) for shape in shapes)
    dy = tensor(RANDOM.standard_normal((64, 5, 7)), dtype=dtype)
    (a @ b).backward(dy)
    x, w, g = (each.numpy(force=True).astype(np.float64) for each in (a, b, dy))
    exact = (g @ w.swapaxes(1, 2), x.swapaxes(1, 2) @ g)[side].sum(0, keepdims=True)
    assert ulps((a, b)[side].grad.numpy(force=True), exact) <= 1


@LOW
def test_linear_is_within_one_ulp_of_the_exact_sum_rounded_once(dtype):
    x, w, b = positive(dtype, 7, 5000), positive(dtype, 6, 5000), positive(dtype, 6)
    a, c, d = wide(x, w, b)
    assert ulps(ops.linear(x, w, b).array, a @ c.T + d) <= 1


@LOW
def test_the_gradients_of_linear_are_within_one_ulp_of_the_exact_sums(dtype):
    x, w = positive(dtype, 2500, 5).requires_grad_(), positive(dtype, 2200, 5).requires_grad_()
    dy = positive(dtype, 2500, 2200)
    dx, dw = grad(ops.linear(x, w), [x, w], [dy])
    assert ulps(dx.array, wide(dy)[0] @ wide(w)[0]) <= 1
    assert ulps(dw.array, wide(dy)[0].T @ wide(x)[0]) <= 1


@pytest.mark.cpu
@LOW
@pytest.mark.parametrize(
    "shapes", [((3, 5000), (5000, 4)), ((2, 3, 5000), (5000, 4)), ((2, 3, 4000), (2, 4000, 5)), ((4000,), (4000,))]
)
def test_matmul_is_within_one_ulp_of_the_exact_sum_rounded_once(dtype, shapes):
    a, b = (positive(dtype, *s) for s in shapes)
    x, y = wide(a, b)
    assert ulps(ops.matmul(a, b).array, np.asarray(x @ y)) <= 1


@LOW
def test_einsum_of_three_operands_is_rounded_once(dtype):
    a, b, c = positive(dtype, 4, 900), positive(dtype, 900, 50), positive(dtype, 50, 3)
    x, y, z = wide(a, b, c)
    assert ulps(ops.einsum("ij,jk,kl->il", a, b, c).array, x @ y @ z) <= 1


def test_the_bias_is_added_before_the_rounding():
    x, w = tensor([[40000.0, 40000.0]], dtype=float16), tensor([[1.0], [1.0]], dtype=float16)
    b = tensor([-32000.0], dtype=float16)  # 80000 alone would be infinite
    assert ops.linear(x, Tensor(w.array.T), b).item() == ops.addmm(b, x, w).item() == 48000


@pytest.mark.parametrize("wanted", list(product([True, False], repeat=3)))
def test_every_combination_of_inputs_that_require_grad_works(wanted):
    arrays = [RANDOM.normal(size=s) for s in ((2, 5, 3), (4, 3), (4,))]
    full = [Tensor(a, True) for a in arrays]
    want = grad(ops.linear(*full).sum(), full)
    some = [Tensor(a, needs) for a, needs in zip(arrays, wanted, strict=True)]
    out = ops.linear(*some)
    assert out.requires_grad == any(wanted)
    if any(wanted):
        asked = [t for t in some if t.requires_grad]
        kept = [g for g, needs in zip(want, wanted, strict=True) if needs]
        for got, expected in zip(grad(out.sum(), asked), kept, strict=True):
            np.testing.assert_allclose(got.array, expected.array)


@pytest.mark.cpu
def test_a_frozen_weight_keeps_no_input_and_a_frozen_input_no_weight():
    x, w = tensor(np.ones((2, 3)), dtype=float32), tensor(np.ones((4, 3)), dtype=float32)
    with_weight = ops.linear(x, tensor(w, requires_grad=True)).node.saved
    with_input = ops.linear(tensor(x, requires_grad=True), w).node.saved
    assert hasattr(with_weight, "input")
    assert not hasattr(with_weight, "weight")
    assert hasattr(with_input, "weight")
    assert not hasattr(with_input, "input")


def test_what_is_saved_is_the_input_as_stored_and_no_wide_copy():
    x, w = positive(float16, 2, 3), positive(float16, 4, 3).requires_grad_()
    assert ops.linear(x, w).node.saved.input is x.array


def test_integer_products_stay_integer():
    a = tensor([[2**40, 1], [3, 4]])
    out = ops.matmul(a, tensor([[1, 2], [3, 4]]))
    assert out.dtype == np.int64
    assert out.tolist() == [[2**40 + 3, 2**41 + 4], [15, 22]]


def test_dot_in_autocast_takes_the_widest_dtype_and_matmul_the_low_one():
    a, b = tensor([1.0, 2.0], dtype=float16), tensor([3.0, 4.0])
    with autocast(dtype=float16):
        assert ops.dot(a, b).dtype == float32
        assert ops.matmul(a, b).dtype == ops.mv(tensor([[1.0, 2.0]]), b).dtype == float16
        assert ops.einsum("i,i->", a, b).dtype == float16


def test_products_of_mixed_dtypes_outside_autocast_raise_with_the_cure():
    with pytest.raises(DTypeError, match=r"(?s)linear: needs operands of one dtype.*help: "):
        ops.linear(positive(float16, 2, 3), positive(float32, 4, 3))


def test_beta_zero_leaves_nan_out():
    nan = tensor([[float("nan")]])
    assert ops.addmm(nan, tensor([[2.0]]), tensor([[3.0]]), beta=0).item() == 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: ops.linear(t(2, 5), t(4, 3)), "linear: needs input [..., 3] for weight [4, 3], got input [2, 5]"),
        (lambda t: ops.linear(t(2, 3), t(4, 3), t(3)), "linear: needs bias [4] for weight [4, 3], got bias [3]"),
        (lambda t: ops.linear(t(2, 3), t(3)), "linear: needs weight [out, in], got weight [3]"),
        (lambda t: ops.linear(t(), t(4, 3)), "linear: needs input [..., 3] for weight [4, 3], got input []"),
        (lambda t: ops.matmul(t(2, 5), t(4, 3)), "matmul: needs other [..., 5, 3] for input [2, 5], got other [4, 3]"),
        (lambda t: ops.matmul(t(2, 5), t(4)), "matmul: needs other [5] for input [2, 5], got other [4]"),
        (
            lambda t: ops.matmul(t(2, 5), t()),
            "matmul: needs operands with at least one axis, got input [2, 5] and other []",
        ),
        (
            lambda t: ops.matmul(t(2, 5), 3.0),
            "matmul: needs operands with at least one axis, got input [2, 5] and other []",
        ),
        (
            lambda t: ops.matmul(t(2, 1, 4), t(3, 4, 1)),
            "matmul: needs leading axes that broadcast, got input [2, 1, 4] and other [3, 4, 1]",
        ),
        (lambda t: ops.mm(t(2, 3), t(4, 5)), "mm: needs mat2 [3, N] for input [2, 3], got mat2 [4, 5]"),
        (lambda t: ops.mm(t(2, 3, 1), t(4, 5)), "mm: needs input [M, K], got input [2, 3, 1]"),
        (
            lambda t: ops.bmm(t(2, 3, 4), t(3, 4, 5)),
            "bmm: needs mat2 [2, 4, N] for input [2, 3, 4], got mat2 [3, 4, 5]",
        ),
        (lambda t: ops.mv(t(2, 3), t(2)), "mv: needs vec [3] for input [2, 3], got vec [2]"),
        (lambda t: ops.dot(t(2), t(3)), "dot: needs tensor [2] for input [2], got tensor [3]"),
        (lambda t: ops.outer(t(2, 1), t(3)), "outer: needs input [M], got input [2, 1]"),
        (lambda t: ops.addmm(t(3), t(2, 3), t(3, 4)), "addmm: needs input that broadcasts to [2, 4], got input [3]"),
        (
            lambda t: ops.einsum("ij,jk->ik", t(2, 3), t(4, 5)),
            "einsum: needs one length for index 'j' of 'ij,jk->ik', got operands [2, 3] and [4, 5]",
        ),
        (
            lambda t: ops.einsum("ijk->i", t(2, 3)),
            "einsum: needs an operand with the axes 'ijk' of 'ijk->i', got [2, 3]",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_named(call, message):
    with pytest.raises(ShapeError) as error:
        call(lambda *shape: tensor(np.ones(shape), dtype=float32))
    assert str(error.value) == message


@pytest.mark.parametrize("equation", ["ij,jk", "i1->i", "ij->k", "ij->ii"])
def test_an_equation_that_does_not_parse_is_refused(equation):
    with pytest.raises(ArgumentError, match="einsum: needs"):
        ops.einsum(equation, tensor(np.ones((2, 2)), dtype=float32))


def test_the_gradient_of_a_vector_shared_by_a_batch_is_summed_over_it():
    a, b = Tensor(RANDOM.normal(size=(3, 2, 4)), True), Tensor(RANDOM.normal(size=4), True)
    da, db = grad(ops.matmul(a, b).sum(), [a, b])
    assert da.shape == (3, 2, 4)
    np.testing.assert_allclose(db.array, a.array.sum((0, 1)))


def test_a_vector_that_is_broadcast_counts_each_of_its_copies():
    pair = tensor([[1.0, 1.0]]), tensor([[1.0]])
    assert ops.cosine_similarity(*pair).item() == pytest.approx(1)
    assert ops.cosine_similarity(tensor([[3.0, 4.0]]), tensor([[2.0]])).item() == pytest.approx(1.4 / 2**0.5)
    assert ops.vecdot(*pair).tolist() == [2]
    assert ops.tensordot(pair[1], tensor([[1.0], [2.0], [4.0]]), 1).tolist() == [[7]]


def test_in_a_region_tensordot_and_inner_take_the_wider_of_two_dtypes():
    half, full = tensor([[1.0, 2.0]], dtype=float16), tensor([[1.0, 2.0**-12]])
    with autocast(dtype=float16):
        for a, b, want in ((half, full, float32), (full, full, float32), (half, half, float16)):
            assert ops.tensordot(a, b, 2).dtype == ops.inner(a, b).dtype == want
        assert ops.tensordot(half, full, 2).item() == 1 + 2.0**-11
