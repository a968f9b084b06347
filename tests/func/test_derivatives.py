"""Derivatives of functions: forward mode agrees with reverse mode for every op, and transforms nest."""

from __future__ import annotations

import numpy as np
import pytest
from func.each_op import DIFFERENTIABLE, EVERY, has_floats, numbers, of_floats

import ampkit
from ampkit import Tensor, autocast, func, nn, ops, tensor
from ampkit.autograd import Function, forward_ad
from ampkit.base.errors import AmpkitError, ArgumentError, DTypeError, ShapeError, StateError
from ampkit.core.op import ops as ops_by_name
from ampkit.core.policy import Policy


def product(these, those):
    return sum(float((a * b).sum()) for a, b in zip(these, those, strict=True))


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=repr)
def test_forward_mode_is_the_transpose_of_reverse_mode(case):
    call, primals, directions = of_floats(case)
    outs, tangents = func.jvp(call, primals, directions)
    assert outs and [t.shape for t in tangents] == [o.shape for o in outs]
    assert [t.dtype for t in tangents] == [o.dtype for o in outs]
    assert [t.device for t in tangents] == [o.device for o in outs]
    seeds = tuple(numbers(*out.shape, seed=7 + i).to(out.device) for i, out in enumerate(outs))
    _, back = func.vjp(call, *primals)
    forward, reverse = product(seeds, tangents), product(back(seeds), directions)
    assert abs(forward - reverse) <= 1e-8 * max(1.0, abs(forward))


def has_rule(case):
    """Whether the op of a case has a rule of forward mode and float inputs."""
    op = ops_by_name.get(case.name)
    return op is not None and op.tangent is not None and has_floats(case)


@pytest.mark.parametrize("case", [case for case in EVERY if has_rule(case)], ids=repr)
def test_a_rule_gives_the_tangent_along_each_input_alone(case):
    call, primals, directions = of_floats(case)
    for i, direction in enumerate(directions):

        def along(x, i=i):
            return call(*primals[:i], x, *primals[i + 1 :])

        outs, tangents = func.jvp(along, (primals[i],), (direction,))
        assert [t.shape for t in tangents] == [o.shape for o in outs]
        assert [t.device for t in tangents] == [o.device for o in outs]
        seeds = tuple(numbers(*out.shape, seed=7 + j).to(out.device) for j, out in enumerate(outs))
        forward = product(seeds, tangents)
        reverse = product(func.vjp(along, primals[i])[1](seeds), (direction,))
        assert abs(forward - reverse) <= 1e-8 * max(1.0, abs(forward))


def block(x):
    hidden = ops.layer_norm(ops.gelu(ops.linear(x, numbers(5, 4, dtype=x.dtype))), (5,))
    return (ops.softmax(hidden, -1) * hidden.sin()).sum(0) + hidden[0]


def test_jacobians_of_both_modes_agree_and_the_hessian_is_symmetric():
    x = numbers(3, 4)
    forward, reverse = func.jacfwd(block)(x), func.jacrev(block)(x)
    assert forward.shape == reverse.shape == (5, 3, 4)
    np.testing.assert_allclose(forward.numpy(), reverse.numpy(), rtol=0, atol=1e-12)
    second = func.hessian(lambda x: block(x).square().sum())(x).numpy().reshape(12, 12)
    step = 1e-5 * np.eye(12)[2].reshape(3, 4)
    first = func.grad(lambda x: block(x).square().sum())
    difference = (first(x + tensor(step)).numpy() - first(x - tensor(step)).numpy()) / 2e-5
    np.testing.assert_allclose(second, second.T, atol=1e-10)
    np.testing.assert_allclose(second[2].reshape(3, 4), difference, rtol=1e-6, atol=1e-6)


def test_transforms_nest_without_confusing_their_variables():
    two, three, one = tensor(2.0), tensor(3.0), tensor(1.0)
    assert func.grad(lambda x: func.grad(lambda y: x * y * y)(three))(two).item() == 6  # d(2 x y)/dx
    assert func.grad(func.grad(lambda x: x**3))(two).item() == 12
    inner = lambda x: func.jvp(lambda y: x * y * y, (x,), (one,))[1]  # noqa: E731  # 2 x^2
    assert func.jvp(inner, (two,), (one,))[1].item() == 8
    assert func.grad(inner)(two).item() == 8
    assert func.jvp(func.grad(lambda x: x**3), (two,), (one,))[1].item() == 12
    assert not func.grad(lambda x: func.grad(lambda y: x * y * y)(three))(two).requires_grad


