"""A residual sum and its norm on the CPU: the bits of the sum and of the norm apart."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]
FORMS = [(float32, float32), (float16, float16), (bfloat16, bfloat16), (float32, bfloat16), (float32, float16)]
FORMS = pytest.mark.parametrize("forms", FORMS, ids=str)


def operands(residual, branch):
    rng = np.random.default_rng(0)
    shapes = (6, 50, 96), (6, 50, 96), (96,), (96,)
    kinds = residual, branch, residual, residual
    arrays = [rng.standard_normal(s).astype(k) for s, k in zip(shapes, kinds, strict=True)]
    return [Tensor(a, True) for a in arrays], [Tensor(rng.standard_normal(shapes[0]).astype(residual)) for _ in "ab"]


def apart(residual, branch, weight, bias, p):
    total = residual + ops.dropout(branch, p)
    return total, ops.layer_norm(total, 96, weight, bias)


@FORMS
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("alone", [False, True])
def test_the_bits_are_those_of_the_sum_and_the_norm(alone, p, forms):
    given, gradients = operands(*forms)
    found = []
    for run in (ops.add_layer_norm, apart):
        ampkit.manual_seed(7)
        if run is apart:
            outs = apart(*given, p)[alone:]
        elif alone:
            outs = (ops.layer_norm_of_sum(*given[:2], 96, *given[2:], dropout_p=p),)
        else:
            outs = run(*given[:2], 96, *given[2:], dropout_p=p)
        if run is not apart:
            assert outs[0].node.kernel.name == "add_layer_norm_cpu"
        found.append([*outs, *grad(outs, given, gradients[alone:])])
    for place, (got, want) in enumerate(zip(*found, strict=True)):
        assert got.dtype == want.dtype
        if place < 2 - alone and (p == 0 or forms[1] == float32):
            np.testing.assert_array_equal(got.array, want.array)
        assert_close(got.array, want.array, GRADIENT_TOLERANCE[forms[1]])  # two roundings fewer, or one more


@FORMS
def test_float64_agrees(forms):
    given, gradients = operands(*forms)
    wide = [Tensor(t.array.astype(float), True) for t in given]
    outs = [ops.add_layer_norm(*each[:2], 96, *each[2:]) for each in (given, wide)]
    grads = [
        grad(o, g, [Tensor(s.array.astype(x.dtype)) for s, x in zip(gradients, o, strict=True)])
        for o, g in zip(outs, (given, wide), strict=True)
    ]
    for got, want in zip((*outs[0], *grads[0]), (*outs[1], *grads[1]), strict=True):
        assert_close(got.array, want.array, GRADIENT_TOLERANCE[forms[1]])


def test_the_norm_comes_in_the_dtype_that_is_asked_for_and_its_gradient_goes_back_in_it():
    (x, y, *scales), gradients = operands(float32, bfloat16)
    total, low = ops.add_layer_norm(x, y, 96, *scales, dtype=bfloat16)
    high = ops.add_layer_norm(x, y, 96, *scales)[1]
    np.testing.assert_array_equal(low.array, high.array.astype(bfloat16))
    dx, dy = grad((total, low), (x, y), (gradients[0], gradients[1].bfloat16()))
    assert (dx.dtype, dy.dtype) == (float32, bfloat16)
    want = grad(apart(x, y, *scales, 0.0), (x, y), (gradients[0], gradients[1].bfloat16().float()))
    for got, expected in zip((dx, dy), want, strict=True):
        assert_close(got.array, expected.array)


def test_what_changes_in_place_is_noticed():
    (x, y, *_), gradients = operands(float32, float32)
    total, norm = ops.add_layer_norm(x, y, 96)
    total.detach().add_(1)
    with pytest.raises(ampkit.base.errors.StateError, match="`out` of add_layer_norm changed in place"):
        grad(norm, x, gradients[0])


def test_misfits_are_refused_in_one_line():
    x, row = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones(3, np.float32))
    with pytest.raises(
        ampkit.base.errors.ShapeError, match=r"residual and branch of one shape, got \[2, 3\] and \[3\]"
    ):
        ops.add_layer_norm(x, row, 3)
    with pytest.raises(ampkit.base.errors.ShapeError, match="trailing axes"):
        ops.layer_norm_of_sum(x, x, 4)
    with pytest.raises(ampkit.base.errors.ArgumentError, match="dropout_p from 0 to 1"):
        ops.add_layer_norm(x, x, 3, dropout_p=1.5)
    with pytest.raises(ampkit.base.errors.DTypeError, match="a floating-point dtype"):
        ops.add_layer_norm(x, x, 3, dtype=ampkit.int32)
