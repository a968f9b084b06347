"""`linear` under `vmap`: any of input, weight and bias of each sample, the others shared, also at two levels."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, autocast, func, ops, tensor
from ampkit.core.dispatch.batching.call import watching_loops

SIZE, OUTER = 3, 2
MAPPED = [axes for axes in product((0, None), repeat=3) if axes != (None,) * 3]


def numbers(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape), dtype=ampkit.float64)


def operands(axes, lead, size=SIZE):
    shapes = [(*lead, 5), (4, 5), (4,)]
    made = []
    for i, (axis, shape) in enumerate(zip(axes, shapes, strict=True)):
        made.append(numbers(*(() if axis is None else (size,)), *shape, seed=i))
    return made


def of_sample(given, axes, i):
    return [t if axis is None else t[i] for t, axis in zip(given, axes, strict=True)]


def agree(found: Tensor, rows: list[Tensor]) -> None:
    wanted = ops.stack(rows)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=0, atol=1e-12)


def weighted(x, w, b):
    return ops.cos(ops.linear(x, w, b)).sum()


@pytest.mark.parametrize("axes", MAPPED, ids=str)
@pytest.mark.parametrize("lead", [(), (6,), (2, 6)], ids=str)
def test_values_and_gradients_are_those_of_a_loop(axes, lead):
    given = operands(axes, lead)
    each = range(SIZE)
    with watching_loops() as looped:
        value = func.vmap(ops.linear, axes)(*given)
        gradients = func.vmap(func.grad(weighted, (0, 1, 2)), axes)(*given)
        total = func.grad(lambda *given: func.vmap(weighted, axes)(*given).sum(), (0, 1, 2))(*given)
    assert not looped
    agree(value, [ops.linear(*of_sample(given, axes, i)) for i in each])
    rows = [func.grad(weighted, (0, 1, 2))(*of_sample(given, axes, i)) for i in each]
    for k, (found, whole) in enumerate(zip(gradients, total, strict=True)):
        agree(found, [row[k] for row in rows])
        summed = found if axes[k] == 0 else found.sum(0)
        np.testing.assert_allclose(whole.numpy(), summed.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("inner", MAPPED, ids=str)
@pytest.mark.parametrize("outer", [(0, None, None), (None, 0, 0), (0, 0, None), (0, 0, 0)], ids=str)
def test_two_levels(inner, outer):
    given = [ops.stack([t, t * 2]) if axis == 0 else t for t, axis in zip(operands(inner, (6,)), outer, strict=True)]
    found = func.vmap(func.vmap(func.grad(weighted, (0, 1, 2)), inner), outer)(*given)
    for o in range(OUTER):
        part = of_sample(given, outer, o)
        rows = [func.grad(weighted, (0, 1, 2))(*of_sample(part, inner, i)) for i in range(SIZE)]
        for k, one in enumerate(found):
            agree(one[o], [row[k] for row in rows])


@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16])
@pytest.mark.parametrize("axes", MAPPED, ids=str)
def test_a_region_rounds_the_product_and_its_bias_once(axes, dtype):
    given, rounding = [t.float() for t in operands(axes, (6,))], 2**-7 if dtype == ampkit.bfloat16 else 2**-10
    with autocast(dtype=dtype):
        found = func.vmap(ops.linear, axes)(*given)
    assert found.dtype == dtype
    for i, one in enumerate(found):
        x, w, b = (t.to(dtype).double() for t in of_sample(given, axes, i))
        wanted = ops.linear(x, w, b).to(dtype)  # where the sum lies between two numbers, either of them is right
        np.testing.assert_allclose(one.float().numpy(), wanted.float().numpy(), rtol=rounding)
        assert float((one != wanted).float().mean()) < 0.1
