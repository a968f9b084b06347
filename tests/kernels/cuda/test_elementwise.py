"""The GPU's elementwise kernels against their references, on emulated device arrays."""

from __future__ import annotations

import itertools
from math import inf, nan

import numpy as np
import pytest
from cuda_on_cpu import emulator
from cuda_on_cpu.entries import entries

from ampkit import Tensor, autocast, ops, testing
from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.nvrtc import KERNELS
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64
from ampkit.core.autograd import accumulate
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.fp_errors import ignore_fp_errors
from ampkit.core.op import ops as registry

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
ENDS = [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 0.5, -3.0, 3.0, 6.0, 20.5, -20.5, 88.0, -88.0, 104.0, 3e4, -3e4, 1e-6]


@pytest.fixture(autouse=True)
def launched(device, monkeypatch):
    """The entries that were launched, in order."""
    names, launch = [], elementwise.launch

    def spy(source, name, *args, **more):
        names.append(name)
        launch(source, name, *args, **more)

    monkeypatch.setattr(elementwise, "launch", spy)
    return names


def _values(dtype, *shape, seed=0, ends=False):
    drawn = np.asarray(np.random.default_rng(seed).normal(size=shape) * 2)
    if ends:
        drawn.ravel()[: len(ENDS)] = np.random.default_rng(seed).permutation(ENDS) if seed else ENDS
    with ignore_fp_errors():
        return drawn.astype(dtype)


def _run(function, arrays, device, place=None):
    """The result and the gradients with respect to float arrays, on the device."""
    place = place or device.asarray
    tensors = [Tensor(place(a), a.dtype.kind != "b") for a in arrays]
    with ignore_fp_errors():
        out = function(*tensors)
        points = [t for t in tensors if t.requires_grad]
        if not out.requires_grad:
            return [out.array]
        seed = np.random.default_rng(9).normal(size=out.shape).astype(out.dtype)
        gradients = grad(out, points, Tensor(device.asarray(seed)), allow_unused=True)
    return [out.array, *(None if s is None else s.array for s in gradients)]


def _agree(function, arrays, device, place=None, zeros=False):
    """The kernels' results, which are those of the references."""
    got = _run(function, arrays, device, place)
    with reference_only():
        wants = _run(function, arrays, device, place)
    for i, (mine, want) in enumerate(zip(got, wants, strict=True)):
        assert (mine is None) == (want is None)
        if want is None:
            continue
        assert mine.dtype == want.dtype and mine.shape == want.shape
        low = np.dtype(min((a.dtype for a in arrays), key=lambda d: d.itemsize))
        tolerance = (testing.GRADIENT_TOLERANCE if i else testing.TOLERANCE).get(mine.dtype if i == 0 else low)
        testing.assert_close(mine.get(), want.get(), tolerance)
        if zeros and i == 0:
            plain = mine.get().astype(float32)
            same = np.signbit(plain) == np.signbit(want.get().astype(float32))
            assert (same | (plain != 0)).all(), "a zero of the other sign"
    return got


def _wide(array):
    return array.astype(float64)


# every function, whatever stands in the arrays

