"""Hooks on saved tensors: `saved_tensors_hooks` and its kin of `ampkit.autograd.graph`."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.autograd import Function, graph
from ampkit.core.autograd import saved_hooks


@pytest.fixture(autouse=True)
def _no_open_blocks():
    yield
    assert not saved_hooks.packing


def same(x):
    return x


def leaf(*values):
    return ampkit.tensor([float(v) for v in values], requires_grad=True)


def test_what_is_saved_is_packed_in_the_forward_and_unpacked_in_the_backward():
    log = []

    def pack(x):
        assert not x.requires_grad
        log.append("pack")
        return x.numpy().tolist()

    def unpack(values):
        log.append("unpack")
        return ampkit.tensor(values)

    x = leaf(1, 2, 3)
    with graph.saved_tensors_hooks(pack, unpack):
        y = x * x
        z = y + 1  # saves nothing
    assert log == ["pack", "pack"]
    z.sum().backward()
    assert log == ["pack", "pack", "unpack", "unpack"]
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("model", [
    lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.GELU(), nn.Flatten(), nn.Linear(12, 2)),
    lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 4), nn.Dropout(0.5), nn.Softmax(-1)),
])  # fmt: skip
def test_gradients_are_those_without_hooks(model):
    def gradients(hooks):
        ampkit.manual_seed(0)
        net, x = model(), ampkit.randn(3, 2, 4, 4, requires_grad=True)
        with hooks:
            loss = (net(x) ** 2).sum() + ops.cat([x, x * 2]).sum()
        return [g.numpy() for g in ampkit.grad(loss, [x, *net.parameters()])]

    packed = gradients(graph.saved_tensors_hooks(lambda x: x.clone(), same))
    for got, want in zip(packed, gradients(ampkit.enable_grad()), strict=True):
        np.testing.assert_array_equal(got, want)


def test_second_derivatives_read_what_is_unpacked():
    x = leaf(1, 2)
    with graph.saved_tensors_hooks(lambda x: 2 * x, same):
        y = (x**3).sum()
    (dx,) = ampkit.grad(y, x, create_graph=True)
    assert dx.tolist() == [12.0, 48.0]  # 3 (2x)^2
    assert ampkit.grad(dx.sum(), x)[0].tolist() == [12.0, 24.0]  # 6 (2x)
    with graph.saved_tensors_hooks(lambda x: x.clone(), same):
        h = ops.layer_norm(ampkit.tensor([1.0, 2.0, 4.0], requires_grad=True), (3,))
    (first,) = ampkit.grad(h[0], h, create_graph=True)
    assert first.tolist() == [1.0, 0.0, 0.0]


def test_a_graph_that_is_retained_is_unpacked_again():
    x, counts = leaf(1, 2), []
    with graph.saved_tensors_hooks(same, lambda x: (counts.append(1), x)[1]):
        y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    assert len(counts) == 2
    with pytest.raises(ampkit.StateError, match="already freed"):
        y.backward()
    with graph.saved_tensors_hooks(same, same):
        y = x.exp()
    y.sum().backward()
    with pytest.raises(ampkit.StateError, match="exp is already freed"):
        y.sum().backward()


def test_a_function_saves_through_the_hooks():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y, None)
            return y

        @staticmethod
        def backward(ctx, dy):
            x, y, nothing = ctx.saved_tensors
            assert nothing is None
            assert y.grad_fn is not None
            return 2 * x * dy

    x = leaf(1, 2)
    with graph.saved_tensors_hooks(lambda x: x.numpy().copy(), lambda a: ampkit.tensor(a)):
        y = Square.apply(x)
    (dx,) = ampkit.grad(y.sum(), x, create_graph=True)
    assert dx.tolist() == [2.0, 4.0]
    assert ampkit.grad(dx.sum(), x)[0].tolist() == [2.0, 2.0]


def test_recomputed_functions_pack_their_arguments():
    x, packed = leaf(1, 2), []
    with graph.saved_tensors_hooks(lambda x: (packed.append(x.tolist()), x)[1], same):
        y = ampkit.recompute(lambda h: h.exp().exp(), x * 1)
    assert packed == [[1.0, 2.0]]
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([1.0, 2.0]) * np.exp(np.exp([1.0, 2.0])), rtol=1e-6)


def test_of_nested_blocks_the_inner_one_counts_and_numbers_are_not_packed():
    x, log = leaf(1), []
    outer = graph.saved_tensors_hooks(lambda x: (log.append("outer"), x)[1], same)
    inner = graph.saved_tensors_hooks(lambda x: (log.append("inner"), x)[1], same)
    with outer:
        x.exp()
        with inner:
            x.exp()
            x * 3
        x.exp()
    assert log == ["outer", "inner", "outer"]


def test_hooks_hold_for_the_thread_that_opens_them():
    x, log = leaf(1), []
    with graph.saved_tensors_hooks(lambda x: (log.append(1), x)[1], same):
        other = threading.Thread(target=lambda: x.exp())
        other.start()
        other.join()
    assert log == []


def test_a_block_that_a_hook_opens_ends_with_the_backward_pass():
    x = leaf(1)
    block = graph.saved_tensors_hooks(same, lambda x: (block.__enter__(), x)[1])
    with block:
        x.exp().backward()
        assert len(saved_hooks.packing) == 1
    assert not saved_hooks.packing


@pytest.mark.parametrize(("hooks", "error", "words"), [
    ((lambda x: x.add_(1), same), ampkit.StateError, "modifying its input"),
    ((same, lambda x: 1), TypeError, "a Tensor from unpack_hook, got a int"),
    ((same, lambda x: x.reshape(1, 2)), ampkit.ShapeError, r"shape \(2,\) and dtype float32"),
    ((same, lambda x: x.half()), ampkit.ShapeError, "dtype float32 from unpack_hook"),
])  # fmt: skip
def test_a_hook_that_does_something_else_raises(hooks, error, words):
    with pytest.raises(error, match=words), graph.saved_tensors_hooks(*hooks):
        leaf(1, 2).exp().sum().backward()


def test_hooks_must_be_callable():
    with pytest.raises(ampkit.DTypeError, match="unpack_hook that can be called, got a int"):
        graph.saved_tensors_hooks(same, 1)


def test_a_change_in_place_raises_where_the_hook_kept_the_memory_and_not_where_it_copied():
    def gradient(pack):
        x = leaf(1, 2)
        h = x * 1
        with graph.saved_tensors_hooks(pack, same):
            y = h.reshape(2).detach() * 1
            y = (h * h).sum()
        h[:1].mul_(10)
        return ampkit.grad(y, x)[0].tolist()

    assert gradient(lambda x: x.clone()) == [2.0, 4.0]
    with pytest.raises(ampkit.StateError, match="changed in place since"):
        gradient(same)
    with pytest.raises(ampkit.StateError, match="changed in place since"):
        gradient(lambda x: x.detach())


def test_saved_tensors_are_kept_on_the_cpu():
    x = ampkit.tensor([1.0, 2.0], requires_grad=True)
    with graph.save_on_cpu():
        y = x.exp()
    assert y.grad_fn._saved_result.device == x.device
    y.sum().backward()
    np.testing.assert_allclose(x.grad.cpu().numpy(), np.exp([1.0, 2.0]), rtol=1e-6)


def test_hooks_can_be_disabled():
    with graph.disable_saved_tensors_hooks("no packing here"):
        with pytest.raises(ampkit.StateError, match="no packing here"), graph.saved_tensors_hooks(same, same):
            pass
        with graph.disable_saved_tensors_hooks("inner"), pytest.raises(ampkit.StateError, match="inner"):
            graph.save_on_cpu().__enter__()
    with graph.save_on_cpu(), pytest.raises(ampkit.StateError, match="too late"):
        graph.disable_saved_tensors_hooks("too late").__enter__()


def test_what_a_node_saved_is_read_by_the_names_of_pytorch():
    x, w = leaf(1, 2), leaf(3, 4)
    y = x * w
    z = y.exp()
    assert y.grad_fn._saved_self is x
    assert y.grad_fn._saved_other is w
    assert z.grad_fn._saved_result.tolist() == z.tolist()
    assert z.grad_fn._saved_result.grad_fn is z.grad_fn
    assert (z * y).grad_fn._saved_other.grad_fn is y.grad_fn
    assert "_saved_result" in dir(z.grad_fn)
    assert (x + w).grad_fn._saved_self is None
    z.sum().backward()
    with pytest.raises(ampkit.StateError, match="already freed"):
        z.grad_fn._saved_result  # noqa: B018


def test_hooks_can_be_given_to_one_saved_tensor():
    x = leaf(1, 2)
    y = x * x
    y.grad_fn._raw_saved_self.register_hooks(lambda x: 2 * x, same)
    assert y.grad_fn._saved_self.tolist() == [2.0, 4.0]
    with pytest.raises(ampkit.StateError, match="without hooks"):
        y.grad_fn._raw_saved_self.register_hooks(same, same)
    with pytest.raises(ampkit.StateError, match="no gradient needs"):
        (x + x).grad_fn._raw_saved_self.register_hooks(same, same)
    y.sum().backward()
    assert x.grad.tolist() == [3.0, 6.0]


def test_saved_tensors_may_change_where_that_is_allowed():
    x = leaf(1, 2)
    h = x.clone()
    with graph.allow_mutation_on_saved_tensors() as block:
        part = h[:1]
        y = (part**2).sum() + (h**2).sum()
        part *= 10
        h *= 2
        assert len(block.cloned) == 2  # what the two powers saved
        y.backward()
        assert not block.cloned
    assert x.grad.tolist() == [4.0, 4.0]


def test_changes_that_are_not_allowed_still_raise():
    w = nn.Parameter(ampkit.ones(2))
    with graph.allow_mutation_on_saved_tensors():
        with pytest.raises(ampkit.StateError, match="one block at a time"), graph.allow_mutation_on_saved_tensors():
            pass
        y = (w**2).sum()
        w.data = ampkit.zeros(2)
        with pytest.raises(ampkit.StateError, match="outside of the block"):
            y.backward()


def test_a_change_that_is_announced_makes_backward_raise():
    x = leaf(1, 2)
    y, before = (x * x).sum(), x._version
    graph.increment_version(x)
    assert x._version > before
    with pytest.raises(ampkit.StateError, match="changed in place since"):
        y.backward()
    with pytest.raises(ampkit.DTypeError, match="a Tensor or an iterable of Tensors"):
        graph.increment_version([1])


def test_a_hook_may_close_a_block_that_the_pass_did_not_open():
    outer = graph.saved_tensors_hooks(same, lambda x: (outer.__exit__(), x)[1])
    with graph.saved_tensors_hooks(same, same):
        outer.__enter__()
        ops.sin(leaf(1)).sum().backward()
    assert saved_hooks.in_force() is None