def test_results_stay_on_the_tape_of_what_surrounds_the_transform():
    weight = tensor(3.0, requires_grad=True)
    slope = func.grad(lambda x: weight * x * x)(tensor(2.0))
    slope.backward()
    assert weight.grad.item() == 4
    value, tangent = func.jvp(lambda x: weight * x, (tensor(2.0),), (tensor(5.0),))
    (found,) = ampkit.grad(tangent, weight)
    assert value.requires_grad and found.item() == 5
    with ampkit.no_grad():
        assert not func.grad(lambda x: weight * x * x)(tensor(2.0)).requires_grad


def test_arguments_and_results_may_be_nested():
    given = {"a": numbers(2), "b": [numbers(3, seed=1)]}
    both = lambda p: (p["a"].sum() * p["b"][0], {"c": p["a"] ** 2})  # noqa: E731
    out, back = func.vjp(both, given)
    (found,) = back((ops.ones_like(out[0]), {"c": ops.ones_like(out[1]["c"])}))
    np.testing.assert_allclose(found["a"].numpy(), given["b"][0].sum().item() + 2 * given["a"].numpy())
    jacobian = func.jacrev(both)(given)
    assert jacobian[1]["c"]["a"].shape == (2, 2) and not jacobian[1]["c"]["b"][0].numpy().any()
    out, push = func.linearize(both, given)
    tangents = push({"a": ops.ones_like(given["a"]), "b": [ops.zeros_like(given["b"][0])]})
    np.testing.assert_allclose(tangents[1]["c"].numpy(), 2 * given["a"].numpy())


def test_aux_and_argnums():
    function = lambda x, y: ((x * y).sum(), {"y": y})  # noqa: E731
    x, y = numbers(3), numbers(3, seed=1)
    (dx, dy), (value, aux) = func.grad_and_value(function, (0, -1), has_aux=True)(x, y)
    np.testing.assert_array_equal(dx.numpy(), y.numpy())
    np.testing.assert_array_equal(dy.numpy(), x.numpy())
    assert value.item() == pytest.approx(float((x * y).sum())) and not aux["y"].requires_grad
    found, aux = func.grad(function, 1, has_aux=True)(x, y)
    np.testing.assert_array_equal(found.numpy(), x.numpy())


@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16])
def test_in_a_region_every_op_has_the_dtype_that_it_has_without_a_transform(dtype):
    layer = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
    x = numbers(5, 4, dtype=ampkit.float32)
    with autocast(policy=Policy(str(dtype).removeprefix("ampkit."))):
        plain = layer(x)
        out, tangent = func.jvp(layer, (x,), (ops.ones_like(x),))
    assert plain.dtype == out.dtype == tangent.dtype == dtype
    np.testing.assert_array_equal(plain.detach().float().numpy(), out.detach().float().numpy())
    _, exact = func.jvp(layer, (x,), (ops.ones_like(x),))
    np.testing.assert_allclose(tangent.detach().float().numpy(), exact.detach().numpy(), atol=0.05)


def test_a_function_with_a_jvp_of_its_own_runs_it():
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy * 2

        @staticmethod
        def jvp(ctx, tangent):
            (x,) = ctx.saved_tensors
            calls.append(x)
            return tangent * 2

    calls: list[Tensor] = []
    _, found = func.jvp(Double.apply, (tensor(3.0),), (tensor(5.0),))
    assert found.item() == 10 and len(calls) == 1

    class Cube(Function):  # without one: its backward is differentiated
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return dy * 3 * x**2

    assert func.jvp(Cube.apply, (tensor(2.0),), (tensor(1.0),))[1].item() == 12


def test_changes_in_place_are_followed():
    def change(x):
        y = x * 2
        y[0] = x[1] * 3
        y[1:].mul_(2)
        return y

    _, found = func.jvp(change, (tensor([1.0, 2.0, 3.0]),), (tensor([1.0, 10.0, 100.0]),))
    np.testing.assert_array_equal(found.numpy(), [30, 40, 400])


