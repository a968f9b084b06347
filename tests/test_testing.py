"""The checks of ampkit.testing: each detects its kind of mistake."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, tensor, testing
from ampkit.base.dtypes import float16, float32
from ampkit.base.errors import ArgumentError, DTypeError
from ampkit.core import policy
from ampkit.core.op import Array, Saved, op, ops
from ampkit.core.policy import Cast
from ampkit.testing import Case, gradcheck, gradgradcheck, normal


@pytest.fixture
def define():
    """Register a squaring op with a mistake, and remove it after the test."""
    made = []

    def make(reference=None, backward=None, cast=Cast.KEEP, **options):
        def oops(input: Array):
            return input * input, Saved(input=input)

        found = op(cast=cast, **options)(reference or oops)
        found.backward(backward or (lambda dy, saved, needs: dy * (2 * saved.input)))
        made.append(found.name)
        return found

    yield make
    for name in made:
        del ops[name], policy.categories[name]


CASE = Case("oops", normal(3, 4))


def test_a_correct_op_passes_every_check(define):
    define()
    testing.check(CASE)


def test_a_wrong_gradient_is_found(define):
    define(backward=lambda dy, saved, needs: dy * (2.001 * saved.input))
    with pytest.raises(AssertionError, match="input 0: derivative"):
        testing.check_gradients(CASE)


def test_a_missing_gradient_is_found(define):
    define(backward=lambda dy, saved, needs: None)
    with pytest.raises(AssertionError, match="input 0: derivative"):
        testing.check_gradients(CASE)


def test_a_gradient_that_a_second_derivative_treats_as_constant_is_found(define):
    from ampkit.core.autograd.traced_array import plain

    define(backward=lambda dy, saved, needs: dy * (2 * plain(saved.input)))
    with pytest.raises(AssertionError, match="input 0: derivative"):
        testing.check_gradients(CASE)


def test_arithmetic_in_16_bits_is_found(define):
    def oops(input: Array):
        low = input.astype(np.float16 if input.dtype == float32 else input.dtype)
        return (low * low).astype(input.dtype), Saved(input=input)

    define(reference=oops)
    with pytest.raises(AssertionError, match="expected"):
        testing.check_precision(CASE, float32)


@pytest.mark.cpu
def test_a_write_into_an_input_is_found(define):
    def oops(input: Array):
        input *= 1.0
        return input * input, Saved(input=input)

    define(reference=oops)
    with pytest.raises(ValueError, match="read-only"):
        testing.check_gradients(CASE)


@pytest.mark.cpu
def test_a_kernel_that_ignores_strides_is_found(define):
    def oops(input: Array):
        flat = np.ndarray(input.shape, input.dtype, input.base if input.base is not None else input)
        return flat * flat, Saved(input=input)

    define(reference=oops)
    with pytest.raises(AssertionError, match="expected"):
        testing.check_strides(CASE)


def test_a_dtype_other_than_the_categorys_is_found(define):
    def oops(input: Array):
        return np.multiply(input, input, dtype=np.float64), Saved(input=input)

    define(reference=oops, moves=True)
    with pytest.raises(AssertionError, match="float64 out of float32"):
        testing.check_dtypes(CASE)


def test_only_differences_beyond_the_tolerance_are_refused():
    testing.assert_close(np.float32([1.0, np.inf, np.nan]), np.array([1.000005, np.inf, np.nan]))
    testing.assert_close(np.float16([1.0]), np.array([1.0004]))
    for got, want in (([1.0], [1.001]), ([np.nan], [1.0]), ([1.0], [np.inf]), ([1.0, 2.0], [1.0])):
        with pytest.raises(AssertionError):
            testing.assert_close(np.float32(got), np.array(want))
    with pytest.raises(AssertionError):
        testing.assert_close(np.array([1]), np.array([2]))


def test_a_case_draws_the_same_values_each_time_and_fills_lists():
    case = Case("cat", [normal(2), testing.uniform(1, 2, 3)], 0)
    first, second = case.tensors(float16), case.tensors(float16)
    assert [t.tolist() for t in first] == [t.tolist() for t in second]
    assert all(t.dtype == float16 and t.requires_grad for t in first)
    assert case(*first)[0].shape == (5,)
    assert repr(case) == "cat([2, 3], 0)"
    with pytest.raises(ArgumentError, match="the name of an operation, got 'nothing'"):
        Case("nothing", normal(2))(*first)


def test_inputs_of_a_check_that_are_no_tensors_are_passed_on():
    x = tensor(np.ones(2), requires_grad=True)
    assert testing.gradcheck(lambda a, b, c: a * a * c["k"], (x, None, {"k": 2.0}))
    assert testing.gradgradcheck(lambda a, b: a * a * a, (x, None))
    for inputs in (None, {"a": x}):
        with pytest.raises(DTypeError, match="gradcheck: needs inputs as a Tensor or a sequence, got"):
            testing.gradcheck(lambda a: a, inputs)


def test_gradcheck_moves_what_the_function_reads_itself_and_restores_it():
    layer, x = nn.Linear(3, 2).double(), ampkit.randn(4, 3, dtype=ampkit.float64, requires_grad=True)
    before = layer.weight.tolist()
    assert gradcheck(lambda x, *parameters: layer(x).tanh(), (x, *layer.parameters()))
    assert gradgradcheck(lambda x, *parameters: layer(x).tanh(), (x, *layer.parameters()))
    assert layer.weight.tolist() == before
    with pytest.raises(AssertionError, match="input 1: derivative"):
        gradcheck(lambda x, weight: layer(x) + weight.sum().detach(), (x, layer.weight))


def test_gradcheck_refuses_a_backward_that_is_not_deterministic():
    x = ampkit.randn(3, dtype=ampkit.float64, requires_grad=True)

    def noisy(x):
        y = x * 1
        y.register_hook(lambda dy: dy + 1e-11 * ampkit.randn(3, dtype=ampkit.float64))
        return y

    with pytest.raises(AssertionError, match="not deterministic"):
        gradcheck(noisy, x)


def test_gradcheck_refuses_a_function_that_is_not_constant_and_requires_no_grad():
    x = ampkit.ones(2, dtype=ampkit.float64, requires_grad=True)
    with pytest.raises(AssertionError, match="input 0: derivative 0.0"):
        gradcheck(lambda x: x.detach() * 2, x)
    assert gradcheck(lambda x: ampkit.ones(2, dtype=ampkit.float64), x)
    assert gradcheck(lambda x: (), x)


def test_gradcheck_refuses_outputs_whose_shapes_depend_on_the_values():
    x = ampkit.ones(1, dtype=ampkit.float64, requires_grad=True)
    with pytest.raises(AssertionError, match=r"outputs of shapes \[\(1,\)\] where an input is moved, of \[\(2,\)\]"):
        gradcheck(lambda x: ampkit.cat([x, x]) if x.item() == 1 else x, x)


def test_gradcheck_of_a_tensor_that_is_passed_twice_or_shares_a_graph_with_others():
    x = ampkit.randn(3, dtype=ampkit.float64, requires_grad=True)
    assert gradcheck(lambda a, b: a * b.exp(), (x, x))
    shared = x.exp()
    assert gradcheck(lambda y: y.square() + shared.detach(), (shared,))
    assert gradcheck(lambda y: y.square() + shared.detach(), (shared,))


def test_gradcheck_refuses_outputs_whose_dtypes_depend_on_the_values():
    x = ampkit.ones(1, dtype=ampkit.float64, requires_grad=True)
    with pytest.raises(AssertionError, match=r"outputs of dtypes .* where an input is moved"):
        gradcheck(lambda x: x.float() if x.item() == 1 else x, x)


def test_nondet_tol_says_how_far_a_second_backward_may_be_from_the_first():
    x = ampkit.randn(3, dtype=ampkit.float64, requires_grad=True)

    def noisy(x):
        y = x * x
        y.register_hook(lambda dy: dy + 1e-11 * ampkit.randn(3, dtype=ampkit.float64))
        return y

    for check in (gradcheck, gradgradcheck):
        with pytest.raises(AssertionError, match="not deterministic"):
            check(noisy, x, nondet_tol=1e-14)
        assert check(noisy, x, 1e-4, nondet_tol=1e-6)
