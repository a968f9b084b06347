"""Arithmetic, choices, activations, conversions and changes in place: what the generic cases do not say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base import dtypes
from ampkit.base.dtypes import bfloat16, float16, float32, float64, int64
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, RangeError, ShapeError, StateError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import autocast, categories
from ampkit.core.random import manual_seed
from ampkit.nn import Parameter


def ones(*shape, dtype=float32, requires_grad=False):
    return Tensor(np.ones(shape, dtype), requires_grad)


# dtypes


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (ones(2, dtype=float16), 2.5, float16),
        (ones(2, dtype=bfloat16), ones(dtype=float32), bfloat16),
        (ones(2, dtype=float16), ones(2, dtype=bfloat16), float32),
        (ones(2, dtype=float16), ones(2), float32),
        (ones(2, dtype=int64), ones(2, dtype=float16), float16),
        (ones(2, dtype=int64), 2, int64),
        (ones(2, dtype=int64), 0.5, float32),
        (ones(2, dtype=float64), ones(2), float64),
        (ones(2, dtype=np.bool_), 2, int64),
    ],
)
@pytest.mark.parametrize("name", ["add", "mul", "maximum", "clamp", "where"])
def test_operands_agree_on_a_dtype_without_numpys_promotion(name, left, right, expected):
    function = getattr(ops, name)
    out = function(tensor([True, False]), left, right) if name == "where" else function(left, right)
    assert out.dtype == expected


def test_an_operator_with_a_numpy_array_on_either_side_says_how_to_wrap_it():
    x, array = ones(3), np.ones(3)
    for call in (lambda: x + array, lambda: array * x, lambda: x == array, lambda: array - x):
        with pytest.raises(DTypeError, match=r"wrap arrays with ampkit.tensor"):
            call()


@pytest.mark.cpu
def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ShapeError, match=r"add: needs shapes that broadcast, got \(2, 3\) and \(4,\)"):
        ones(2, 3) + ones(4)
    with pytest.raises(ShapeError, match=r"where: needs shapes that broadcast"):
        ops.where(tensor([True, False]), ones(3), 0.0)


def test_division_of_integers_is_true_division_and_rounded_modes_keep_integers():
    x = tensor([-7, 7, 6])
    assert ops.div(x, 2).dtype == float32
    assert (x / 4).tolist() == [-1.75, 1.75, 1.5]
    assert ops.div(x, 2, rounding_mode="floor").tolist() == [-4, 3, 3]
    assert ops.div(x, 2, rounding_mode="trunc").tolist() == [-3, 3, 3]
    assert (x // 2).tolist() == [-4, 3, 3]
    assert (x % 4).tolist() == [1, 3, 2]
    with pytest.raises(ArgumentError, match="rounding_mode"):
        ops.div(x, 2, rounding_mode="up")


def test_a_quotient_of_a_number_by_a_tensor_is_float32_in_autocast_as_reciprocal():
    x = ones(2, dtype=float16)
    with autocast(dtype="float16"):
        assert (1 / x).dtype == ops.reciprocal(x).dtype == float32
        assert (x / 2).dtype == float16
    assert (1 / x).dtype == float16


LISTS = {
    "float32": "acos asin cosh exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus prod cumprod "
    "cumsum sum norm",
    "widest": "addcdiv addcmul atan2 scatter_add add sub mul div cat stack eq ge gt le lt ne where",
    "keep": "relu gelu silu sigmoid tanh mean var std masked_fill sqrt sin cos erf leaky_relu elu amax max",
}


@pytest.mark.parametrize(("word", "name"), [(word, name) for word, names in LISTS.items() for name in names.split()])
def test_the_category_of_an_op_is_that_of_the_table(word, name):
    assert categories[name].value == word


# values


def test_erf_is_accurate_to_a_few_units_of_the_last_place():
    x = np.linspace(-7, 7, 20001)
    truth = np.array([math.erf(v) for v in x])
    wide = ops.erf(Tensor(x)).array
    assert np.max(np.abs(wide - truth) / np.spacing(np.abs(truth))) <= 4
    narrow = ops.erf(Tensor(x.astype(np.float32))).array
    truth = np.array([math.erf(v) for v in x.astype(np.float32).astype(np.float64)])
    assert np.max(np.abs(narrow - truth) / np.spacing(np.abs(truth).astype(np.float32))) <= 7


@pytest.mark.cpu
def test_sigmoid_silu_and_softplus_stay_finite_and_accurate_at_both_ends():
    x = tensor([-200.0, -50.0, 50.0, 200.0])
    np.testing.assert_allclose(ops.sigmoid(x).array, [0.0, math.exp(-50), 1, 1], rtol=1e-6)
    np.testing.assert_allclose(ops.silu(x).array, [0.0, -50 * math.exp(-50), 50, 200], rtol=1e-6)
    np.testing.assert_allclose(ops.softplus(x).array, [0.0, math.exp(-50), 50, 200], rtol=1e-6)
    np.testing.assert_allclose(ops.logsigmoid(x).array, [-200, -50, -math.exp(-50), 0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32])
def test_relu_keeps_nan_and_lets_no_infinite_gradient_through_where_it_is_zero(dtype):
    x = Tensor(np.array([-1, 0, 2, np.nan, np.inf], dtype), requires_grad=True)
    y = ops.relu(x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.array.astype(float), [0, 0, 2, np.nan, np.inf])
    (dx,) = grad(y, x, Tensor(np.array([np.inf, np.nan, 3, 4, 5], dtype)))
    assert dx.tolist() == [0, 0, 3, 4, 5]


def test_equal_operands_of_maximum_share_the_gradient():
    x, y = tensor([1.0, 2.0, 3.0], requires_grad=True), tensor([1.0, 5.0, 0.0], requires_grad=True)
    dx, dy = grad(ops.maximum(x, y).sum(), (x, y))
    assert dx.tolist() == [0.5, 0, 1]
    assert dy.tolist() == [0.5, 1, 0]


@pytest.mark.cpu
def test_masked_fill_refuses_a_value_that_the_format_does_not_hold_and_says_what_to_use():
    mask = tensor([True, False])
    with pytest.raises(
        ArgumentError, match=r'largest 65504.*-1e\+09\nhelp: use float\("-inf"\), or finfo\(input.dtype\).min = -65504'
    ):
        ops.masked_fill(ones(2, dtype=float16), mask, -1e9)
    assert ops.masked_fill(ones(2, dtype=bfloat16), mask, -1e9).dtype == bfloat16
    assert ops.masked_fill(ones(2, dtype=float16), mask, float("-inf")).tolist() == [-math.inf, 1]
    assert ops.masked_fill(ones(2, dtype=float16), mask, tensor(3.0)).tolist() == [3, 1]
    with pytest.raises(ArgumentError, match="whole number"):
        ops.masked_fill(tensor([1, 2]), mask, 0.5)
    with pytest.raises(DTypeError, match="mask of dtype bool, got int64"):
        ops.masked_fill(ones(2), tensor([1, 0]), 0.0)
    with pytest.raises(ShapeError, match="broadcasts with"):
        ops.masked_fill(ones(2), tensor([True, False, True]), 0.0)


@pytest.mark.cpu
def test_where_without_values_lists_the_true_elements_and_refuses_a_condition_of_numbers():
    rows, columns = ops.where(tensor([[True, False], [False, True]]))
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [0, 1])
    with pytest.raises(DTypeError, match="condition of dtype bool"):
        ops.where(tensor([1, 0]), ones(2), 0.0)


def test_wrong_arguments_say_what_is_needed():
    with pytest.raises(ArgumentError, match="clamp: needs min or max"):
        ops.clamp(ones(2))
    with pytest.raises(ArgumentError, match="approximate"):
        ops.gelu(ones(2), "erf")
    with pytest.raises(ArgumentError, match="non-negative exponent"):
        tensor([1, 2]) ** -1
    with pytest.raises(DTypeError, match="bitwise_and: needs integers or bool, got float32"):
        ones(2) & ones(2)
    with pytest.raises(DTypeError, match="Tensors and numbers, got str"):
        ones(2) + "a"


@pytest.mark.cpu
def test_the_power_zero_has_no_gradient_and_zero_stays_zero():
    x = tensor([0.0, 2.0], requires_grad=True)
    assert grad((x**0).sum(), x)[0].tolist() == [0, 0]
    k = tensor([2.0, 2.0], requires_grad=True)
    np.testing.assert_allclose(grad(ops.pow(x, k).sum(), k)[0].array, [0, 4 * math.log(2)], rtol=1e-6)


def test_comparison_with_something_that_is_no_number_is_plain_pythons():
    x = ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    assert (x > 0.5).tolist() == [True, True]


# conversions


def test_to_changes_the_dtype_and_gives_the_gradient_back_in_the_inputs():
    x = ones(3, requires_grad=True)
    assert x.to(float32) is x
    assert x.to("cpu") is x
    assert x.to(float32, copy=True) is not x
    assert x.to(ones(1, dtype=bfloat16)).dtype == bfloat16
    y = x.half()
    assert y.dtype == float16
    assert grad(y.sum(), x)[0].dtype == float32
    kinds = [x.double(), x.bfloat16(), x.long(), x.int(), x.short(), x.bool(), x.float()]
    assert [k.dtype.name for k in kinds] == ["float64", "bfloat16", "int64", "int32", "int16", "bool", "float32"]
    assert tensor([1, 0]).float().tolist() == [1, 0]
    assert not x.long().requires_grad


@pytest.mark.no_gpu
def test_to_a_device_that_is_not_there_raises():
    with pytest.raises(DeviceError):
        ones(2).cuda()
    with pytest.raises(DeviceError):
        ones(2).to("gpu")
    assert ones(2).cpu().device == "cpu"


# changes in place


def test_a_leaf_that_requires_grad_changes_in_place_only_within_no_grad():
    x = ones(3, requires_grad=True)
    for change in (lambda: x.add_(1), lambda: x.zero_(), lambda: x.__iadd__(1), lambda: x.__setitem__(0, 5.0)):
        with pytest.raises(StateError, match="a leaf that requires grad"):
            change()
    with no_grad():
        x.add_(1).mul_(3).sub_(1, alpha=2).div_(4)
    assert x.tolist() == [1, 1, 1]


@pytest.mark.cpu
def test_augmented_assignment_writes_parameters_within_no_grad_and_records_losses_outside():
    weight = Parameter(np.ones(2, np.float32))
    same = weight
    with no_grad():
        weight -= 0.5
        weight /= 2
    assert weight is same
    assert weight.tolist() == [0.25, 0.25]
    total = tensor(0.0)
    for _ in range(3):
        total += (weight * weight).sum()
    total *= 2
    assert grad(total, weight)[0].tolist() == [3, 3]


@pytest.mark.cpu
def test_a_change_in_place_keeps_dtype_and_shape_or_raises():
    x = ones(2, dtype=float16)
    assert x.add_(ones(2)).dtype == float16
    with pytest.raises(DTypeError, match="whole numbers, for int64"):
        tensor([1, 2]).add_(0.5)
    with pytest.raises(DTypeError, match="whole numbers, for int64"):
        tensor([1, 2])[0] = 1.5
    with pytest.raises(ShapeError, match=r"an answer of shape \(2,\), got \(3, 2\)"):
        x.add_(ones(3, 2))
    with pytest.raises(ShapeError, match="copy_"):
        x.copy_(ones(3))
    assert x.copy_(tensor([2.5])).tolist() == [2.5, 2.5]
    assert x.fill_(7).clamp_(max=3).tolist() == [3, 3]
    assert x.masked_fill_(tensor([True, False]), -1).tolist() == [-1, 3]


@pytest.mark.cpu
def test_assigning_by_index_writes_the_place_and_makes_an_old_backward_raise():
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    weight = ones(2, 2, requires_grad=True)
    y = (weight * x).sum()
    x[0, 1] = 9.0
    x[x > 8] = 5.0
    x[1:] = tensor([7.0, 8.0])
    assert x.tolist() == [[1, 5], [7, 8]]
    with pytest.raises(StateError, match="changed in place"):
        y.backward()
    with pytest.raises(RangeError):
        x[5] = 0.0
    with pytest.raises(ShapeError):
        x[0] = tensor([1.0, 2.0, 3.0])


def test_random_fills_follow_the_seed():
    manual_seed(3)
    first = ones(50).normal_(1.0, 2.0).uniform_(-1, 1), ones(50).normal_(1.0, 0.1)
    manual_seed(3)
    again = ones(50).normal_(1.0, 2.0).uniform_(-1, 1), ones(50).normal_(1.0, 0.1)
    for a, b in zip(first, again, strict=True):
        assert a.tolist() == b.tolist()
    assert -1 <= first[0].min().item() < first[0].max().item() < 1
    assert abs(first[1].mean().item() - 1) < 0.1
    with pytest.raises(ArgumentError):
        ones(2).normal_(std=-1)


def test_a_tensor_has_every_method_of_the_table():
    for name in ("view", "T", "half", "__radd__", "__getitem__", "__iadd__", "new_zeros", "softmax", "matmul"):
        assert hasattr(Tensor, name)
    assert ones(2, 3).T.shape == (3, 2)
    assert ones(4, 2, 3).mT.shape == (4, 3, 2)
    assert ones(2, dtype=float16).new_zeros(3).dtype == float16
    there = ones(2, dtype=float16)
    like = tensor([1], device="cpu").type_as(there)
    assert (like.dtype, like.device) == (float16, there.device)
    assert ones(2, 3).view(-1).shape == (6,)
    assert dtypes.int64 == tensor([3]).dtype
    assert (2 - ones(2)).tolist() == [1, 1]
    assert (2 ** tensor([3.0])).tolist() == [8]
    assert (~tensor([True])).tolist() == [False]


def test_the_angle_of_integers_is_float32():
    out = ops.atan2(tensor([1]), tensor([1]))
    assert out.dtype == float32
    assert out.item() == pytest.approx(np.pi / 4)


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
@pytest.mark.parametrize("zero", [0, tensor([1, 0]), tensor(0)], ids=["number", "tensor", "scalar"])
def test_an_integer_divided_by_zero_raises(name, zero):
    with pytest.raises(RangeError, match=f"{name}: needs a divisor other than 0 for integers"):
        getattr(ops, name)(tensor([3, 4]), zero)


def test_a_float_divided_by_zero_is_infinite():
    assert ops.floor_divide(tensor([1.0]), 0).tolist() == [math.inf]
    assert math.isnan(ops.remainder(tensor([1]), 0.0).item())


def test_relu6_keeps_integers():
    assert ops.relu6(tensor([-1, 3, 9])).tolist() == [0, 3, 6]
    assert ops.relu6(tensor([1])).dtype == int64


def test_to_takes_non_blocking():
    assert tensor([1.0]).to("cpu", non_blocking=True).tolist() == [1.0]
