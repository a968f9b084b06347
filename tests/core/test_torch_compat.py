"""PyTorch's words: other names of parameters, words that change no result, words that are refused."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import ArgumentError


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.array, b.array)


X = ampkit.tensor(np.arange(6, dtype=np.float32).reshape(2, 3) - 2)
AT = ampkit.tensor([[0, 2, 1]])


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "logsumexp", "prod", "std", "var", "argmax", "any"])
def test_axis_and_keepdims_are_other_names_of_dim_and_keepdim(name):
    function = getattr(ops, name)
    assert same(function(X, axis=1, keepdims=True), function(X, 1, keepdim=True))
    assert same(getattr(X, name)(axis=0), function(X, 0))


@pytest.mark.cpu
def test_axis_may_stand_for_a_dim_that_is_required():
    assert same(ops.cumsum(X, axis=1), ops.cumsum(X, 1))
    assert same(ops.gather(X, axis=0, index=ampkit.tensor([[1, 0, 1]])), ops.gather(X, 0, ampkit.tensor([[1, 0, 1]])))
    assert same(ops.unsqueeze(X, axis=1), ops.unsqueeze(X, 1))
    assert same(ops.cat([X, X], axis=1), ops.cat([X, X], 1))
    with pytest.raises(TypeError, match=r"gather\(\) missing the argument 'index'"):
        ops.gather(X, 0)
    with pytest.raises(TypeError, match=r"unsqueeze\(\) missing the argument 'dim'"):
        ops.unsqueeze(X)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "elu", "silu", "mish", "hardtanh", "relu6", "dropout"])
def test_inplace_writes_the_answer_into_the_input(name):
    given, function = X.clone(), getattr(ops, name)
    ampkit.manual_seed(0)
    plain = function(X)
    ampkit.manual_seed(0)
    assert function(given, inplace=True) is given
    assert same(given, plain)


def test_inplace_stands_where_pytorch_has_it():
    assert same(ops.leaky_relu(X.clone(), 0.3, True), ops.leaky_relu(X, 0.3))
    assert same(ops.hardtanh(X.clone(), -0.5, 0.5, True), ops.hardtanh(X, -0.5, 0.5))


OLD = [(True, None, "mean"), (False, None, "sum"), (None, True, "mean"), (None, False, "none"), (True, False, "none")]


@pytest.mark.parametrize(("size_average", "reduce", "reduction"), OLD)
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "kl_div"])
def test_size_average_and_reduce_mean_what_they_meant(name, size_average, reduce, reduction):
    loss = getattr(ops, name)
    assert same(loss(X, X * X, size_average, reduce), loss(X, X * X, reduction=reduction))


@pytest.mark.cpu
def test_they_stand_where_pytorch_has_them():
    labels, weight = ampkit.tensor([0, 2]), ampkit.tensor([1.0, 2.0, 3.0])
    for loss in (ops.cross_entropy, ops.nll_loss):
        assert same(
            loss(X, labels, weight, None, 0, None, "sum"), loss(X, labels, weight, ignore_index=0, reduction="sum")
        )
        assert same(loss(X, labels, size_average=False), loss(X, labels, reduction="sum"))
    half = X * 0 + 0.5
    for loss in (ops.binary_cross_entropy, ops.binary_cross_entropy_with_logits):
        assert same(loss(half, half, None, None, False), loss(half, half, reduction="none"))


def test_what_is_not_here_is_refused_in_one_line():
    table, index = ampkit.ones(4, 3), ampkit.tensor([1, 2])
    for name, call in {
        "weight": lambda: ops.mse_loss(X, X, weight=X),
    }.items():
        with pytest.raises(ArgumentError, match=rf"needs {name.strip()} left at its default.*\nhelp: "):
            call()
    assert same(ops.embedding(index, table, None, None, 2.0, False, False), ops.embedding(index, table))


def test_gradients_are_dense_whatever_sparse_says():
    table, index = ampkit.ones(4, 3, requires_grad=True), ampkit.tensor([1, 2, 1])
    want = [[0] * 3, [2] * 3, [1] * 3, [0] * 3]
    assert ampkit.autograd.grad(ops.embedding(index, table, sparse=True).sum(), [table])[0].tolist() == want
    for kind in (nn.Embedding, nn.EmbeddingBag):
        layer = kind.from_pretrained(table.detach(), freeze=False, sparse=True)
        layer(index[None]).sum().backward()
        assert layer.sparse and layer.weight.grad.shape == (4, 3)
    assert same(ops.gather(X, 1, AT, sparse_grad=True), ops.gather(X, 1, AT))


def test_softmax_without_dim_names_pytorchs_guess():
    for function in (ops.softmax, ops.log_softmax, ops.softmin):
        with pytest.raises(
            ArgumentError, match=r"needs dim, the axis to normalize over, got None\nhelp: dim=1 is what"
        ):
            function(X)
        with pytest.raises(ArgumentError, match="dim=0 is what PyTorch guesses here"):
            function(X.reshape(1, 2, 3))
    assert same(ops.softmax(X, dim=1, _stacklevel=5), ops.softmax(X, 1))


def test_shapes_may_come_by_name():
    assert same(ampkit.zeros(size=(2, 3)), ampkit.zeros(2, 3))
    assert same(ops.reshape(X, shape=(3, 2)), ops.reshape(X, 3, 2))
    assert same(ops.permute(X, dims=(1, 0)), X.T)
    assert same(ops.flip(X, dims=(0,)), ops.flip(X, 0))
    assert same(ops.tile(X, dims=(2, 1)), ops.tile(X, 2, 1))
    assert same(X.expand(size=(4, 2, 3)), X.expand(4, 2, 3))
    assert same(X.repeat(repeats=(2, 1)), X.repeat(2, 1))


@pytest.mark.cpu
def test_creation_takes_layout_and_memory_words():
    made = ampkit.ones((2, 2), layout=ampkit.strided, pin_memory=True)
    assert same(made, ampkit.ones(2, 2))
    assert same(ampkit.zeros_like(X, memory_format=ampkit.preserve_format), ampkit.zeros(2, 3))
    assert same(X.to(memory_format=ampkit.contiguous_format), X)
    assert same(X.clone(memory_format=ampkit.contiguous_format), X)


def test_a_words_function_shows_its_signature_and_can_be_pickled():
    assert list(inspect.signature(ops.relu).parameters) == ["input", "inplace", "out"]
    assert list(inspect.signature(ops.sum).parameters) == [
        "input", "dim", "keepdim", "axis", "keepdims", "out", "dtype",
    ]  # fmt: skip
    assert pickle.loads(pickle.dumps(ops.unsqueeze)) is ops.unsqueeze
    assert ops.unsqueeze.__module__ == "ampkit.ops"


def test_an_op_of_ones_own_keeps_parameters_of_these_names():
    from ampkit.core.op import Array, Cast, op
    from ampkit.core.op import ops as registry
    from ampkit.core.policy import categories

    def shifted(input: Array, out=1.0, weight=2.0, size_average=0.0):
        return input * weight + out + size_average

    shifted.__annotations__["input"] = "Array"
    made = op(cast=Cast.KEEP)(shifted)
    try:
        assert same(made(X, 3.0, weight=1.0, size_average=1.0), X + 4)
    finally:
        registry.pop("shifted")
        categories.pop("shifted")
