"""rotary_embedding turns pairs as complex numbers, keeps the dtype of its input, and reads views as they are."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import ShapeError


def draw(*shape, dtype=float32):
    return Tensor(np.random.default_rng(0).normal(size=shape).astype(dtype))


def angles(positions, pairs):
    return np.arange(positions)[:, None] / 100 ** (np.arange(pairs) / pairs)


def cos_and_sin(phi):
    return Tensor(np.cos(phi).astype(float32)), Tensor(np.sin(phi).astype(float32))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [(float32, 1e-5), (bfloat16, 2e-2), (float16, 3e-3)], ids=str)
def test_pairs_are_complex_numbers_times_a_number_on_the_unit_circle(dtype, error, interleaved):
    x, phi = draw(2, 18, 12, 20, dtype=dtype), angles(12, 8)
    found = ops.rotary_embedding(x, *cos_and_sin(phi), interleaved)
    assert found.dtype == dtype
    out, values = found.double().numpy(), x.double().numpy()
    first, second = (slice(0, 16, 2), slice(1, 16, 2)) if interleaved else (slice(0, 8), slice(8, 16))
    turned = (values[..., first] + 1j * values[..., second]) * np.exp(1j * phi)
    np.testing.assert_allclose(out[..., first], turned.real, atol=error)
    np.testing.assert_allclose(out[..., second], turned.imag, atol=error)
    assert np.array_equal(out[..., 16:], values[..., 16:])


def test_heads_that_are_views_of_one_product_give_the_bits_of_a_copy():
    query = draw(3, 16, 2, 4, 64, dtype=bfloat16).permute(2, 0, 3, 1, 4)[0]
    assert not query.is_contiguous()
    turned, of_copy = (ops.rotary_embedding(each, *cos_and_sin(angles(16, 32))) for each in (query, query.contiguous()))
    assert turned.float().tolist() == of_copy.float().tolist()


def test_turning_back_is_the_gradient():
    x, dy = draw(2, 4, 64, 32).requires_grad_(), draw(2, 4, 64, 32)
    cos, sin = cos_and_sin(angles(64, 16))
    ops.rotary_embedding(x, cos, sin).backward(dy)
    assert x.grad.tolist() == ops.rotary_embedding(dy, cos, -sin).tolist()


@pytest.mark.parametrize(
    ("cos", "sin"), [((4, 5), (4, 5)), ((4, 2), (4, 3)), ((3, 2), (3, 2)), ((1, 1, 4, 2), (1, 1, 4, 2))]
)
def test_angles_that_do_not_fit_the_input_are_refused(cos, sin):
    with pytest.raises(ShapeError, match=r"rotary_embedding: needs cos and sin .* for \(2, 4, 8\)"):
        ops.rotary_embedding(draw(2, 4, 8), draw(*cos), draw(*sin))
