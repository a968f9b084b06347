"""Modules one after the other: two of them as one op, where nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Policy, autocast, nn, observe, ops
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.nn.modules.fused import add_norm, chain, norm_add_relu, norm_of_sum, self_attention


def images(dtype=float32):
    return ampkit.tensor(np.random.default_rng(0).standard_normal((4, 3, 6, 5)).astype(np.float32)).to(dtype)


def pair():
    return nn.BatchNorm2d(3), nn.ReLU()


def ran(call):
    """The names of the ops that `call` ran."""
    names = []
    with observe.watch(lambda name, inputs, output: names.append(name)):
        call()
    return [name for name in names if name != "cast"]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_relu_are_one_op_of_the_same_bits_and_leave_the_same_state(training, dtype):
    first, second = nn.Sequential(*pair()).train(training), nn.ModuleList(pair()).train(training)
    x, y = images(dtype), images(dtype)
    assert ran(lambda: first(x)) == ["batch_norm"]
    assert ran(lambda: second[1](second[0](y))) == ["batch_norm", "relu"]
    x.requires_grad_(), y.requires_grad_()
    outs = first(x), second[1](second[0](y))
    (outs[0] * images(dtype)).sum().backward(), (outs[1] * images(dtype)).sum().backward()
    states = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    grads = zip(first.parameters(), second.parameters(), strict=True)
    for got, want in ((*outs,), (x.grad, y.grad), *states, *((p.grad, q.grad) for p, q in grads)):
        np.testing.assert_array_equal(got.numpy(force=True), want.numpy(force=True))


@pytest.mark.parametrize("which", [0, 1])
def test_a_hook_sees_what_it_sees_in_modules_apart(which):
    modules, seen = pair(), []
    handle = modules[which].register_forward_hook(lambda module, args, out: seen.append(out))
    assert ran(lambda: chain(images(), *modules)) == ["batch_norm", "relu"]
    assert (seen[0].min().item() < 0) == (which == 0)
    handle.remove()
    assert ran(lambda: chain(images(), *modules)) == ["batch_norm"]


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_hook_of_the_backward_sees_the_module_it_is_for(which, kind):
    modules, seen, x = pair(), [], images().requires_grad_()
    getattr(modules[which], kind)(lambda module, *gradients: seen.append(module))
    chain(x, *modules).sum().backward()
    assert seen == [modules[which]]


def test_a_class_or_a_forward_of_the_users_own_is_called():
    class Half(nn.ReLU):
        def forward(self, input):
            return ops.relu(input) / 2

    norm, relu = pair()
    assert ran(lambda: chain(images(), norm, Half())) == ["batch_norm", "relu", "div"]
    relu.forward = lambda input: input
    assert ran(lambda: chain(images(), norm, relu)) == ["batch_norm"]
    assert chain(images(), norm, relu).min().item() < 0


def test_a_policy_with_changes_of_its_own_is_followed_op_by_op():
    with autocast(policy=Policy("bfloat16", relu="low")):
        assert ran(lambda: chain(images(), *pair())) == ["batch_norm", "relu"]
        assert chain(images(), *pair()).dtype == bfloat16
    with autocast(dtype=bfloat16):
        assert ran(lambda: chain(images(), *pair())) == ["batch_norm"]


@pytest.mark.parametrize("training", [True, False])
def test_a_norm_a_residual_and_relu_are_one_op_of_the_same_bits_that_leaves_the_same_state(training):
    found = []
    for run in (norm_add_relu, lambda x, norm, residual, relu: relu(norm(x) + residual)):
        (norm, relu), x, residual = pair(), images().requires_grad_(), images().flip(0).requires_grad_()
        norm.train(training)
        out = run(x, norm, residual, relu)
        (out * images()).sum().backward()
        found.append([out, x.grad, residual.grad, norm.weight.grad, norm.bias.grad, *norm.state_dict().values()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.numpy(force=True), other.numpy(force=True))
    assert ran(lambda: norm_add_relu(x, norm, residual, relu)) == ["batch_norm"]


def test_what_would_show_that_a_norm_a_residual_and_relu_are_one_op_runs_them_apart():
    (norm, relu), x = pair(), images()
    row = x[:1]
    links = ["batch_norm", "add", "relu"]
    for override in ({"relu": "low"}, {"add": "float32"}, {"batch_norm": "float32"}):
        with autocast(policy=Policy("bfloat16", **override)):
            assert ran(lambda: norm_add_relu(x, norm, x, relu)) == links
    assert ran(lambda: norm_add_relu(x, norm, row, relu)) == links
    assert ran(lambda: norm_add_relu(x.half(), norm, x, relu))[-3:] == links
    assert norm_add_relu(x.half(), norm, x, relu).dtype == float32
    assert "gelu" in ran(lambda: norm_add_relu(x, norm, x, nn.GELU()))
    norm.register_forward_hook(lambda module, args, out: None)
    assert ran(lambda: norm_add_relu(x, norm, x, relu)) == links


def test_what_is_between_others_is_found_and_nothing_is_an_identity():
    norms = [nn.BatchNorm2d(3) for _ in range(2)]
    names = ran(lambda: chain(images(), nn.ReLU(), norms[0], nn.ReLU(), nn.ReLU(), norms[1]))
    assert names == ["relu", "batch_norm", "relu", "batch_norm"]
    x = images()
    assert chain(x) is x


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_gelu_between_two_linear_layers_is_one_op_with_their_gradients(dtype):
    layers = nn.Linear(6, 8), nn.GELU("tanh"), nn.Linear(8, 3, bias=False)
    x, found = images().reshape(-1, 6), []
    for run in (lambda: chain(x, *layers), lambda: layers[2](layers[1](layers[0](x)))):
        with autocast(dtype=bfloat16, enabled=dtype == bfloat16):
            out = run()
        out.sum().backward()
        found.append([out.detach(), *(p.grad for layer in layers for p in layer.parameters())])
        for layer in layers:
            layer.zero_grad()
    assert ran(lambda: chain(x, *layers)) == ["linear_gelu_linear"]
    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype
        near = 2e-2 if dtype == bfloat16 else 1e-5
        np.testing.assert_allclose(
            got.numpy(force=True).astype(float), want.numpy(force=True).astype(float), near, near
        )


def test_a_norm_for_readers_in_float32_is_not_rounded_to_16_bits():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            _, _, self.dropout, self.norm, self.head = stream()

        def forward(self, x):
            return add_norm(x, x, self.dropout, self.norm, self.head)[1]

    block, x = Block(), stream()[0]
    for modules, dtype in ({"head": "float32"}, float32), ({"norm": "float32"}, bfloat16), ({"*": "float32"}, float32):
        with autocast(policy=Policy("bfloat16", modules=modules)):
            assert ran(lambda: block(x)) == ["add_layer_norm"]
            assert block(x).dtype == dtype


def test_attention_to_one_projection_is_one_op_on_a_cpu_unless_a_policy_has_changes():
    x = images().reshape(4, 5, 18)
    links = ["reshape", "unbind", *["permute"] * 3, "scaled_dot_product_attention", "permute", "reshape"]
    whole = ["self_attention"]
    assert ran(lambda: self_attention(x, 2, 0.0, True)) == (links if x.is_cuda else whole)
    with autocast(policy=Policy("bfloat16", scaled_dot_product_attention="float32")):
        assert ran(lambda: self_attention(x, 2, 0.0, True)) == links
        apart = self_attention(x, 2, 0.0, True)
    np.testing.assert_array_equal(apart.numpy(), self_attention(x, 2, 0.0, True).numpy())


def stream():
    ampkit.manual_seed(3)
    x = ampkit.tensor(np.random.default_rng(1).standard_normal((8, 40, 64)).astype(np.float32))
    return x, nn.Linear(64, 64), nn.Dropout(0.25), nn.LayerNorm(64), nn.Linear(64, 8)


def apart_norm(residual, branch, dropout, norm, *readers):
    total = residual + dropout(branch)
    return total, norm(total)


@pytest.mark.parametrize("low", [None, bfloat16], ids=str)
@pytest.mark.parametrize("drops", [True, False])
def test_a_sum_and_its_norm_are_one_op_with_the_gradients_of_the_links(drops, low):
    found = []
    for run in (add_norm, apart_norm):
        x, linear, dropout, norm, head = stream()
        dropout.train(drops)
        with autocast(dtype=low or bfloat16, enabled=low is not None):
            total, normed = run(x, linear(x), dropout, norm, head)
            out = head(normed)
        assert total.dtype == float32 and normed.dtype == (low if run is add_norm and low else float32)
        (out.float().sum() + (total * total).sum()).backward()
        found.append([total, out, *(p.grad for module in (linear, norm, head) for p in module.parameters())])
    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype
        near = 2e-2 if low else 2e-6
        got, want = (each.numpy(force=True).astype(float) for each in (got, want))
        np.testing.assert_allclose(got, want, near, near * abs(want).max())
    x, linear, dropout, norm, head = stream()
    assert ran(lambda: add_norm(x, x, dropout, norm, head)) == ["add_layer_norm"]
    assert ran(lambda: norm_of_sum(x, x, dropout, norm)) == ["add_layer_norm"]


def test_what_would_show_that_a_sum_and_its_norm_are_one_op_runs_them_apart():
    x, _, dropout, norm, head = stream()
    links = ["dropout", "add", "layer_norm"]
    with autocast(policy=Policy("bfloat16", layer_norm="low")):
        assert ran(lambda: add_norm(x, x, dropout, norm)) == links
    with autocast(policy=Policy.fast("bfloat16")):
        assert ran(lambda: add_norm(x, x, dropout, norm)) == links
        assert norm_of_sum(x, x, dropout, norm).dtype == bfloat16
    with autocast(dtype=bfloat16):  # layer_norm's answer is float32 there, whatever it is given
        low, other = x.bfloat16(), nn.LayerNorm(64, dtype=bfloat16)
        assert ran(lambda: norm_of_sum(low, low, dropout, other)) == links
        handle = head.register_forward_pre_hook(lambda module, args: None)
        assert add_norm(x, x, dropout, norm, head)[1].dtype == float32  # which the hook may look at
        handle.remove()
        assert add_norm(x, x, dropout, norm, head)[1].dtype == bfloat16
        assert add_norm(x, x, dropout, norm)[1].dtype == float32
    handle = norm.register_forward_hook(lambda module, args, out: None)
    assert ran(lambda: norm_of_sum(x, x, dropout, norm)) == links
    handle.remove()
    row = x[:1]
    assert ran(lambda: norm_of_sum(x, row, dropout, norm)) == links
    half, other = x.half(), nn.LayerNorm(64, dtype=float16)
    assert ran(lambda: add_norm(half, half, dropout, other)) == ["add_layer_norm"]
    assert [each.dtype for each in add_norm(half, half, dropout, other)] == [float16, float16]
