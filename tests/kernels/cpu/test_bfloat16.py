"""Stored bfloat16: what is rounded to it, and what moves elements of it, for all bits that there are."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16
from ampkit.kernels.cpu.pointwise import elementwise

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
]
ALL = np.arange(1 << 16, dtype=np.uint16)
LOW_BITS = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)  # around the middle between two bfloat16
VALUES = {
    "Neg": ((), lambda x: -x),
    "Abs": ((), np.abs),
    "Relu": ((), lambda x: np.where(x <= 0, np.float32(0), x)),
    "Threshold": ((0.5, 0.3), lambda x: np.where(x <= 0.5, np.float32(0.3), x)),
    "Clamp": ((-0.3, 1e30), lambda x: np.clip(x, np.float32(-0.3), np.float32(1e30))),
    "HardTanh": ((-0.3, 0.7), lambda x: np.clip(x, np.float32(-0.3), np.float32(0.7))),
    "Maximum": ((1e-39,), lambda x: np.maximum(x, np.float32(1e-39))),
    "Minimum": ((-0.3,), lambda x: np.minimum(x, np.float32(-0.3))),
    "NanToNum": ((0.3, 0.7, -0.7), lambda x: np.nan_to_num(x, nan=0.3, posinf=0.7, neginf=-0.7)),
}


def of_bits(bits):
    return bits.astype(np.uint16).view(bfloat16)


def assert_same(found, wanted):
    """The same bits, or NaN in the same places."""
    with np.errstate(invalid="ignore"):  # of signalling NaN
        wanted = wanted.astype(np.float32).astype(bfloat16)
    found = np.asarray(found)
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])


@pytest.mark.parametrize("low", LOW_BITS)
def test_every_float32_is_rounded_to_the_nearest_bfloat16(low):
    x = (np.random.default_rng(0).permutation(ALL).astype(np.uint32) << 16 | low).view(np.float32)
    assert_same(Tensor(x).to(bfloat16).array, x)


@pytest.mark.parametrize("count", [*range(1, 34), 63, 64, 65])
def test_a_subnormal_among_normal_numbers_keeps_its_bits_in_runs_of_any_length(count):
    for at in range(0, count, 5):
        x = np.linspace(1.0, 2.0, count, dtype=np.float32)
        x[at] = 1e-39
        out = elementwise.forward("Elu", (x, 1.0), bfloat16)
        assert_same(out, x)


@pytest.mark.parametrize("name", VALUES)
def test_a_function_that_moves_elements_gives_the_bits_of_the_reference(name):
    numbers, reference = VALUES[name]
    x = of_bits(ALL)
    found = elementwise.forward(name, (x, *numbers), bfloat16)
    with np.errstate(invalid="ignore"):
        assert_same(found, reference(x.astype(np.float32)))


@pytest.mark.parametrize("op", [ops.maximum, ops.minimum])
def test_equal_elements_share_a_gradient_rounded_once(op):
    x, y = (Tensor(np.ones(1 << 16, bfloat16), True) for _ in range(2))
    op(x, y).backward(Tensor(of_bits(ALL)))
    with np.errstate(invalid="ignore"):
        half = of_bits(ALL).astype(np.float32) * np.float32(0.5)
    assert_same(x.grad.array, half)
    assert_same(y.grad.array, half)
