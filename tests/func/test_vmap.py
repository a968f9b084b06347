"""`vmap` runs its function once: with other transforms, in models, with changes in place, random numbers and errors."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import autocast, func, models, nn, ops, tensor
from ampkit.amp import GradScaler
from ampkit.autograd import Function, grad
from ampkit.base.errors import ArgumentError, NonFiniteError, RangeError, StateError
from ampkit.core.autograd.recompute import recompute
from ampkit.core.dispatch.batching.array import live_levels
from ampkit.core.dispatch.batching.call import watching_loops
from ampkit.core.dispatch.batching.rules import elementwise
from ampkit.core.op import Array, Saved, op
from ampkit.core.op import ops as registry
from ampkit.core.policy import Cast
from ampkit.debug import detect_nonfinite, plan
from ampkit.optim import Adam


def numbers(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape), dtype=ampkit.float32)


def integers(most, *shape, seed=0):
    return tensor(np.random.default_rng(seed).integers(0, most, shape))


def close(found, wanted, tolerance=1e-5):
    assert found.dtype == wanted.dtype
    a, b = (t.detach().double().numpy() for t in (found, wanted))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, np.abs(b).max()))


def energy(w, x):
    return ops.tanh(w @ x).square().sum()


@pytest.fixture(autouse=True)
def inputs():
    """W [3, 3], X [4, 3] and a perceptron on the device of the test."""
    global W, X, NET, PARAMS
    W, X = numbers(3, 3, seed=1), numbers(4, 3)
    NET = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    PARAMS = {name: p.detach() for name, p in NET.named_parameters()}
    yield
    del W, X, NET, PARAMS


def net_loss(params, x, y):
    return func.functional_call(NET, params, (x * y,)).square().mean()


TRANSFORMED = {
    "vmap(hessian)": lambda v, s: v(func.hessian(lambda x: energy(W, x)))(X),
    "vmap(jacfwd)": lambda v, s: v(func.jacfwd(lambda x: ops.tanh(W @ x)))(X),
    "vmap(jacrev) of what they share": lambda v, s: v(lambda x: func.jacrev(lambda w: ops.tanh(w @ x))(W))(X),
    "vmap(jvp)": lambda v, s: v(lambda x: func.jvp(lambda x: NET(x), (x,), (W[0],))[1])(X),
    "vmap(jvp) of mapped tangents": lambda v, s: v(lambda t: func.jvp(lambda x: NET(x), (W[0],), (t,))[1])(X),
    "jvp(vmap)": lambda v, s: func.jvp(
        lambda x, w: v(lambda x: ops.tanh(w @ x))(x), (X, W), (ops.ones_like(X), ops.ones_like(W))
    )[1],
    "grad(vmap)": lambda v, s: func.grad(lambda w: v(lambda x: energy(w, x))(X).sum())(W),
    "jacrev(vmap)": lambda v, s: func.jacrev(lambda w: v(lambda x: w @ x)(X))(W),
    "jacfwd(vmap)": lambda v, s: func.jacfwd(lambda w: v(lambda x: w @ x)(X))(W),
    "grad(vmap(grad)) by the sample": lambda v, s: func.grad(
        lambda w: v(func.grad(lambda x: energy(w, x)))(X).square().sum()
    )(W),
    "grad(vmap(grad)) by what they share": lambda v, s: func.grad(lambda w: s(func.grad(energy), w)(X).square().sum())(
        W
    ),
    "vmap(vmap)": lambda v, s: v(lambda a: v(lambda b: ops.softmax(W @ a * b, 0))(X))(X),
    "vmap(vmap(grad))": lambda v, s: v(lambda a: v(lambda b: func.grad(net_loss)(PARAMS, a, b)["0.weight"])(X))(X),
    "vmap(hessian) of a net": lambda v, s: v(lambda x: func.hessian(net_loss, 1)(PARAMS, x, W[0]))(X),
    "of a view of what they share": lambda v, s: v(lambda x: func.grad(lambda w: energy(w.T[:, :], x))(W))(X),
    "of a product of what they share": lambda v, s: v(lambda x: func.grad(lambda w: energy((w @ w).tanh(), x))(W))(X),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_with_other_transforms(name):
    loop = lambda f: lambda batch: ops.stack([f(sample) for sample in batch])  # noqa: E731
    shared = lambda f, w: lambda batch: ops.stack([f(w, sample) for sample in batch])  # noqa: E731
    with watching_loops() as looped:
        found = TRANSFORMED[name](func.vmap, lambda f, w: lambda batch: func.vmap(f, (None, 0))(w, batch))
    close(found, TRANSFORMED[name](loop, shared))
    assert not looped or name == "vmap(hessian) of a net"


def with_group_norm(module):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(4, child.num_features))
        else:
            with_group_norm(child)
    return module


def image_model():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, groups=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10),
    )  # fmt: skip


ZOO = {
    "gpt": lambda: models.gpt("nano", n_layer=2, n_embd=32, n_head=2, vocab_size=40, block_size=16),
    "vit": lambda: models.vit(
        image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10
    ),
    "bert": lambda: models.bert(
        "tiny", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=40,
        max_position_embeddings=16,
    ).eval(),
    "resnet18": lambda: with_group_norm(models.resnet18(num_classes=10, stem="cifar", width=8)),
    "convnet": image_model,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [None, ampkit.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ZOO)
def test_per_sample_gradients_of_models_run_no_loop(name, dtype):
    ampkit.manual_seed(0)
    model = ZOO[name]()
    params = {key: p.detach() for key, p in model.named_parameters()}
    text = name in ("gpt", "bert")
    x = integers(40, 3, 12) if text else numbers(3, 3, 8, 8)
    y = integers(40, 3, 12, seed=1) if text else integers(10, 3)

    def loss(params, x, y):
        out = func.functional_call(model, params, (x[None],))
        return ops.cross_entropy(out.reshape(-1, out.shape[-1]).float(), y.reshape(-1))

    with autocast(dtype=dtype or ampkit.bfloat16, enabled=dtype is not None), watching_loops() as looped:
        found = func.vmap(func.grad(loss), (None, 0, 0))(params, x, y)
        assert not looped
        for sample in range(3):
            each = func.grad(loss)(params, x[sample], y[sample])
            for key, gradient in each.items():
                assert found[key].dtype == gradient.dtype == ampkit.float32
                largest = max(float(gradient.abs().max()), 0.05)
                got = found[key][sample].numpy()
                tolerance = 2e-3 if dtype is None else 2e-2
                np.testing.assert_allclose(got, gradient.numpy(), rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("norm", ["LayerNorm(8)", "GroupNorm(2, 8)", "BatchNorm1d(8)", "Softmax(-1)"])
def test_rows_of_a_jacobian_recorded_in_a_region(norm):
    middle = eval(f"nn.{norm}")
    net, x = nn.Sequential(nn.Linear(3, 8), middle, nn.Linear(8, 2)), numbers(4, 3).requires_grad_()
    with autocast(dtype=ampkit.bfloat16):
        out = net(x)
        seeds = ops.eye(out.numel()).reshape(-1, *out.shape).to(out.dtype)
        with watching_loops() as looped:
            found = func.vmap(lambda seed: grad(out, x, seed, retain_graph=True)[0])(seeds)
    assert not looped
    close(found, ops.stack([grad(out, x, seed, retain_graph=True)[0] for seed in seeds]))


@pytest.mark.parametrize("layer", ["Linear(8, 4)", "Conv1d(1, 4, 3)", "LayerNorm(8)"])
def test_gradients_of_a_parameter_that_samples_share_are_not_rounded_to_16_bits(layer):
    module, x = eval(f"nn.{layer}"), numbers(3, 1, 8)
    asked = list(module.parameters())
    with autocast(dtype=ampkit.bfloat16):
        found = func.vmap(lambda x: grad(ops.tanh(module(x)).sum(), asked))(x)
        each = [grad(ops.tanh(module(sample)).sum(), asked) for sample in x]
    for got, *wanted in zip(found, *each, strict=True):
        assert got.dtype == ampkit.float32
        close(got, ops.stack(wanted), 1e-6)


def test_an_ensemble_trains_with_a_scaler():
    ampkit.manual_seed(0)
    members = [nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(3)]
    alone = [{key: p.detach().clone().requires_grad_() for key, p in m.named_parameters()} for m in members]
    params, _ = func.stack_module_state(members)

    def loss(p):
        return (func.functional_call(members[0], p, (X,)) - X.sum(1, True)).square().mean()

    with autocast(dtype=ampkit.float16), watching_loops() as looped:
        for optimizer, scaler, total in (
            (Adam(list(params.values()), lr=0.01), GradScaler("cpu"), lambda: func.vmap(loss)(params).sum()),
            (
                Adam([p for one in alone for p in one.values()], lr=0.01),
                GradScaler("cpu"),
                lambda: sum(map(loss, alone)),
            ),
        ):
            for _ in range(3):
                optimizer.zero_grad()
                scaler.scale(total()).backward()
                scaler.step(optimizer)
                scaler.update()
    assert not looped
    for key, stacked in params.items():
        close(stacked, ops.stack([one[key] for one in alone]), 2e-3)


def test_changes_in_place_and_views():
    def changed(x):
        y = x * 1
        y[0] = x[1]
        y.mul_(2)
        view = y[1:]
        view += x[1:]
        made = ops.zeros_like(x)
        made[:2] = y[1:]
        return (y * made).sum()

    close(func.vmap(changed)(X), ops.stack([changed(x) for x in X]))
    close(func.vmap(func.grad(changed))(X), ops.stack([func.grad(changed)(x) for x in X]))
    x = X.clone()
    func.vmap(lambda x: x.mul_(2))(x)
    close(x, X * 2)


class Product(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * w, dy * x


def overwritten(v, x):
    y = x * 1
    y[0] = v[1] * 2
    y[1:] = v[1:]
    return y.mul_(v).square().sum()


@pytest.mark.parametrize(
    "function",
    [
        lambda v, x: Product.apply(x, v).sum(),
        overwritten,
        lambda v, x: recompute(lambda v, x: ops.tanh(v * x).square(), v, x).sum(),
    ],
    ids=["Function", "in place", "recompute"],
)
def test_nodes_that_are_no_ops_sum_what_the_samples_share(function):
    v = W[0].clone()
    total = func.grad(lambda v: func.vmap(lambda x: function(v, x))(X).sum())(v)
    close(total, func.grad(lambda v: sum(function(v, x) for x in X))(v))
    close(func.vmap(func.grad(function), (None, 0))(v, X), ops.stack([func.grad(function)(v, x) for x in X]))


def test_indices_of_each_sample():
    table, places = numbers(6, 2), integers(6, 3, 2)
    close(func.vmap(lambda i: table[i])(places), ops.stack([table[i] for i in places]))
    close(
        func.vmap(lambda x, i: x[i])(X, integers(3, 4)),
        ops.stack([x[i] for x, i in zip(X, integers(3, 4), strict=True)]),
    )
    got = func.grad(lambda t: func.vmap(lambda i: t[i])(places).square().sum())(table)
    close(got, func.grad(lambda t: ops.stack([t[i] for i in places]).square().sum())(table))
    each = func.vmap(func.grad(lambda t, i: t[i].square().sum()), (None, 0))(table, places)
    close(each, ops.stack([func.grad(lambda t, i: t[i].square().sum())(table, i) for i in places]))


def test_random_numbers():
    ones = ops.ones(3, 64)
    run = lambda how, f: func.vmap(f, randomness=how)(ones).numpy()  # noqa: E731
    for draw in (ops.dropout, lambda x: x + ampkit.randn(64), lambda x: ops.dropout(ops.ones(64)) * x):
        same, different = run("same", draw), run("different", draw)
        assert (same == same[0]).all() and (different[0] != different[1]).any()
        with pytest.raises(StateError, match="no random op"):
            run("error", draw)
    ampkit.manual_seed(0)
    first = run("same", ops.dropout)[0]
    ampkit.manual_seed(0)
    np.testing.assert_array_equal(first, ops.dropout(ones[0]).numpy())
    attend = lambda x: ops.scaled_dot_product_attention(x, x, x, dropout_p=0.5)  # noqa: E731
    heads = ops.ones(3, 2, 8, 4)
    with watching_loops() as looped:
        different = func.vmap(attend, randomness="different")(heads)
    assert (different[0] != different[1]).any() and not looped
    same = func.vmap(attend, randomness="same")(heads)
    assert bool((same == same[0]).all())


def test_chunks_are_parts_of_the_batch():
    sizes = []

    def function(x):
        sizes.append(x.array.level.size)
        return x * 2, W

    found, shared = func.vmap(function, out_dims=(1, None), chunk_size=3)(X)
    close(found, X.T * 2)
    close(shared, W)
    assert sizes == [3, 1]
    with pytest.raises(ArgumentError, match="chunk_size"):
        func.vmap(function, chunk_size=0)


def test_jacobians_of_a_function_that_reads_values():
    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return tensor(3 * x.numpy() ** 2 * dy.numpy())

    x = X[0]
    close(func.jacrev(Cube.apply)(x), ops.diag(3 * x * x))
    close(func.jacrev(ops.tanh, chunk_size=2)(x), func.jacfwd(ops.tanh, chunk_size=1)(x))


def test_what_has_no_rule_runs_once_per_sample_and_is_named():
    with watching_loops() as looped:
        found = func.vmap(lambda x: ops.tanh(x) + ops.prod(x))(X)
    close(found, ops.stack([ops.tanh(x) + ops.prod(x) for x in X]))
    assert list(looped) == ["prod"]

    class Mapped(nn.Module):
        def forward(self, x):
            return func.vmap(lambda x: x * ops.prod(x))(x)

    assert any("once per sample" in note and "prod" in note for note in plan(Mapped(), X).notes)


def test_observers_see_the_whole_batch():
    with pytest.raises(NonFiniteError, match="exp.*gave .* inf of float32"), detect_nonfinite():
        func.vmap(lambda x: ops.exp(x * 1000).sum())(X)


def test_an_op_of_ones_own_loops_until_it_has_a_rule():
    @op(cast=Cast.KEEP)
    def squareplus_of_test(input: Array, b=4.0):
        return (input + np.sqrt(input * input + b)) / 2, Saved(input=input)

    @squareplus_of_test.backward
    def squareplus_backward(dy, saved, needs, b):
        return dy * (1 + saved.input / np.sqrt(saved.input * saved.input + b)) / 2

    try:
        expected = ops.stack([func.grad(lambda x: squareplus_of_test(x).sum())(x) for x in X])
        for rule, loops in ((None, ["squareplus_of_test"]), (elementwise, [])):
            squareplus_of_test.batching = rule
            with watching_loops() as looped:
                close(func.vmap(func.grad(lambda x: squareplus_of_test(x).sum()))(X), expected)
            assert list(looped) == loops
    finally:
        del registry["squareplus_of_test"]


def test_nothing_stays_when_the_results_are_gone():
    weight = W.clone().requires_grad_()
    before = len(live_levels)
    out = func.vmap(lambda x: energy(weight, x))(X)
    assert len(live_levels) == before + 1
    out.sum().backward()
    del out
    assert len(live_levels) == before


def accumulate(total):
    return lambda x: total.add_(x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: func.vmap(lambda x: x.sum().item())(X), "a function that reads no values"),
        (lambda: func.vmap(lambda x: x if x.sum() > 0 else -x)(X), "a function that reads no values"),
        (lambda: func.vmap(lambda x: tensor(x.numpy()))(X), "a function that reads no values"),
        (lambda: func.vmap(accumulate(ops.zeros(3)))(X), "one of a tensor that all samples share"),
        (lambda: func.vmap(lambda x: ops.zeros(3).__setitem__(0, x[0]))(X), "one of a tensor that all samples share"),
        (lambda: func.vmap(nn.BatchNorm1d(3))(numbers(4, 2, 3)), "running statistics of each sample"),
    ],
)
def test_what_a_function_of_samples_must_not_do(call, words):
    with pytest.raises(StateError, match=words):
        call()


def test_an_output_axis_that_is_not_there():
    with pytest.raises(RangeError, match="out_dims within the 2 axes"):
        func.vmap(lambda x: x, out_dims=2)(X)
