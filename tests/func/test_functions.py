"""A Function under transforms: its own `vmap` and `jvp`, or the ops of its forward."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import func, ops, tensor
from ampkit.autograd import Function, grad
from ampkit.base.errors import ArgumentError, StateError


def numbers(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape), dtype=ampkit.float64)


X, V = numbers(4, 3), numbers(3, seed=1)


class Exp(Function):
    """The exponential, computed by NumPy on the host."""

    sizes: list[object] = []  # noqa: RUF012

    @staticmethod
    def forward(x, factor):
        return tensor(np.exp(x.detach().cpu().numpy()) * factor).to(x.device)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0], None

    @staticmethod
    def jvp(ctx, dx, _):
        return dx * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info, in_dims, x, factor):
        Exp.sizes.append((info.batch_size, info.randomness, in_dims))
        return Exp.apply(x, factor), in_dims[0]


def test_a_vmap_of_its_own_gets_all_samples():
    Exp.sizes.clear()
    found = func.vmap(lambda x: Exp.apply(x, 2.0), randomness="same")(X)
    np.testing.assert_allclose(found.numpy(), 2 * np.exp(X.numpy()), rtol=1e-12)
    assert Exp.sizes == [(4, "same", (0, None))]


@pytest.mark.parametrize(
    "function",
    [
        lambda f, v: func.grad(lambda v: func.vmap(lambda x: f(x * v).sum())(X).sum())(v),
        lambda f, v: func.vmap(func.grad(lambda v, x: f(x * v).sum()), (None, 0))(v, X),
        lambda f, v: func.vmap(func.grad(lambda v, x: (f(v) * x).sum()), (None, 0))(v, X),
        lambda f, v: func.vmap(lambda x: func.jvp(f, (x,), (v,))[1])(X),
        lambda f, v: func.vmap(func.vmap(f))(X[None]),
        lambda f, v: func.vmap(f, in_dims=1, out_dims=1)(X),
        lambda f, v: func.hessian(lambda v: f(v).sum())(v),
        lambda f, v: func.jacfwd(func.jacrev(f))(v),
    ],
)
def test_transforms_of_it_are_those_of_the_ops(function):
    found, expected = function(lambda x: Exp.apply(x, 1.0), V), function(ops.exp, V)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)


class Halves(Function):
    """Two outputs, of which the second one is shared by the samples."""

    @staticmethod
    def forward(ctx, x, y):
        return x / 2, y / 2

    @staticmethod
    def vmap(info, in_dims, x, y):
        return (x.movedim(in_dims[0], -1) / 2, y / 2), (-1, None)


def test_outputs_may_have_their_samples_along_any_axis_or_share_one():
    halves, shared = func.vmap(lambda x: Halves.apply(x, V), out_dims=(0, None))(X)
    np.testing.assert_array_equal(halves.numpy(), X.numpy() / 2)
    np.testing.assert_array_equal(shared.numpy(), V.numpy() / 2)


def with_vmap(found, **more):
    """A Function whose vmap returns `found`."""
    methods = {"forward": staticmethod(lambda ctx, x: x * 2), "vmap": staticmethod(lambda info, dims, x: found)}
    return type("Made", (Function,), {**methods, **more})


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda: with_vmap(X), ArgumentError, r"Made.vmap: needs a pair \(output, out_dims\)"),
        (lambda: with_vmap((X, 7)), ArgumentError, "an axis of length 4"),
        (lambda: with_vmap((X, 1)), ArgumentError, "an axis of length 4"),
        (lambda: with_vmap(((X, X), (0,))), ArgumentError, "one entry for each of 2 outputs"),
        (lambda: with_vmap((X, 0), generate_vmap_rule=True), StateError, "generate_vmap_rule=True, got both"),
    ],
)
def test_a_wrong_rule_is_named_in_one_line(made, error, words):
    with pytest.raises(error, match=words):
        func.vmap(made().apply)(X)


def test_without_a_rule_its_ops_map_and_what_reads_values_is_refused():
    class Cube(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, dy):
            return 3 * ctx.saved_tensors[0] ** 2 * dy

    np.testing.assert_allclose(func.vmap(Cube.apply)(X).numpy(), X.numpy() ** 3, rtol=1e-12)
    each = func.vmap(func.grad(lambda x: Cube.apply(x).sum()))(X)
    np.testing.assert_allclose(each.numpy(), 3 * X.numpy() ** 2, rtol=1e-12)

    class Reads(Function):
        @staticmethod
        def forward(ctx, x):
            return x * x.max().item()

    with pytest.raises(StateError, match=r"needs a rule for Reads, whose forward reads values(?s:.*)static method"):
        func.vmap(Reads.apply)(X)


def test_batched_gradients_are_one_pass_and_free_the_graph():
    passes = []
    x = V.clone().requires_grad_()
    y = x.exp()
    y.register_hook(lambda dy: passes.append(tuple(dy.shape)))
    (found,) = grad(y, x, ops.eye(3, dtype=y.dtype, device=y.device), is_grads_batched=True)
    np.testing.assert_allclose(found.numpy(), np.diag(np.exp(V.numpy())), rtol=1e-12)
    assert passes == [(3,)]
    with pytest.raises(StateError, match="freed"):
        grad(y, x, ops.eye(3, dtype=y.dtype, device=y.device), is_grads_batched=True)
    y = x.exp()
    (rows,) = grad(y, x, ops.eye(3, dtype=y.dtype, device=y.device), is_grads_batched=True, create_graph=True)
    (second,) = grad(rows.sum(), x)
    np.testing.assert_allclose(second.numpy(), np.exp(V.numpy()), rtol=1e-12)


def test_a_cotangent_may_be_differentiated():
    def along(y):
        return func.vjp(ops.sin, V)[1](y)[0].sum()

    np.testing.assert_allclose(func.grad(along)(V).numpy(), np.cos(V.numpy()), rtol=1e-12)
    out, back = func.vjp(ops.sin, V.clone().requires_grad_())
    with ampkit.no_grad():
        assert not back(V)[0].requires_grad
    assert out.requires_grad


def test_a_strict_jvp_refuses_outputs_that_depend_on_nothing():
    with pytest.raises(StateError, match="strict=True"):
        func.jvp(lambda x: (x, V), (V,), (V,), strict=True)
    assert func.jvp(lambda x: (x, V), (V,), (V,))[1][1].sum() == 0


class Product(Function):
    """A product whose jvp reads the tangents of both factors."""

    materializes = True
    seen: list[object] = []  # noqa: RUF012

    @staticmethod
    def forward(x, y, power, index):
        return x * y**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.set_materialize_grads(Product.materializes)

    @staticmethod
    def backward(ctx, dz):
        x, y = ctx.saved_tensors
        return dz * y, dz * x, None, None

    @staticmethod
    def jvp(ctx, dx, dy, power, index):
        x, y = ctx.saved_tensors
        Product.seen.append((dx is None, dy is None, power, index))
        return dx * y if dy is None else dx * y + x * dy


@pytest.mark.parametrize("materializes", [True, False])
def test_a_tensor_without_a_tangent_has_zeros_unless_told_not_to(materializes, monkeypatch):
    monkeypatch.setattr(Product, "materializes", materializes)
    Product.seen.clear()
    index = tensor([1])
    call = lambda x: Product.apply(x, V, 1, index)  # noqa: E731
    _, tangent = func.jvp(call, (X[0],), (V,))
    np.testing.assert_allclose(tangent.numpy(), (V * V).numpy())
    np.testing.assert_allclose(func.jacfwd(call)(X[0]).numpy(), func.jacrev(call)(X[0]).numpy())
    found = func.vmap(lambda x: func.jvp(call, (x,), (V,))[1])(X)
    np.testing.assert_allclose(found.numpy(), np.broadcast_to((V * V).numpy(), X.shape))
    assert set(Product.seen) == {(False, not materializes, None, None)}
