"""What stands for several places is added, multiplied and summed back by all threads, whatever axes it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.optim.clip import scale_gradients
from ampkit.testing import Case, check_precision, normal

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

SHAPES = [(1, 8, 1, 1), (1, 1, 10, 12), (12,), (10, 1), (16, 1, 1, 1), (16, 8, 1, 1), (1, 8, 1, 12), (16, 1, 10, 1)]
TURNS = {"in order": lambda a: a, "channels last": lambda a: a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)}
FORMATS = [float32, bfloat16, float16]


def values(*shape, dtype=float32):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_a_second_operand_that_broadcasts_gives_what_the_reference_gives(name, shape, turn, dtype):
    given = [TURNS[turn](values(16, 8, 10, 12, dtype=dtype)), values(*shape, dtype=dtype)]
    found = getattr(ops, name)(*map(Tensor, given))
    with reference_only():
        truth = getattr(ops, name)(*map(Tensor, given))
    np.testing.assert_array_equal(found.numpy(), truth.numpy())
    assert found.array.strides == given[0].strides


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", ["add", "mul"])
def test_their_kernels_are_what_runs_and_their_gradients_are_summed_by_products(name, dtype, monkeypatch):
    x, gate = (Tensor(values(*s, dtype=dtype), requires_grad=True) for s in ((32, 8, 32, 32), (32, 8, 1, 1)))
    y = getattr(ops, name)(x, gate)
    assert y.node.kernel is not y.node.op.forward.reference
    for primitive in (sum_over, y.node.op.backward_primitive):
        monkeypatch.setattr(primitive.reference, "run", None)
    found = grad(y, [x, gate], Tensor(values(32, 8, 32, 32, dtype=dtype)))
    assert [g.shape for g in found] == [x.shape, gate.shape]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_float64_within_tolerance(shape, dtype):
    check_precision(Case("mul", normal(16, 8, 10, 12), normal(*shape)), dtype)


@pytest.mark.parametrize("dtype", [*FORMATS, float64], ids=str)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("axes", [(0,), (2, 3), (0, 1), (1,), (0, 2, 3), (0, 1, 2, 3), (1, 3), ()], ids=str)
def test_sums_over_axes_are_those_of_the_reference(axes, turn, dtype):
    given = TURNS[turn](values(16, 8, 10, 12, dtype=dtype))
    found, truth = sum_over(given, axes), sum_over.reference.run(given, axes)
    assert (found.shape, found.dtype) == (truth.shape, truth.dtype)
    np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_own_sum_alone(poison):
    given = values(16, 8, 10, 12)
    given[3, 4, 5, 6] = poison
    found = sum_over(given, (2, 3))
    assert (~np.isfinite(found)).sum() == 1
    assert not np.isfinite(found[3, 4])


@pytest.mark.parametrize(("factor", "go"), [(0.3, True), (1.0, True), (0.3, False)])
def test_gradients_that_are_too_long_are_shortened_by_all_threads(factor, go, monkeypatch):
    given = values(300_001)
    given[5] = np.nan
    truth, found = given.copy(), given.copy()
    scale_gradients.reference.run(truth, np.array(factor), np.array(go))
    monkeypatch.setattr(scale_gradients.reference, "run", None)
    scale_gradients(found, np.array(factor), np.array(go))
    np.testing.assert_array_equal(found, truth)