ONE = ["neg", "abs", "square", "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"]
ONE += [
    "tanh",
    "erf",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "relu",
    "leaky_relu",
    "elu",
    "sigmoid",
]
ONE += ["logsigmoid", "silu", "softplus", "mish", "gelu", "hardsigmoid", "hardswish", "selu", "celu", "softsign"]
ONE += [
    "tanhshrink",
    "hardshrink",
    "softshrink",
    "hardtanh",
    "asinh",
    "acosh",
    "atanh",
    "sinc",
    "erfc",
    "erfinv",
    "logit",
]
TWO = ["add", "sub", "mul", "div", "pow", "atan2", "hypot", "xlogy", "maximum", "minimum", "clamp"]
PAIRS = ["floor_divide", "remainder", "fmod", "logaddexp", "logaddexp2", "copysign", "fmax", "fmin", "heaviside"]
FLAT = ["sign", "floor", "ceil", "trunc", "round", "frac", "lgamma"]  # those whose gradient is not the table's
WITH_NUMBERS = {
    "gelu, tanh": lambda x: ops.gelu(x, approximate="tanh"),
    "leaky_relu 0": lambda x: ops.leaky_relu(x, 0.0),
    "leaky_relu 0.3": lambda x: ops.leaky_relu(x, 0.3),
    "elu 0.7": lambda x: ops.elu(x, 0.7),
    "celu 0.7": lambda x: ops.celu(x, 0.7),
    "softplus 2, 5": lambda x: ops.softplus(x, 2.0, 5.0),
    "hardtanh -0.1, 0.3": lambda x: ops.hardtanh(x, -0.1, 0.3),
    "hardshrink 0.1": lambda x: ops.hardshrink(x, 0.1),
    "threshold": lambda x: ops.threshold(x, 0.1, 5.0),
    "x + 0.1": lambda x: x + 0.1,
    "add alpha": lambda x: ops.add(x, 2, alpha=0.3),
    "1 - x": lambda x: 1 - x,
    "sub alpha": lambda x: ops.sub(0.5, x, alpha=-3),
    "x * 0.1": lambda x: x * 0.1,
    "x / 3": lambda x: x / 3,
    "3 / x": lambda x: ops.div(3, x),
    "rdiv": lambda x: registry["rdiv"](x, 2.0),
    "x ** 0": lambda x: x**0,
    "x ** 1": lambda x: x**1,
    "x ** 2": lambda x: x**2,
    "x ** 3": lambda x: x**3,
    "x ** -1.5": lambda x: x**-1.5,
    "2 ** x": lambda x: 2**x,
    "0 ** x": lambda x: ops.pow(0.0, x),
    "maximum 0.1": lambda x: ops.maximum(x, 0.1),
    "minimum 0.5": lambda x: ops.minimum(x, 0.5),
    "clamp both": lambda x: ops.clamp(x, -1, 0.5),
    "clamp low": lambda x: ops.clamp(x, -1),
    "clamp high": lambda x: ops.clamp(x, max=0.1),
    "clamp crossed": lambda x: ops.clamp(x, 1, 0),
    "lerp": lambda x: ops.lerp(x, 2.0, 0.3),
    "logit 0.1": lambda x: ops.logit(x, 0.1),
    "x // 0.3": lambda x: x // 0.3,
    "x % -0.3": lambda x: x % -0.3,
    "fmod 0.3": lambda x: ops.fmod(x, 0.3),
    "fmax 0.1": lambda x: ops.fmax(x, 0.1),
    "heaviside": lambda x: ops.heaviside(x, 0.1),
    "nan_to_num": ops.nan_to_num,
    "nan_to_num, given": lambda x: ops.nan_to_num(x, 0.1, 2.5, -1e4),
    "nan_to_num, infinite": lambda x: ops.nan_to_num(x, inf, None, 1e30),
    "masked_fill": lambda x: ops.masked_fill(x, x > 0.5, -inf),
}
# Those whose zeros have a sign; elsewhere it is that of NumPy's minimum(-0, 0), which depends on the machine.
SIGNED = {"neg", "abs", "square", "sqrt", "exp", "expm1", "tanh", "erf", "sin", "tan", "asin", "atan", "sinh", "relu"}
SIGNED |= {"leaky_relu", "silu", "gelu", "softsign", "hardshrink", *FLAT, "x + 0.1", "x * 0.1", "x ** 3", "masked_fill"}
FORMS = {name: getattr(ops, name) for name in ONE + FLAT} | WITH_NUMBERS


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", FORMS)
def test_a_function_of_one_array_is_its_reference_at_the_ends_too(name, dtype, device, launched):
    got = _agree(FORMS[name], [_values(dtype, 4, 37, ends=True)], device, zeros=name in SIGNED)
    expected = {entry.partition("<")[0] for entry in launched}
    assert "elementwise_forward" in expected
    passes = name in FLAT or name in ("x + 0.1", "add alpha", "x // 0.3", "x % -0.3", "fmod 0.3")
    assert passes or len(got) == 1 or "elementwise_backward" in expected


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", TWO + PAIRS)
def test_a_function_of_two_arrays_is_its_reference_at_the_ends_too(name, dtype, device, launched):
    pairs = np.array(list(itertools.product(ENDS, ENDS))).T
    with ignore_fp_errors():
        x, y = pairs.astype(dtype)
    _agree(registry.get(name), [x, y], device, zeros=name in ("floor_divide", "remainder", "fmod", "copysign"))
    kinds = {entry.partition("<")[0] for entry in launched}
    assert kinds == {"elementwise_forward", *(["elementwise_backward"] if name not in ("add", "floor_divide") else [])}


