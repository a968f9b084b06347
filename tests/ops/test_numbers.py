"""Numbers of Python and NumPy beside tensors of every dtype, and default dtypes, against PyTorch's answers.

tests/golden/numbers.json has them, for the calls of tests/number_cases.py. Where ampkit differs is listed here.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import number_cases as numbers
import numpy as np
import pytest

import ampkit
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError
from ampkit.utils.data import default_collate

pytestmark = pytest.mark.cpu

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "numbers.json").read_text())
EPS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-21, "float64": 2e-6}  # the file has 7 digits

# PyTorch truncates a number for an integer dtype, or wraps it around; ampkit refuses it, and compares it as it is.
REFUSED = re.compile("needs (a number that|a whole|whole numbers)")
COMPARED = re.compile(r"(x|s) ([<>]=?|[!=]=) (x|s)|.*(searchsorted|bucketize|threshold).*")

# Calls whose dtype in a region is that of the policy, which is PyTorch's for a GPU.
OF_THE_POLICY = {
    "10000 ** (x / 4)",
    "lib.corrcoef(x)",
    "lib.cov(x)",
    "lib.distributions.Exponential(1.).sample()",
    "lib.distributions.Laplace(0., 1.).sample()",
}


@pytest.fixture
def default_dtype():
    yield ampkit.set_default_dtype
    ampkit.set_default_dtype(ampkit.float32)


def differs(needed, got):
    """Whether two descriptions are of other dtypes, or of values further apart than roundings."""
    if needed == got:
        return False
    (dtype, *values), (kind, *found) = [text.split(" ") for text in (needed, got)]
    if dtype not in EPS or dtype != kind or len(values) != len(found):
        return True
    values, found = [[float(v) for v in row] for row in (values, found)]
    size = max([1.0, *[abs(v) for v in values if math.isfinite(v)]])
    return not np.allclose(found, values, EPS[dtype], EPS[dtype] * size, equal_nan=True)


def mismatches(table, calls, names):
    """(call, number, PyTorch's answer, ampkit's) where they differ; a raw error of ampkit always does."""
    for letter, name in GOLDEN["letters"].items():
        for call, answer in numbers.answers(ampkit, calls, {**names, "s": numbers.NUMBERS[name](ampkit)}):
            needed = next((theirs for theirs, letters in table[call].items() if letter in letters), None)
            if isinstance(answer, Exception):
                wrong = needed is not None or not isinstance(answer, (AmpkitError, TypeError))
            else:
                wrong = needed is not None and differs(needed, answer)
            if wrong:
                yield call, name, needed, answer


def is_intended(call, number, needed, answer):
    if isinstance(answer, AmpkitError):
        return REFUSED.search(str(answer)) is not None
    return number == "-1" and COMPARED.fullmatch(call) is not None


@pytest.mark.parametrize("dtype", numbers.DTYPES)
def test_a_number_beside_a_tensor_gives_what_it_gives_in_pytorch(dtype):
    found = list(mismatches(GOLDEN["calls"][dtype], numbers.CALLS, numbers.operands(ampkit, dtype)))
    intended = [row for row in found if dtype in numbers.DTYPES[:3] and is_intended(*row)]
    assert [row for row in found if row not in intended] == []
    assert bool(intended) == (dtype in numbers.DTYPES[:3])


@pytest.mark.parametrize("dtype", numbers.FLOATS)
def test_kernels_read_a_number_as_the_references_do(dtype):
    names = numbers.operands(ampkit, dtype, repeats=256)
    for make in list(numbers.NUMBERS.values())[4:12:2]:
        names["s"] = make(ampkit)
        fast = dict(numbers.answers(ampkit, numbers.CALLS, names))
        with ampkit.reference_only():
            for call, needed in numbers.answers(ampkit, numbers.CALLS, names):
                assert type(fast[call]) is type(needed), call
                assert isinstance(needed, Exception) or not differs(needed, fast[call]), call


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", [0.3, 0.1, 257, np.float32(0.1), np.float64(1 / 3)])
def test_a_tensor_filled_with_a_number_equals_it_and_differs_from_it_by_zero(dtype, number):
    filled = ampkit.full((600,), number, dtype=dtype)
    for x in (filled, filled[:1]):
        assert (x == number).all() and (number == x).all() and not (x != number).any()
        assert not (x > number).any() and not (x < number).any() and ampkit.isin(x, number).all()
        assert (x - number == 0).all() and (number - x == 0).all() and (x % number == 0).all()
        assert (ampkit.clamp(x, max=number) == x).all() and (ampkit.maximum(x, ampkit.tensor(number)) == x).all()


@pytest.mark.parametrize("number", [np.longdouble(0.5), np.float16(0.5), np.array(0.5), ml_dtypes.bfloat16(0.5)])
def test_a_number_of_numpy_on_either_side_is_a_number_of_python(number):
    x = ampkit.ones(3)
    for got in (x * number, number * x, x / 2, number + x - 1, number / x, np.int64(2) ** (x - 2)):
        assert got.dtype == ampkit.float32 and got.tolist() == [0.5] * 3
    assert (number == x / 2).all() and (x / 2 == number).all() and (number < x).all()
    assert (np.int64(1) << ampkit.arange(3)).tolist() == [1, 2, 4]


def test_a_factor_beside_16_bit_tensors_keeps_float32():
    x = ampkit.arange(1, 257).bfloat16()
    exact, coarse = [(x.float() * number).bfloat16() for number in (0.1, ampkit.tensor(0.1).bfloat16().item())]
    assert (exact != coarse).any()
    for product in (x * 0.1, 0.1 * x, x * ampkit.tensor(0.1), x.clone().mul_(0.1)):
        assert (product == exact).all() and product.dtype == ampkit.bfloat16
    assert (x / 0.1 == (x.float() / 0.1).bfloat16()).all()


def test_a_0_d_float64_tensor_does_not_widen_the_arithmetic_of_float32():
    x, third = ampkit.full((3,), 1 / 3), ampkit.tensor(1 / 3, dtype=ampkit.float64, requires_grad=True)
    assert (x - third == 0).all() and (x == third).all()
    y = x.clone().requires_grad_() * third
    y.sum().backward()
    assert y.dtype == ampkit.float32 and third.grad.dtype == ampkit.float64
    assert (x**third).dtype == ampkit.float32  # tensors with axes of both dtypes raise


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", [0.3, 0.1, np.float64(1.7)])
def test_a_bound_is_compared_with_16_bit_elements_in_their_dtype(dtype, number):
    at_bound = ampkit.full((20_000,), number, dtype=dtype)  # enough for a kernel of the CPU
    for x in (at_bound, at_bound[:600], at_bound[:2]):
        assert (ampkit.ops.hardshrink(x, number) == 0).all()
        above = x.float() > np.float32(number)  # `threshold` compares them in float32
        leaf = x.detach().requires_grad_()
        out = ampkit.ops.threshold(leaf, number, 0.0)
        out.float().sum().backward()
        assert (out == x * above).all() and (leaf.grad == above).all()
        for bounds in ((number, 9.0), (-9.0, number)):
            leaf = x.detach().requires_grad_()
            out = ampkit.ops.hardtanh(leaf, *bounds)
            out.float().sum().backward()
            assert (out == x).all() and (leaf.grad == 0).all()


@pytest.mark.parametrize("number", [Fraction(1, 3), Decimal("0.5")])
def test_numbers_of_other_classes_are_parameters_and_data_but_no_operands(number):
    x = ampkit.ones(3)
    assert ampkit.full((2,), number).dtype == ampkit.float32
    assert ampkit.ops.threshold(x, number, number).dtype == ampkit.float32
    assert ampkit.tensor([number, 1]).tolist() == [pytest.approx(float(number)), 1]
    with pytest.raises(DTypeError, match=r"got (Fraction|Decimal)\nhelp: convert it: float"):
        x * number


@pytest.mark.parametrize("default", ["float32", "float64", "bfloat16"])
def test_what_numbers_make_has_the_dtype_that_it_has_in_pytorch(default, default_dtype):
    default_dtype(default)
    names = {**numbers.operands(ampkit, "int64"), "collate": default_collate}
    found = mismatches(GOLDEN["creations"][default], numbers.CREATIONS, names)
    assert [row for row in found if not REFUSED.search(str(row[3]))] == []


def test_numbers_of_64_bits_keep_them():
    assert ampkit.tensor([np.float64(2**24 + 1)]).item() == 2**24 + 1
    assert ampkit.tensor([[np.array([0.1])], [np.array([0.2])]]).dtype == ampkit.float64
    assert ampkit.tensor([ampkit.tensor(2**60 + 1), 1]).tolist() == [2**60 + 1, 1]
    assert default_collate([1700000001.0, 1.0]).tolist() == [1700000001.0, 1.0]


@pytest.mark.parametrize("case", range(len(numbers.DEFAULT_CASES)))
def test_floats_from_integers_and_numbers_have_the_default_dtype_as_in_pytorch(case, default_dtype):
    default, region, dtype = numbers.DEFAULT_CASES[case]
    default_dtype(default)
    assert GOLDEN["cases"][case] == f"{default} {region} {dtype}"
    names = numbers.operands(ampkit, dtype)
    with ampkit.autocast(dtype=ampkit.bfloat16) if region else nullcontext():
        found = dict(numbers.answers(ampkit, numbers.DEFAULTS, names))
    needed = {call: dtypes.split(" ")[case] for call, dtypes in GOLDEN["defaults"].items()}
    assert {
        call: (wanted, str(found[call]))
        for call, wanted in needed.items()
        if wanted != "-" and numbers.dtypes_of(str(found[call])) != wanted and not (region and call in OF_THE_POLICY)
    } == {}


def test_plans_follow_the_default_dtype(default_dtype):
    n = ampkit.arange(1, 4)
    assert (n / 3).dtype == ampkit.float32
    default_dtype(ampkit.float64)
    assert (n / 3).dtype == ampkit.float64 and repr((n / 1).cpu()) == "tensor([1., 2., 3.])"
    default_dtype(ampkit.float32)
    assert (n / 3).dtype == ampkit.float32


def test_a_range_that_starts_at_a_float_is_of_floats(default_dtype):
    for start in (0.0, -0.0, 1.0, np.float32(0), ampkit.tensor(0.0)):
        assert ampkit.arange(start, 3).dtype == ampkit.float32, start
    default_dtype(ampkit.float64)
    assert ampkit.arange(0.0, 3).dtype == ampkit.float64
    assert ampkit.arange(0, 3).dtype == ampkit.arange(ampkit.tensor(0), 3).dtype == ampkit.int64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("bound", [0.3, 0.1, np.float64(1 / 3)])
def test_the_bounds_of_a_histogram_are_numbers_of_its_dtype(dtype, bound):
    x = ampkit.full((5,), bound, dtype=dtype)
    assert ampkit.histc(x, 4, -1, bound).tolist() == [0, 0, 0, 5]
    assert ampkit.histogram(x, 4, range=(bound, 1)).hist.tolist() == [5, 0, 0, 0]


@pytest.mark.parametrize("alpha", [math.inf, -math.inf, math.nan])
def test_a_factor_that_is_not_finite_reaches_only_the_slices_that_are_added_to(alpha):
    x, index, ones = ampkit.zeros(4), ampkit.tensor([1, 1]), ampkit.ones(2)
    assert np.isfinite(x.index_add(0, index, ones, alpha=alpha).numpy()).tolist() == [True, False, True, True]
    mask = ampkit.tensor([True, False, False])
    assert mask.index_add(0, index, ones.bool(), alpha=alpha).tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float16"])
@pytest.mark.parametrize("value", [2.0**63, -(2.0**70), 1e30])
def test_a_0_d_tensor_that_the_dtype_does_not_hold_is_refused_as_its_number_is(dtype, value):
    x, index = ampkit.ones(3).to(dtype), ampkit.tensor([1])
    for fill in (
        lambda s: x.masked_fill(x > 0, s),
        lambda s: x.index_fill(0, index, s),
        lambda s: x.clone().masked_fill_(x > 0, s),
        lambda s: x.clone().index_fill_(0, index, s),
    ):
        for number in (value, ampkit.tensor(value, dtype=ampkit.float64)):
            with pytest.raises(ArgumentError, match="holds"):
                fill(number)
        assert fill(ampkit.tensor(2.0)).tolist() == fill(2).tolist()
    with pytest.raises(ArgumentError, match="holds"):
        ampkit.nn.init.constant_(x.clone(), value)