def test_dual_tensors():
    x, direction = tensor([1.0, 2.0]), tensor([1.0, 3.0])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction)
        value, tangent = forward_ad.unpack_dual((dual * dual).sum())
        assert forward_ad.unpack_dual(x).tangent is None
        with pytest.raises(StateError, match="nested"):
            forward_ad.enter_dual_level()
    assert value.item() == 5 and tangent.item() == 14 and not tangent.requires_grad
    with pytest.raises(StateError, match="level around it"):
        forward_ad.make_dual(x, direction)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: func.grad(lambda x: x)(x), ShapeError, "one element"),
        (lambda x: func.grad(lambda x: (x, x))(x), DTypeError, "one Tensor"),
        (lambda x: func.grad(lambda x: x.sum(), 1)(x), ArgumentError, "argnums below 1"),
        (lambda x: func.grad(lambda x: x.sum())(x.long()), DTypeError, "float Tensors as argument 0"),
        (lambda x: func.grad(lambda x: 3)(x), DTypeError, "returns Tensors"),
        (lambda x: func.grad(lambda x: x.sum(), has_aux=True)(x), DTypeError, "aux"),
        (lambda x: func.jvp(lambda x: x, x, (x,)), ArgumentError, "primals as a tuple"),
        (lambda x: func.jvp(lambda x: x, (x,), (x[:1],)), ShapeError, r"tangents of the shapes \[3\]"),
        (lambda x: func.vjp(lambda x: x, x)[1](x[:1]), ShapeError, "cotangents"),
        (lambda x: func.jvp(lambda x: ampkit.recompute(ops.sin, x), (x,), (x,)), StateError, "checkpoint"),
    ],
)
def test_bad_input_is_named_in_one_line(call, error, words):
    with pytest.raises(error, match=words) as raised:
        call(numbers(3))
    assert isinstance(raised.value, AmpkitError) and len(str(raised.value).splitlines()) <= 2


def test_what_depends_on_nothing_has_zeros():
    out, tangent = func.jvp(lambda x: ops.ones(2), (numbers(3),), (numbers(3),))
    assert out.shape == (2,) and not tangent.numpy().any()
    assert not func.grad(lambda x: ops.ones(()))(numbers(3)).numpy().any()
    assert func.jacrev(lambda x: x[:0])(numbers(3)).shape == (0, 3)
    assert func.jacfwd(lambda x: ops.ones(2))(numbers(0)).shape == (2, 0)


def test_jacobians_hold_no_nan_of_zero_times_an_infinite_slope():
    x, y = numbers(3), ops.zeros(3, dtype=ampkit.float64)
    slope, steep = func.jacfwd(lambda x, y: 2 * x + y.sqrt(), (0, 1))(x, y)  # only y has an infinite slope
    np.testing.assert_array_equal(slope.numpy(), 2 * np.eye(3))
    assert np.isinf(np.diag(steep.numpy())).all()
    slope, steep = func.jacrev(lambda y: (2 * y, y.sqrt()))(y)  # only the second output has
    np.testing.assert_array_equal(slope.numpy(), 2 * np.eye(3))
    assert np.isinf(np.diag(steep.numpy())).all()


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 3, 4)])
def test_jacobians_along_parameters_are_finite_differences(shape):
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    params, x = {name: p.detach() for name, p in model.named_parameters()}, numbers(*shape)

    def call(params):
        return func.functional_call(model, params, (x,)).sin()

    reverse, forward = func.jacrev(call)(params), func.jacfwd(call)(params)
    second = func.hessian(lambda p: call(p).square().sum())(params)
    first = func.grad(lambda p: call(p).square().sum())
    for name, p in params.items():
        v = numbers(*p.shape, seed=3)
        ends = [params | {name: p + step * v} for step in (1e-5, -1e-5)]
        slope = (call(ends[0]) - call(ends[1])).numpy() / 2e-5
        for jacobian in (reverse, forward):
            np.testing.assert_allclose((jacobian[name] * v).sum((-1, -2)[: v.ndim]).numpy(), slope, atol=1e-8)
        before, after = first(ends[1]), first(ends[0])
        for other in params:
            bend = (after[other] - before[other]).numpy() / 2e-5
            np.testing.assert_allclose((second[other][name] * v).sum((-1, -2)[: v.ndim]).numpy(), bend, atol=1e-7)


def test_a_factor_that_changed_in_place_since_has_no_tangents():
    weight = numbers(2, 3, seed=1)
    for call in (lambda x: ops.linear(x, weight), lambda x: x * weight):
        _, push = func.linearize(call, numbers(2, 3))
        push(numbers(2, 3))
        weight.mul_(2)
        with pytest.raises(StateError, match="changed in place since"):
            push(numbers(2, 3))