THREE = {
    "lerp": ops.lerp,
    "addcmul": lambda *t: ops.addcmul(*t, value=0.3),
    "addcdiv": lambda *t: ops.addcdiv(*t, value=-2),
    "clamp": ops.clamp,
    "where": lambda x, y, z: ops.where(x > 0.1, y, z),
    "clamp by a number and an array": lambda x, y, z: ops.clamp(x, -1, y) + ops.clamp(x, y, 0.5) + ops.clamp(x, max=z),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", THREE)
def test_a_function_of_three_arrays_is_its_reference(name, dtype, device, launched):
    arrays = [np.round(_values(dtype, 41, seed=seed).astype(float32)).astype(dtype) for seed in (1, 2, 3)]  # with ties
    arrays[2][arrays[2] == 0] = 1
    _agree(THREE[name], arrays, device)
    assert {entry.partition("<")[0] for entry in launched} == {"elementwise_forward", "elementwise_backward"}


COMPARES = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", COMPARES)
def test_a_comparison_is_its_reference(name, dtype, device, launched):
    x, y = _values(dtype, 61, ends=True), _values(dtype, 61, ends=True, seed=1)
    y[30:40] = x[30:40]
    x[50] = y[50] = 0.1
    for function in (getattr(ops, name), lambda x, y: getattr(ops, name)(x, 0.1)):
        (got,) = _agree(function, [x, y], device)
        assert got.dtype == bool_
    assert len(launched) == 2


QUESTIONS = ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not"]
LOGIC = ["and", "or", "xor"]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_its_reference(name, dtype, device, launched):
    x = _values(dtype, 5, 61, ends=True)
    (got,) = _run(getattr(ops, name), [x], device)
    assert got.dtype == bool_ and len(launched) == 1
    with reference_only():  # on the host: CuPy has no loop of bfloat16 for it
        np.testing.assert_array_equal(got.get(), getattr(ops, name)(Tensor(x)).numpy())


@pytest.mark.parametrize("name", LOGIC)
def test_logic_is_its_reference(name, device, launched):
    x, y = (_values(float16, 61, ends=True, seed=seed) for seed in (0, 1))
    logical, bitwise = getattr(ops, f"logical_{name}"), getattr(ops, f"bitwise_{name}")
    for arrays in ([x, y], [x, y.astype(bfloat16)], [x > 0, y > 0], [x > 0, y]):
        (got,) = _agree(logical, arrays, device)
        assert got.dtype == bool_
    _agree(lambda x: logical(x, 1e-9), [x], device)  # a number is true or not before it is rounded
    assert len(launched) == 5 + launched.count("elementwise_forward<Copy>")
    launched.clear()
    _agree(bitwise, [x > 0, y > 0], device)
    _agree(lambda x: bitwise(x, True), [x > 0], device)
    _agree(ops.bitwise_not, [x > 0], device)
    assert len(launched) == 3
    whole = Tensor(device.asarray(np.arange(9)))
    assert bitwise(whole, 3).dtype == whole.dtype and len(launched) == 3


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("shape", "weight"), [((5, 3, 7), 3), ((2, 3, 4, 4), 1), ((40,), 1), ((6, 24), 24), ((6, 8), None), ((0, 3), 3)]
)
def test_prelu_is_its_reference(shape, weight, dtype, device, launched):
    w = _values(dtype, *([] if weight is None else [weight]), seed=4)
    _agree(ops.prelu, [_values(dtype, *shape), w], device)
    assert 0 in shape or {"elementwise_forward<PRelu>", "elementwise_backward<PRelu>"} <= set(launched)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_halves_of_a_glu_may_lie_in_any_way(dim, dtype, device, launched):
    x = _values(dtype, 6, 8, 16, ends=True)
    for layout in LAYOUTS.values():
        _agree(lambda x: ops.glu(x, dim), [layout(x)], device, device.xp.ndarray)
    assert {"elementwise_forward<Glu>", "elementwise_forward<GluGrad>"} <= set(launched)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_broadcasts_and_may_be_a_number(name, device):
    x, y, function = _values(float32, 6, 8), _values(float32, 8, seed=1), getattr(ops, name)
    _agree(function, [x, y], device)
    _agree(function, [y, x], device)
    _agree(lambda x: function(x, 0.7), [x], device)
    _agree(lambda x: function(0.7, x), [x], device)


