"""Modules one after the other: two of them as one op, where nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Policy, autocast, nn, observe, ops
from ampkit.core.dtypes import bfloat16, float32
from ampkit.nn.fused import chain, self_attention


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


def test_attention_to_one_projection_is_one_op_on_a_cpu_unless_a_policy_has_changes():
    x = images().reshape(4, 5, 18)
    links = ["reshape", "unbind", *["permute"] * 3, "scaled_dot_product_attention", "permute", "reshape"]
    whole = ["self_attention"]
    assert ran(lambda: self_attention(x, 2, 0.0, True)) == (links if x.is_cuda else whole)
    with autocast(policy=Policy("bfloat16", scaled_dot_product_attention="float32")):
        assert ran(lambda: self_attention(x, 2, 0.0, True)) == links
        apart = self_attention(x, 2, 0.0, True)
    np.testing.assert_array_equal(apart.numpy(), self_attention(x, 2, 0.0, True).numpy())