def test_tensors_of_an_argument_without_elements_have_empty_columns():
    given = {"none": numbers(0, 2), "one": numbers(), "more": numbers(2, seed=1), "empty": numbers(0)}
    call = lambda p: p["one"] * p["more"].sum() + p["none"].sum()  # noqa: E731
    for names in (["none", "one", "empty"], list(given)):
        found = func.jacfwd(lambda some: call(given | some))({name: given[name] for name in names})
        assert [found[name].shape for name in names] == [given[name].shape for name in names]
        assert found["one"].item() == pytest.approx(float(given["more"].sum()))
    np.testing.assert_array_equal(found["more"].numpy(), np.full(2, given["one"].item()))


def test_many_elements_take_a_pass_for_each_tensor_with_the_same_result():
    given = {"a": numbers(51, 20), "b": numbers(3, seed=1)}
    call = lambda p: p["a"].sum(0)[:3].sin() * p["b"].cos()  # noqa: E731
    found, reverse = func.jacfwd(call)(given), func.jacrev(call)(given)
    for name in given:
        np.testing.assert_allclose(found[name].numpy(), reverse[name].numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_rows_of_a_jacobian_in_a_region_have_the_bits_of_single_passes(shape):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    params, x = {name: p.detach() for name, p in model.named_parameters()}, numbers(*shape, dtype=ampkit.float32)
    with autocast(dtype=ampkit.bfloat16):
        call = lambda p: func.functional_call(model, p, (x,))  # noqa: E731
        rows, (out, back) = func.jacrev(call)(params), func.vjp(call, params)
        units = ops.eye(out.numel(), dtype=out.dtype).reshape(out.numel(), *out.shape)
        for i, unit in enumerate(units):
            for name, gradient in back(unit)[0].items():
                row = rows[name].reshape(out.numel(), *gradient.shape)[i]
                assert row.dtype == gradient.dtype == ampkit.float32
                np.testing.assert_array_equal(row.numpy(), gradient.numpy())


def doubled(x):
    x.mul_(2)
    return (x * x).sum()


def overwritten(x):
    x[0] = 0.0
    x[1:].mul_(x[:2].clone())
    return (x**3).sum()


def replaced(x):
    return x.copy_(3 * x.flip(0)).square().sum()


def of_a_change_within(x):
    x.sin_()
    return func.grad(lambda z: z.mul_(3).square().sum())(x).sum()


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (doubled, lambda x: (2 * x).square().sum()),
        (overwritten, lambda x: (x[2] * x[1]) ** 3),
        (replaced, lambda x: 9 * x.square().sum()),
        (of_a_change_within, lambda x: 18 * x.sin().sum()),
    ],
)
def test_a_function_may_change_its_argument_in_place(change, same):
    x, v = numbers(3), numbers(3, seed=1)
    want, slope = func.grad(same)(x), func.jvp(same, (x,), (v,))[1]
    np.testing.assert_allclose(func.grad(change)(x.clone()).numpy(), want.numpy(), rtol=1e-12)
    out, pull = func.vjp(change, x.clone())
    np.testing.assert_allclose(pull(out * 0 + 1)[0].numpy(), want.numpy(), rtol=1e-12)
    np.testing.assert_allclose(func.jvp(change, (x.clone(),), (v,))[1].numpy(), slope.numpy(), rtol=1e-12)
    np.testing.assert_allclose(func.jacrev(change)(x.clone()).numpy(), want.numpy(), rtol=1e-12)
    np.testing.assert_allclose(func.jacfwd(change)(x.clone()).numpy(), want.numpy(), rtol=1e-12)
    rows = func.vmap(func.grad(change))(ampkit.stack([x, 2 * x]))
    np.testing.assert_allclose(rows.numpy(), func.vmap(func.grad(same))(ampkit.stack([x, 2 * x])).numpy(), rtol=1e-12)


def test_a_change_of_the_argument_shows_in_the_tensor_that_was_given_also_where_it_is_a_view():
    given = numbers(2, 3)
    before = given.numpy().copy()
    func.grad(doubled)(given[0])
    np.testing.assert_array_equal(given.numpy(), before * np.array([[2], [1]]))


def test_a_leaf_that_requires_grad_beyond_the_transform_does_not_change():
    with pytest.raises(StateError, match="a view of a leaf that requires grad"):
        func.grad(doubled)(numbers(3).requires_grad_())