# dtypes that meet


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["exp", "log1p", "square", "softplus", "pow", "reciprocal"])
def test_inside_autocast_16_bits_become_float32_without_a_copy(name, dtype, device, launched):
    def inside(*tensors):
        with autocast(dtype=dtype):
            return getattr(ops, name)(*tensors)

    arrays = [abs(_values(dtype, 3, 67)) for _ in range(1 + (name == "pow"))]
    got = _agree(inside, arrays, device)
    assert [g.dtype for g in got] == [float32] + [dtype] * len(arrays)
    assert [entry.partition("<")[0] for entry in launched[:2]] == ["elementwise_forward", "elementwise_backward"]


@pytest.mark.parametrize(("left", "right"), [*itertools.permutations(DTYPES, 2)], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "atan2"])
def test_operands_of_two_dtypes_meet_in_one_kernel(name, left, right, device, launched):
    got = _agree(getattr(ops, name), [_values(left, 5, 64), _values(right, 5, 64, seed=1)], device)
    assert [g.dtype for g in got] == [float32, left, right]
    assert "elementwise_forward<Copy>" not in launched[: 1 + (name in ("mul", "div", "atan2"))]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_a_tensor_without_axes_is_read_where_it_is(dtype, device, launched):
    for zero in DTYPES:
        scale = np.asarray(0.3, zero)
        _agree(lambda x, s: x * s, [_values(dtype, 7, 33), scale], device)
        _agree(lambda x, s: ops.where(x > 0, x, s), [_values(dtype, 7, 33), scale], device)
        _agree(lambda x: ops.exp(x), [scale], device)
    assert device.xp is not np and "elementwise_forward<Mul>" in launched and "elementwise_forward<Where>" in launched


@pytest.mark.parametrize(("source", "target"), [*itertools.permutations([*DTYPES, float64], 2)], ids=lambda d: d.name)
def test_a_cast_rounds_to_the_nearest_and_keeps_the_order_of_memory(source, target, device, launched):
    special = [*ENDS, 65504, 65519.9, 65520, 2.0**-24, 2.0**-25, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8]
    with ignore_fp_errors():
        x = np.concatenate([special, np.random.default_rng(0).normal(size=500 - len(special))]).astype(source)
        x = x.reshape(2, 5, 25, 2).transpose(0, 3, 1, 2)
        want = x.astype(target)
        got = device.cast(device.asarray(x), target)
    np.testing.assert_array_equal(_wide(got.get("K")), _wide(want))
    assert got.strides == want.strides and got.dtype == target
    assert launched == ([] if float64 in (source, target) else ["elementwise_forward<Copy>"])


def test_a_cast_of_every_16_bit_number_is_exact(device):
    for dtype in (float16, bfloat16):
        every = np.arange(65536, dtype=np.uint16).view(dtype)
        np.testing.assert_array_equal(device.cast(device.asarray(every), float32).get(), every.astype(float32))


