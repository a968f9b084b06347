"""`vmap` gives what a loop over the samples gives."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import autocast, func, nn, ops, tensor
from ampkit.base.errors import ArgumentError, RangeError, ShapeError, StateError


def numbers(*shape, seed=0):
    return tensor(np.random.default_rng(seed).standard_normal(shape), dtype=ampkit.float32)


def test_axes_of_arguments_and_results():
    x, w = numbers(4, 3), numbers(3, 2, seed=1)
    rows = np.stack([row @ w.numpy() for row in x.numpy()])
    np.testing.assert_allclose(func.vmap(lambda x, w: x @ w, (0, None))(x, w).numpy(), rows, rtol=1e-5)
    np.testing.assert_allclose(func.vmap(lambda x, w: x @ w, (-1, None), 1)(x.T, w).numpy(), rows.T, rtol=1e-5)
    nested = lambda p: {"sum": p["a"].sum(), "pair": [p["b"], p["a"]]}  # noqa: E731
    made = func.vmap(nested, ({"a": 0, "b": None},))({"a": x, "b": w})
    np.testing.assert_allclose(made["sum"].numpy(), x.numpy().sum(1), rtol=1e-5)
    assert made["pair"][0].shape == (4, 3, 2) and made["pair"][1].shape == (4, 3)
    first, second = func.vmap(lambda x: (x, "shared"), out_dims=(1, None))(x)
    assert first.shape == (3, 4) and second == "shared"
    assert func.vmap(func.vmap(lambda a, b: a * b, (None, 0)), (0, None))(x[:, 0], x[0]).shape == (4, 3)


def test_per_sample_gradients_under_autocast_are_those_of_each_sample():
    layer = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    params = {name: p.detach() for name, p in layer.named_parameters()}
    x, y = numbers(5, 3), numbers(5, 2, seed=1)

    def loss(params, x, y):
        return (func.functional_call(layer, params, (x,)).float() - y).square().mean()

    with autocast(dtype=ampkit.bfloat16):
        found = func.vmap(func.grad(loss), (None, 0, 0))(params, x, y)
        assert func.vmap(layer)(x).dtype == layer(x).dtype == ampkit.bfloat16
        for sample in range(5):
            each = func.grad(loss)(params, x[sample], y[sample])
            for name, gradient in each.items():
                assert found[name].dtype == ampkit.float32
                np.testing.assert_array_equal(found[name][sample].numpy(), gradient.numpy())


def test_models_of_an_ensemble_run_from_stacked_state():
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval() for _ in range(3)]
    params, buffers = func.stack_module_state(models)
    assert params["0.weight"].shape == (3, 4, 3) and params["0.weight"].requires_grad
    x = numbers(5, 3)
    out = func.vmap(lambda p, b: func.functional_call(models[0], (p, b), (x,)))(params, buffers)
    for row, model in zip(out, models, strict=True):
        np.testing.assert_array_equal(row.detach().numpy(), model(x).detach().numpy())
    out.sum().backward()
    assert params["0.weight"].grad.shape == (3, 4, 3)


def test_all_samples_share_keyword_arguments():
    x, y = numbers(3, 4), numbers(3, 4, seed=1)
    found = func.vmap(lambda x, *, y: x * y)(x, y=y)  # as in PyTorch
    np.testing.assert_array_equal(found.numpy(), x.numpy()[:, None] * y.numpy())
    found = func.vmap(lambda x, *, y: x * y, -1, chunk_size=3)(x, y=y[:, 0])
    np.testing.assert_array_equal(found.numpy(), (x * y[:, :1]).numpy().T)


def test_a_dict_says_where_the_results_of_a_dict_are_stacked():
    x = numbers(3, 4)
    dims = {"b": (1, 0), "a": 1}
    for size in (None, 2):
        found = func.vmap(lambda x: {"a": x, "b": (x * 2, x)}, out_dims=dims, chunk_size=size)(x)
        assert [found["a"].shape, found["b"][0].shape, found["b"][1].shape] == [(4, 3), (4, 3), (3, 4)]
        np.testing.assert_array_equal(found["b"][0].numpy(), 2 * x.numpy().T)
    made = func.vmap(lambda x: {"a": x, "b": 3}, out_dims={"a": 0, "b": None})(x)
    assert made["b"] == 3


def test_random_ops():
    zeros = ops.zeros(3, 4)
    noisy = lambda x: x + ampkit.randn(4)  # noqa: E731
    with pytest.raises(StateError, match="no random op"):
        func.vmap(noisy)(zeros)
    same = func.vmap(noisy, randomness="same")(zeros).numpy()
    other = func.vmap(noisy, randomness="different")(zeros).numpy()
    assert (same == same[0]).all() and (other[0] != other[1]).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: func.vmap(lambda x: x, 2)(x), ArgumentError, "in_dims within the 2 axes"),
        (lambda x: func.vmap(lambda x: x, True)(x), ArgumentError, "in_dims as a number"),
        (lambda x: func.vmap(lambda x: x, out_dims={"a": 0})(x), ArgumentError, "out_dims as a number"),
        (lambda x: func.vmap(lambda x: ops.where(x > 0))(x), ShapeError, "vmap: needs results of one shape"),
        (lambda x: func.jacrev(lambda x: x, chunk_size=0)(x), ArgumentError, "chunk_size as an integer from 1"),
        (lambda x: func.jacfwd(lambda x: x, chunk_size=-1)(x), ArgumentError, "chunk_size as an integer from 1"),
        (lambda x: func.vmap(lambda x: x, (0, 0))(x), ArgumentError, "a tuple of 1, one per argument"),
        (lambda x: func.vmap(lambda x, y: x)(x, x[:1]), ShapeError, "mapped axes of one length, got 1, 4"),
        (lambda x: func.vmap(lambda x: x[x > 0])(x), StateError, "results of one shape for all samples, got"),
        (
            lambda x: func.vjp(lambda x: (x, x), x)[1]((x, (x,))),
            ArgumentError,
            r"the structure \(\*, \*\), got \(\*, \(",
        ),
        (lambda x: func.jvp(lambda x, y: x, (x, [x]), (x, x)), ArgumentError, r"\(\*, \(\*,\)\), got \(\*, \*\)"),
        (lambda x: func.jvp(lambda p: p["w"], ({"w": x},), ({"v": x},)), ArgumentError, "tangents in the structure"),
        (lambda x: func.vmap(lambda x: x, (None,))(x), ShapeError, "no tensor to map"),
        (lambda x: func.vmap(lambda x, y: x)(x, 3), ArgumentError, "in_dims=None for an argument that is no Tensor"),
        (lambda x: func.vmap(lambda x: x[0], ((0, 0),))([x, x]), ArgumentError, "the arguments' structure"),
        (lambda x: func.vmap(lambda x: x, [0])(x), ArgumentError, "a tuple of 1, one per argument"),
        (lambda x: func.vmap(lambda x: x, out_dims=None)(x), ArgumentError, "an axis in out_dims"),
        (lambda x: func.vmap(lambda x: (x, x), out_dims=(0,))(x), ArgumentError, "one per output"),
        (lambda x: func.vmap(lambda x: x, out_dims=2)(x), RangeError, "out_dims within the 2 axes"),
        (lambda x: func.vmap(lambda x: 3)(x), ArgumentError, "returns Tensors"),
        (lambda x: func.vmap(lambda x: x, out_dims=(0, 1))(x), ArgumentError, "out_dims"),
        (lambda x: func.vmap(lambda x: x, randomness="none")(x), ArgumentError, "randomness"),
        (lambda x: func.stack_module_state([]), ArgumentError, "at least one model"),
        (lambda x: func.stack_module_state([nn.ReLU(), nn.GELU()]), ArgumentError, "one class and mode"),
    ],
)
def test_bad_input_is_named_in_one_line(call, error, words):
    with pytest.raises(error, match=words):
        call(numbers(4, 3))


def test_a_batch_of_no_samples_gives_results_of_no_samples():
    weight, x, places = numbers(5, 3), numbers(4, 3)[:0], tensor([[1, 2]])[:0]

    def function(x, i):
        return ops.linear(x, weight).sum(), x[i].log(), weight

    value, picked, shared = func.vmap(function, out_dims=(0, 1, None))(x, places)
    assert (value.shape, picked.shape, shared.shape) == ((0,), (2, 0), (5, 3))
    assert value.dtype == picked.dtype == x.dtype
    assert func.vmap(func.grad(lambda x: x.square().sum()))(x).shape == (0, 3)
    assert func.vmap(func.vmap(lambda x: x * 2))(numbers(2, 4, 3)[:, :0]).shape == (2, 0, 3)
    total = func.grad(lambda w: func.vmap(lambda x: ops.linear(x, w).sum())(x).sum())(weight)
    assert total.tolist() == [[0] * 3] * 5


def test_a_sample_prints_what_all_samples_are():
    x, seen = ops.ones(2, 3), []
    func.vmap(lambda row: seen.append(repr(row)) or row)(x)
    assert seen == [f"BatchedTensor(lvl=1, bdim=0, value=\n    {x!r}\n)"]
    func.vmap(func.vmap(lambda one: seen.append(repr(one)) or one))(x)
    assert seen[1] == f"BatchedTensor(lvl=2, bdim=0, value=\n    BatchedTensor(lvl=1, bdim=0, value=\n    {x!r}\n)\n)"
