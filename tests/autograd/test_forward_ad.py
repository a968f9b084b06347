"""Dual tensors (`ampkit.autograd.forward_ad`) and the Functions that bring a `jvp`, against derivatives by hand."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import ops, testing
from ampkit.autograd import Function, forward_ad
from ampkit.base.errors import StateError


def f64(*values, requires_grad=False):
    return ampkit.tensor([float(v) for v in values], dtype=ampkit.float64, requires_grad=requires_grad)


def tangent_of(x):
    return forward_ad.unpack_dual(x).tangent


def test_a_dual_tensor_has_the_tangent_that_it_was_made_with_and_a_copy_has_one_of_its_own():
    x, t, other = f64(1, 2), f64(3, 4), f64(0, 0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        value, tangent = forward_ad.unpack_dual(dual)
        assert tangent is t and value is not dual and not value.requires_grad and tangent_of(value) is None
        other.copy_(dual)
        assert tangent_of(other).tolist() == [3, 4] and tangent_of(other) is not t
        tangent_of(other).mul_(5)
        assert t.tolist() == [3, 4]
    assert tangent_of(dual) is None


def test_a_change_in_place_of_a_dual_tensor_changes_its_tangent_and_the_memory_it_shows():
    x = f64(1, 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, f64(3, 4))
        dual.mul_(dual)
        assert tangent_of(dual).tolist() == [6, 16] and x.tolist() == dual.tolist() == [1, 4]
        assert x._version == dual._version and tangent_of(x) is None
        dual[:1] *= 2
        assert tangent_of(dual).tolist() == [12, 16]
        assert not tangent_of(dual.uniform_()).numpy().any()


def test_constants_take_the_tangent_of_what_is_written_to_them():
    base = f64(0, 0, 0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(f64(1, 2), f64(3, 4))
        base[1:] = dual * 2
        assert tangent_of(base).tolist() == [0, 6, 8]


def test_the_value_of_a_level_that_is_differentiated_keeps_its_graph():
    x, t = f64(1, 2, requires_grad=True), f64(3, 4, requires_grad=True)
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(ops.exp(forward_ad.make_dual(x, t)))
        by_value, by_tangent = ampkit.grad(value.sum(), x, retain_graph=True)[0], ampkit.grad(tangent.sum(), t)[0]
    assert by_value.tolist() == by_tangent.tolist() == x.exp().tolist()


def test_a_leaf_that_requires_grad_does_not_change_through_its_dual_tensor():
    x = f64(1, 2, requires_grad=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, f64(3, 4))
        with pytest.raises(StateError, match="a view of a leaf that requires grad"):
            dual.mul_(2)
        other = forward_ad.make_dual(x * 2, f64(3, 4))
        other.mul_(other)
        value, tangent = forward_ad.unpack_dual(other)
        assert value.tolist() == [4, 16] and tangent.tolist() == [12, 32]
        value.sum().backward()
    assert x.grad.tolist() == [8, 16]


def test_a_dual_tensor_is_no_tangent_at_its_own_level():
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(f64(1), f64(1))
        with pytest.raises(StateError, match="make_dual: needs a tangent without a tangent, got a dual tensor"):
            forward_ad.make_dual(f64(1), dual)


class Affine(Function):
    """2 x + 3 y, with a derivative in forward mode alone."""

    @staticmethod
    def forward(ctx, factor, x, n, y):
        return factor * x + 3 * y

    @staticmethod
    def jvp(ctx, factor, x, n, y):
        assert factor is None and n is None
        return 2 * x + 3 * y


def test_a_jvp_gets_zeros_for_tensors_without_a_tangent_and_None_for_what_has_none():
    x, y = f64(1, 2), f64(5, 6)
    with forward_ad.dual_level():
        assert tangent_of(Affine.apply(2, forward_ad.make_dual(x, f64(1, 1)), 0, y)).tolist() == [2, 2]
        assert tangent_of(Affine.apply(2, x, 0, forward_ad.make_dual(y, f64(1, 1)))).tolist() == [3, 3]
    x, y = x.requires_grad_(), y.requires_grad_()
    assert testing.check_tangents(Affine.apply, (2, x, 0, y))
    with forward_ad.dual_level():  # whose jvp is the only derivative that it has, where others are differentiated too
        assert tangent_of(Affine.apply(2, forward_ad.make_dual(x, f64(1, 1)), 0, y)).tolist() == [2, 2]


def test_a_jvp_that_leaves_missing_tangents_to_itself_gets_None():
    class Lazy(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.set_materialize_grads(False)
            return x + y

        @staticmethod
        def jvp(ctx, x, y):
            assert y is None
            return x

    with forward_ad.dual_level():
        assert tangent_of(Lazy.apply(forward_ad.make_dual(f64(1), f64(7)), f64(1))).tolist() == [7]


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def vjp(ctx, dy):
        return 2 * dy

    @staticmethod
    def jvp(ctx, t):
        return t.mul_(2)


def test_a_jvp_may_change_its_tangent_in_place_as_forward_does_its_argument():
    t = f64(1, 1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(f64(1, 2), t)
        out = Doubled.apply(dual.clone())
        assert tangent_of(out).tolist() == [2, 2] and t.tolist() == [1, 1] and tangent_of(dual * 1).tolist() == [1, 1]
    assert testing.gradcheck(lambda x: Doubled.apply(x.clone()), f64(1, 2, requires_grad=True))
    assert testing.check_tangents(lambda x: Doubled.apply(x.clone()), f64(1, 2, requires_grad=True))


def test_check_tangents_names_the_input_whose_jvp_is_wrong():
    class Wrong(Doubled):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def jvp(ctx, t):
            return 3 * t

    x = f64(1, 2, requires_grad=True)
    assert testing.gradcheck(Wrong.apply, x)
    with pytest.raises(AssertionError, match="input 0: derivative"):
        testing.check_tangents(Wrong.apply, x)