@pytest.mark.parametrize(("held", "other"), [*itertools.product(DTYPES, DTYPES)], ids=lambda d: d.name)
def test_the_sum_of_two_gradients_is_like_the_first(held, other, device, launched):
    a, b = (device.asarray(_values(d, 3, 50, seed=i)) for i, d in enumerate((held, other)))
    got, want = accumulate.sum_of_two(a, b), accumulate.sum_of_two.reference.run(a, b)
    assert got.dtype == held and launched[0] == "elementwise_forward<Add>"
    np.testing.assert_array_equal(got.get(), want.get())


def test_float64_and_integers_run_the_references(device, launched):
    _agree(lambda x: ops.exp(x) * 2 + ops.maximum(x, 0), [_values(float64, 20)], device)
    whole = Tensor(device.asarray(np.arange(5)))
    assert (whole + whole * 2 - 1).numpy(force=True).tolist() == [-1, 2, 5, 8, 11]
    assert not launched


# ways of lying in memory


def _apart(array):
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::-2] = array
    return wide[..., ::-2]


def _off(array):
    whole = np.empty(array.size + 1, array.dtype)
    whole[1:] = array.ravel()
    return whole[1:].reshape(array.shape)


LAYOUTS = {
    "row-major": lambda a: a,
    "column-major": lambda a: np.asarray(a.T, order="C").T,
    "every other, backwards": _apart,
    "off the boundary": _off,
    "upside down": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "a window": lambda a: np.pad(a, 2)[tuple(slice(2, -2) for _ in a.shape)],
}
SHAPES = [(3, 5, 16), (2, 3, 8, 4), (7, 13), (1, 40), (2049,), (4, 1, 6), (), (0, 3), (5000,)]


@pytest.mark.parametrize("dtypes", [(float32, float16), (bfloat16, bfloat16)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_may_lie_in_any_way(shape, dtypes, device, launched):
    x, y = _values(dtypes[0], *shape), _values(dtypes[1], *shape, seed=1)
    whole = _run(ops.mul, [x, y], device)
    for first, second in [
        *zip(LAYOUTS, LAYOUTS, strict=True),
        ("row-major", "column-major"),
        ("off the boundary", "a window"),
    ]:
        if shape or first == second == "row-major":
            arrays = [LAYOUTS[first](x), LAYOUTS[second](y)]
            places = iter([device.xp.ndarray(a) for a in arrays])
            got = _run(ops.mul, arrays, device, lambda a, places=places: next(places))
            for mine, want in zip(got, whole, strict=True):
                np.testing.assert_array_equal(mine.get(), want.get())
    assert bool(launched) == (0 not in shape)


BROADCASTS = [
    ((3, 4, 16), (16,)),
    ((3, 4, 16), (4, 1)),
    ((3, 1, 5), (4, 1)),
    ((2, 1, 8, 1, 3), (7, 1, 4, 1)),
    ((1,), (2, 9)),
    ((64, 8), (64, 1)),
    ((), (3, 24)),
    ((2, 3, 4, 4), (1, 3, 1, 1)),
    ((300, 8), (300, 1)),
    ((3, 300, 4), (300, 1)),
    ((7,), (6, 1)),
]


@pytest.mark.parametrize("dtypes", [(float32, float16), (bfloat16, bfloat16)], ids=str)
@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
def test_operands_broadcast(shapes, dtypes, device, launched):
    x, y = (_values(d, *s, seed=i) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True)))
    _agree(ops.mul, [x, y], device)
    _agree(ops.sub, [y, x], device)
    mask = np.random.default_rng(3).integers(0, 2, shapes[1]).astype(bool)
    _agree(lambda m, x: ops.masked_fill(x, m, -1.5), [mask, x], device)
    assert {"elementwise_forward<Mul>", "elementwise_forward<Sub>", "elementwise_forward<MaskedFill>"} <= set(launched)


