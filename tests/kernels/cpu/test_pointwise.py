"""The compiled elementwise kernels: digits over the whole range, what is not finite, layouts, threads."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.dtypes import bfloat16, bool_, float16, float32
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.kernels import shared as table
from ampkit.kernels.cpu.pointwise import elementwise
from ampkit.ops.pointwise.error_function import erf_array, erfc_array, erfinv_array
from ampkit.testing import Case, check_precision, normal

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

CASES = [
    Case("sigmoid", normal(300, 301)),
    Case("tanh", normal(300, 301)),
    Case("leaky_relu", normal(300, 301), negative_slope=0.1),
]
FUNCTIONS = {
    "sigmoid": (ops.sigmoid, lambda x: 1 / (1 + np.exp(-x)), lambda y, x: y * (1 - y)),
    "tanh": (ops.tanh, np.tanh, lambda y, x: 1 - y * y),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.2), lambda x: x * np.where(x > 0, 1, 0.2), lambda y, x: y / x),
}


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    check_precision(case, dtype)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_digit_over_the_whole_range(name, dtype):
    function, exact, gradient = FUNCTIONS[name]
    small = np.geomspace(1e-30, 80, 40000)
    values = np.concatenate([small, -small, np.linspace(-80, 80, 40001)[::3]]).astype(dtype)
    x = Tensor(values, requires_grad=True)
    y = function(x)
    unit = 2.0**-8 if dtype == bfloat16 else 6e-7
    found, wide = y.array.astype(float), values.astype(float)
    np.testing.assert_allclose(found, exact(wide), rtol=unit)
    with np.errstate(invalid="ignore"):
        want = gradient(found, wide)  # from the output as it was rounded: that is what is kept
    back = grad(y, [x], Tensor(np.ones(values.shape, dtype)))[0].numpy().astype(float)
    known = np.isfinite(want)
    np.testing.assert_allclose(back[known], want[known], rtol=2.5 * unit, atol=2e-7)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_finite_comes_out_as_in_the_reference_wherever_it_stands(name, dtype):
    function = FUNCTIONS[name][0]
    rng = np.random.default_rng(0)
    values, gradients = (rng.standard_normal((300, 301)) for _ in range(2))
    for row, wild in enumerate([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]):
        values[row, 30:70] = wild
        gradients[row + 10, 30:70] = wild
    values[-1, -3:] = np.nan

    def run():
        x = Tensor(values.astype(dtype), requires_grad=True)
        y = function(x)
        back = grad(y, [x], Tensor(gradients.astype(dtype)))[0]
        return y.detach().numpy().astype(float), back.numpy().astype(float)

    found = run()
    with reference_only():
        truth = run()
    np.testing.assert_allclose(found[0], truth[0], rtol=1e-2)
    where = ~np.isnan(values)  # the gradient where NaN went in is nobody's business
    np.testing.assert_allclose(found[1][where], truth[1][where], rtol=2e-2, atol=1e-6)
    if name != "leaky_relu":
        assert np.isnan(found[1][~where]).all()


def test_a_relu_that_does_not_leak_keeps_nan():
    values = np.full((300, 301), np.nan, np.float32)
    assert np.isnan(ops.leaky_relu(Tensor(values), 0.0).numpy()).all()


# Functions over all of float32: the bound of their error in units in the last place, and the truth in float64.
_VALUES = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32).view(np.float32)
_SPECIAL = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, 1e-38], np.float32)
_VALUES = np.concatenate([_VALUES, np.linspace(-20, 20, 100_001, dtype=np.float32), _SPECIAL])
UNITS = {
    "Exp": (1.1, np.exp), "Exp2": (0.6, np.exp2), "Expm1": (1.6, np.expm1), "Log": (1, np.log), "Log2": (0.6, np.log2),
    "Log10": (0.6, np.log10), "Log1p": (1.6, np.log1p), "Tanh": (2.4, np.tanh), "Sin": (0.6, np.sin),
    "Cos": (0.6, np.cos), "Tan": (0.6, np.tan), "Asin": (0.6, np.arcsin), "Acos": (0.6, np.arccos),
    "Atan": (0.6, np.arctan), "Sinh": (0.6, np.sinh), "Cosh": (0.6, np.cosh), "Asinh": (0.6, np.arcsinh),
    "Acosh": (0.6, np.arccosh), "Atanh": (0.6, np.arctanh), "Sqrt": (0.6, np.sqrt), "Floor": (0, np.floor),
    "Ceil": (0, np.ceil), "Trunc": (0, np.trunc), "Round": (0, np.rint), "Erf": (0.7, erf_array),
    "Erfc": (0.7, erfc_array), "ErfInv": (0.6, erfinv_array),
}  # fmt: skip
PAIRS = {
    "Pow": (0.6, np.power), "Atan2": (0.6, np.arctan2), "Hypot": (0.6, np.hypot), "FMod": (0, np.fmod),
    "Remainder": (0, lambda x, y: np.remainder(x.astype(np.float32), y.astype(np.float32))),
}  # fmt: skip


def _check_units(got, want, bound):
    got, wide = got.astype(float), want.astype(np.float64)
    rounded = want.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite].astype(float))
    units = np.maximum(np.spacing(np.abs(rounded[finite])).astype(float), 2.0**-149)
    assert (np.abs(got[finite] - wide[finite]) <= bound * units).all()


@pytest.mark.parametrize("name", UNITS)
@np.errstate(all="ignore")
def test_a_function_is_precise_over_all_of_float32(name):
    bound, exact = UNITS[name]
    _check_units(elementwise.forward(name, (_VALUES,), float32), exact(_VALUES.astype(np.float64)), bound)


@pytest.mark.parametrize("name", PAIRS)
@np.errstate(all="ignore")
def test_a_function_of_two_is_precise_over_all_of_float32(name):
    bound, exact = PAIRS[name]
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 3, -3, 0.5, -0.5, 1e-40, 2.5], np.float32)
    for x, y in ((_VALUES, _VALUES[::-1]), [each.ravel() for each in np.meshgrid(special, special)]):
        got = elementwise.forward(name, (x, y), float32)
        _check_units(got, exact(x.astype(np.float64), y.astype(np.float64)), bound)


def _laid_out(array):
    """The same values in several layouts."""
    wide = np.repeat(array, 2, -1)[..., ::2]
    turned = np.ascontiguousarray(array.T).T
    return {"rows": array, "every other": wide, "transposed": turned, "backwards": array[::-1].copy()[::-1]}


SHAPES = [(0, 5), (1, 1), (7, 3), (33, 65), (70, 130), (3, 5000)]


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_layout_gives_the_same_bits(shape, dtype):
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    want = (x.astype(np.float32) + 2 * y.astype(np.float32)).astype(dtype)
    for first in _laid_out(x).values():
        for second in _laid_out(y).values():
            np.testing.assert_array_equal(elementwise.forward("Add", (first, second, 2.0), dtype), want)


SHORT = re.findall(r"^FUNCTION_SHORT\((\w+), (\d)", (Path(table.__file__).parent / "functions.h").read_text(), re.M)


def _ways(shape, place, dtype):
    """A tensor with what is not finite among its values, a number, and a tensor of one value."""
    tensor = (np.random.default_rng(place).standard_normal(shape) * 3).astype(dtype)
    tensor.ravel()[[3, 2000 % tensor.size]] = (np.inf, np.nan, 0.0)[place]
    return tensor, 1.5 + place, np.broadcast_to(np.array(2.5 - place, dtype), shape)


def _run_both(name, dy, operands, gradients, dtype):
    return elementwise.forward(name, operands, dtype), *elementwise.backward(name, dy, operands, [dtype] * gradients)


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize(("name", "tensors"), SHORT, ids=lambda value: value)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # as the kernels round
def test_loops_that_read_what_is_stored_give_the_bits_of_those_of_float32(name, tensors, dtype):
    shape, gradients = (5, 1037), int(tensors)
    for dy, x, y in itertools.product(*(_ways(shape, place, dtype) for place in range(3))):
        if not isinstance(dy, np.ndarray) or (not isinstance(x, np.ndarray) and not isinstance(y, np.ndarray)):
            continue  # no gradients come as numbers, and a function has a tensor among its operands
        dense = [np.full(shape, operand, np.float32) for operand in (dy, x, y)]
        got = _run_both(name, dy, (x, y, 3.0), gradients, dtype)
        want = _run_both(name, dense[0], (*dense[1:], np.full(shape, np.float32(3))), gradients, float32)
        for one, other in zip(got, want, strict=True):
            full = np.broadcast_to(one, shape).astype(np.float32)
            np.testing.assert_array_equal(full, other.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("other", [(130,), (70, 1), (1, 1), ()], ids=str)
def test_operands_broadcast_and_results_keep_the_order_in_memory(other):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((6, 70, 130)).astype(np.float32), rng.standard_normal(other).astype(np.float32)
    for first in (x, x.transpose(0, 2, 1).copy().transpose(0, 2, 1), np.broadcast_to(x[:1], x.shape)):
        got = elementwise.forward("Sub", (first, y, 1.0), float32)
        np.testing.assert_array_equal(got, first - y)
        assert 0 in first.strides or got.strides == first.strides
        dx, dy = elementwise.backward("Mul", np.broadcast_to(np.float32(2), x.shape), (first, y), (float32, bfloat16))
        np.testing.assert_array_equal(dx, np.broadcast_to(2 * y, x.shape))
        np.testing.assert_array_equal(dy, (2 * first).astype(bfloat16))


def test_bool_is_read_and_written():
    x = np.random.default_rng(1).standard_normal((50, 60)).astype(np.float32)
    mask = elementwise.forward("Less", (x, 0.0), bool_)
    np.testing.assert_array_equal(mask, x < 0)
    np.testing.assert_array_equal(elementwise.forward("Where", (mask.T, 1.0, x.T), float32), np.where(mask, 1, x).T)


def test_what_the_kernel_does_not_take_is_declined():
    misaligned = np.zeros(4 * 100 + 1, np.uint8)[1:].view(np.float32)
    too_many_axes = np.zeros((4,) * 8, np.float32)[::2, ::2, ::2, ::2, ::2, ::2, ::2, ::2]
    for array in (misaligned, np.zeros(100), too_many_axes):
        with pytest.raises(UnsupportedError):
            elementwise.forward("Neg", (array,), float32)


def test_the_number_of_threads_changes_no_bit():
    x = np.random.default_rng(1).standard_normal(300_001).astype(np.float32)
    before, found = get_num_threads(), []
    try:
        for threads in (1, 2):
            set_num_threads(threads)
            found.append(
                (elementwise.forward("Gelu", (x,), float32), elementwise.total("MSELoss", (x, 0.5), 3, float32))
            )
    finally:
        set_num_threads(before)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    np.testing.assert_allclose(found[0][1], ((x.astype(float) - 0.5) ** 2).sum() / 3, rtol=1e-7)


# rows of float32 that are longer than a buffer, and operands that are constant along them


LONG = {
    "dense": ((2, 40_001), (2, 40_001)),
    "a number per row": ((3, 5_000), (3, 1)),
    "one row for all": ((70, 3_000), (3_000,)),
    "a number per channel": ((2, 3, 50, 61), (3, 1, 1)),
    "short rows": ((900, 100), (900, 1)),
    "one number": ((40_001,), (1,)),
}
TWO = {
    "Add": lambda x, y: x + 0.5 * y,  # of tensors and a number, in a loop of its own
    "Atan2": lambda x, y: np.arctan2(x, y),  # by buffers
    "Hypot": lambda x, y: np.hypot(x, y),
}


@pytest.mark.parametrize("shapes", LONG.values(), ids=LONG)
@pytest.mark.parametrize("name", TWO)
def test_long_rows_of_float32_are_those_of_float64_with_any_broadcast_operand(name, shapes):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    number = (0.5,) if name == "Add" else ()
    for given in ((x, y), (y, x)):
        found = elementwise.forward(name, (*given, *number), float32)
        np.testing.assert_allclose(found, TWO[name](*[a.astype(float) for a in given]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["LeakyRelu", "Mul", "Atan2"])
def test_a_gradient_that_is_one_number_gives_the_bits_of_a_dense_one(name):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((3, 40_001)).astype(np.float32) for _ in range(2))
    operands, wanted = ((x, 0.1), (float32,)) if name == "LeakyRelu" else ((x, y), (float32, float32))
    dense = np.full(x.shape, 0.3, np.float32)
    for constant in (np.broadcast_to(dense[:1, :1], x.shape), np.broadcast_to(dense[:, :1], x.shape)):
        for found, expected in zip(
            elementwise.backward(name, constant, operands, wanted),
            elementwise.backward(name, dense, operands, wanted),
            strict=True,
        ):
            assert found.tobytes() == expected.tobytes()


GATES = {
    "relu": (lambda lib, x: lib.relu(x), lambda x: ~(x <= 0)),
    "threshold": (lambda lib, x: lib.threshold(x, 0.5, 9.0), lambda x: ~(x <= 0.5)),
    "clamp": (lambda lib, x: lib.clamp(x, -0.5, 1.0), lambda x: (x >= -0.5) & (x <= 1)),
    "hardtanh": (lambda lib, x: lib.hardtanh(x, -0.5, 1.0), lambda x: ~((x <= -0.5) | (x >= 1))),
    "nan_to_num": (lambda lib, x: lib.nan_to_num(x), np.isfinite),
}


@pytest.mark.parametrize("layout", [slice(None), slice(None, None, 2)], ids=["dense", "strided"])
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", GATES)
def test_a_gate_passes_every_bit_of_a_gradient_or_none(name, dtype, layout):
    call, passes = GATES[name]
    tiny = np.finfo(np.float32).smallest_subnormal if dtype == float32 else 1e-7 if dtype == float16 else 1e-40
    wild = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 1.5, -2.0, 0.5, 1.0, -0.5], np.float32)
    x, dy = (a.reshape(-1).astype(dtype) for a in np.meshgrid(np.tile(wild, 5), np.tile(wild, 5)))
    x, dy = x[layout], dy[layout]
    leaf = Tensor(x, requires_grad=True)
    (found,) = grad(call(ops, leaf), [leaf], Tensor(dy))
    want = np.where(passes(x.astype(np.float32)), dy, dtype.type(0))
    bits = f"u{dtype.itemsize}"
    assert found.array.astype(dtype).view(bits).tolist() == np.ascontiguousarray(want).view(bits).tolist()
