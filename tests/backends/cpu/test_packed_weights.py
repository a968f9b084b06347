"""Weights that stay packed: as long as they do not change, for products whose layout is their own, and never longer."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import nn, no_grad, ops
from ampkit.backends.cpu.onednn import gemm
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float32
from ampkit.base.version_counter import VersionCounter, derived_value
from ampkit.core.tensor import Tensor

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]


@pytest.fixture
def packings(monkeypatch):
    """The arrays that were packed so far, with every product taken for one whose weights want another layout."""
    made, by_packed = [], gemm._matmul_packed

    def watched(a, b, out, bias, kept):
        done = by_packed(a, b, out, bias, kept)
        made.append((done, kept[1]))
        return done

    monkeypatch.setattr(gemm, "_matmul_packed", watched)
    return made


def values(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def kept(tensor):
    return getattr(tensor._version_counter, "derived", {})


@pytest.mark.parametrize("product", ["linear", "matmul", "mm"])
def test_a_weight_is_packed_when_it_is_met_again_and_gives_the_same_product(product):
    x, w = Tensor(values(512, 384)), nn.Parameter(values(384, 384))
    first = getattr(ops, product)(x, w).detach().numpy()
    assert [form[2] for form in kept(w).values()] in ([], [None])
    second = getattr(ops, product)(x, w).detach().numpy()
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-4)
    for _, array, packed in kept(w).values():
        assert array is w.array
        assert packed is not None


def test_a_change_in_place_is_seen():
    x, layer = Tensor(values(512, 384)), nn.Linear(384, 1152)
    with no_grad():
        for _ in range(3):
            before = layer(x).numpy()
        layer.weight.mul_(2)
        layer.bias.zero_()
        after = layer(x).numpy()
    np.testing.assert_allclose(after, values(512, 384) @ layer.weight.detach().numpy().T, rtol=1e-4, atol=1e-3)
    assert not np.allclose(before, after)


def test_memory_that_something_unseen_may_write_to_is_not_kept():
    x, w = Tensor(values(512, 384)), nn.Parameter(values(1152, 384))
    for _ in range(2):
        ops.linear(x, w)
    w.detach().numpy()[...] = 1
    np.testing.assert_allclose(ops.linear(x, w).detach().numpy()[:, :1], values(512, 384).sum(1)[:, None], atol=1e-3)


def test_square_weights_are_packed_for_each_way_they_lie():
    x, w = Tensor(values(512, 384)), nn.Parameter(values(384, 384))
    for _ in range(3):
        across, along = ops.linear(x, w).detach().numpy(), ops.mm(x, w).detach().numpy()
    np.testing.assert_allclose(across, x.array @ w.array.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(along, x.array @ w.array, rtol=1e-4, atol=1e-3)


def test_matrix_units_get_weights_packed_that_they_meet_again_forward_and_backward(monkeypatch, packings):
    monkeypatch.setattr(gemm, "has_fast_matmul", lambda dtype: dtype in (float32, bfloat16))
    x, w = (Tensor(values(512, 384).astype(bfloat16), True), nn.Parameter(values(1152, 384).astype(bfloat16)))
    for _ in range(2):
        ops.linear(x, w).float().sum().backward()
    assert len(packings) == 4
    assert all(array is w.array for _, array in packings)
    assert not any(done for done, _ in packings[:2])
    want = w.array.astype(float).sum(0)
    np.testing.assert_allclose(x.grad.numpy().astype(float)[0], 2 * want, rtol=2e-2, atol=0.5)


def test_a_form_lives_as_long_as_its_values():
    made, array, version = [], object(), VersionCounter((3,))

    def make():
        made.append(len(made))
        return made[-1]

    for _ in range(3):
        assert derived_value([0], array, "key", make) is None  # the result of an op
    assert derived_value(version, array, "key", make) is None
    assert derived_value(version, array, "key", make) == 0
    assert derived_value(version, array, "key", make) == 0
    assert derived_value(version, object(), "key", make) is None  # other memory of the same tensor: a copy, a view
    version[0] = 4
    assert derived_value(version, array, "key", make) is None
    assert derived_value(version, array, "key", make) == 1
    assert derived_value(version, array, "other", make) is None
    assert derived_value(version, array, "other", make) == 2
    version.append(5)  # exposed
    assert derived_value(version, array, "key", make) is None


@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_that_do_not_change_are_turned_around_once(groups):
    x, layer = Tensor(values(4, 16, 12, 12)), nn.Conv2d(16, 24, 3, groups=groups)
    with no_grad():
        first, *others = [layer(x).numpy() for _ in range(3)]
        assert len([form for form in kept(layer.weight).values() if form[2] is not None]) == 1
        layer.weight.mul_(2)
        layer.bias.mul_(2)
        twice = layer(x).numpy()
    for other in others:
        np.testing.assert_array_equal(other, first)
    np.testing.assert_allclose(twice, 2 * first, rtol=1e-5, atol=1e-5)