def test_a_broadcast_gradient_is_read_without_a_copy_and_rounded_once(device, launched):
    x = _values(bfloat16, 300, 8)
    scale = _values(bfloat16, 8, seed=1)
    _, _, gradient = _run(ops.mul, [x, scale], device)
    seed = np.random.default_rng(9).normal(size=x.shape).astype(bfloat16)
    want = (seed.astype(float64) * x.astype(float64)).sum(0)
    np.testing.assert_array_equal(gradient.get(), want.astype(float32).astype(bfloat16))
    launched.clear()
    t = Tensor(device.asarray(x), True)
    (found,) = grad(ops.exp(t).sum(), t)
    assert found.shape == x.shape and "elementwise_backward<Exp>" in launched


def test_the_result_lies_as_the_operand_does(device):
    images = np.asarray(_values(float16, 2, 6, 7, 8)).transpose(0, 3, 1, 2)
    bias = Tensor(device.asarray(np.ones((8, 1, 1), float16)))
    for x, other in ((images, bias), (images[:, :, ::2], bias), (images.transpose(1, 0, 3, 2), 2)):
        there = Tensor(device.xp.ndarray(x), True)
        seed = Tensor(device.xp.ndarray(x))
        for out in (ops.relu(there), there * 2, there + other, grad(ops.silu(there), there, seed)[0]):
            assert out.shape == there.shape
            assert np.argsort(out.array.strides).tolist() == np.argsort(x.strides).tolist()


def test_more_axes_than_a_layout_holds_run_the_reference(device, launched):
    x = _values(float32, *(2,) * 14)[(slice(None), 0) * 7]  # 7 axes, no two of which lie as one
    assert x.shape == (2,) * 7
    place = device.xp.ndarray
    _agree(ops.exp, [x], device, place)
    assert "elementwise_forward<Exp>" not in launched
    _agree(ops.exp, [x[0]], device, place)
    assert "elementwise_forward<Exp>" in launched


RUNS = [
    ((float16, float16), (4, 64), (4, 64), 8),
    ((float32, float16), (4, 64), (4, 64), 4),
    ((float32, float32), (1003,), (1003,), 4),
    ((bfloat16, bfloat16), (1003,), (), 8),
    ((float16, float16), (6, 24), (6, 1), 8),
    ((float16, float16), (6, 12), (12,), 4),
    ((float16, float16), (6, 7), (7,), 1),
    ((float16, float16), (6, 1), (7,), 1),
]


@pytest.mark.parametrize(("dtypes", "first", "second", "run"), RUNS, ids=str)
def test_threads_take_16_bytes_wherever_the_shapes_let_them(dtypes, first, second, run, device):
    arrays = [device.xp.empty(s, d) for s, d in zip((first, second), dtypes, strict=True)]
    plan = elementwise._plan(elementwise._split_operands(arrays, 2)[0], (max(dtypes, key=lambda d: d.itemsize),))
    assert plan.layout(arrays)["vector"] == run
    if run > 1:
        assert plan.layout([arrays[0].ravel()[1:], arrays[1]])["vector"] == 1


@pytest.mark.parametrize("dtypes", [(float32, float32), (float16, float16), (float16, float32)], ids=str)
def test_the_order_of_threads_changes_no_bit(dtypes, device):
    found = []
    for order in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(order):
            arrays = [_values(d, *s, seed=i) for i, (d, s) in enumerate(zip(dtypes, [(3, 1000), (3, 1)], strict=True))]
            found.append([a.get() for a in _run(lambda x, y: ops.gelu(x) * y + 1, arrays, device)])
    for other in found[1:]:
        for mine, want in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(mine, want)


def test_shapes_that_do_not_broadcast_are_told(device):
    x, y = (Tensor(device.asarray(_values(float32, n))) for n in (3, 4))
    with pytest.raises(Exception, match="shapes that broadcast"):
        x + y


def test_every_function_of_the_table_has_a_kernel_that_launches_it(device, launched):
    """What the entries name and nothing above launches would be dead code."""
    named = {entry.partition("<")[2][:-1] for entry in entries("pointwise/elementwise")}
    folders = KERNELS.parents[1] / "backends", KERNELS.parent
    text = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert not {name for name in named if f'"{name}"' not in text}
