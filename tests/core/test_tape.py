"""The tape: gradients to the right places, once, and an error where a wrong number would come out."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.base.errors import DTypeError, ShapeError, StateError


def leaf(*values, dtype=ampkit.float64):
    return ampkit.tensor(list(values), dtype=dtype, requires_grad=True)


@pytest.mark.cpu
def test_gradients_add_up_over_uses_and_over_backwards():
    x = leaf(2.0, 3.0)
    (x * x + x).sum().backward()
    np.testing.assert_array_equal(x.grad.array, [5, 7])
    (x * 1.0).sum().backward()
    np.testing.assert_array_equal(x.grad.array, [6, 8])


def test_the_order_of_nodes_does_not_visit_one_before_all_its_gradients_came():
    x = leaf(2.0)
    a = x * x
    b = a * a
    c = a * 3.0
    (b + c + a).sum().backward()
    assert x.grad.item() == 4 * 8 + 3 * 4 + 4


def test_broadcast_axes_are_summed_in_the_accumulator():
    bias = ampkit.tensor([0.0], dtype=ampkit.float16, requires_grad=True)
    x = ampkit.tensor(np.ones((4096, 1)), dtype=ampkit.float16)
    (x + bias).backward(ampkit.tensor(np.full((4096, 1), 1.0), dtype=ampkit.float16))
    assert bias.grad.item() == 4096 and bias.grad.dtype == ampkit.float16


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [ampkit.bfloat16, ampkit.float16])
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_gradients_of_a_16_bit_tensor_that_is_many_inputs_of_one_op_are_added_in_float32(dtype, is_leaf, shape):
    leaf = ampkit.ones(shape, dtype=dtype, requires_grad=True)
    used = leaf if is_leaf else leaf * 1
    given = ampkit.rand(3000, *shape).to(dtype)
    ampkit.stack([used] * 3000).backward(given)
    np.testing.assert_array_equal(leaf.grad.float(), given.float().sum(0).to(dtype).float())


def test_a_leaf_used_in_two_dtypes_gets_one_gradient_in_its_own():
    x = leaf(1.0, 2.0, dtype=ampkit.float32)
    (x.half().float() * x).sum().backward()
    assert x.grad.dtype == ampkit.float32
    assert x.grad.tolist() == [2, 4]


def test_backward_twice_raises_unless_the_graph_is_retained():
    x = leaf(3.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 12
    with pytest.raises(StateError, match="retain_graph=True"):
        y.backward()


def test_backward_frees_what_the_nodes_saved():
    x = leaf(3.0)
    held = x * 2.0
    y = (held * held).sum()
    gone = weakref.ref(held)
    del held
    y.backward()
    gc.collect()
    assert gone() is None


@pytest.mark.cpu
def test_backward_of_a_vector_wants_a_gradient_of_its_shape():
    x = leaf(1.0, 2.0)
    with pytest.raises(ShapeError, match="a tensor of one element"):
        (x * x).backward()
    with pytest.raises(ShapeError, match=r"shape \(2,\)"):
        (x * x).backward(ampkit.tensor([1.0]))
    (x * x).backward(ampkit.tensor([1, 2]))
    assert x.grad.tolist() == [2.0, 8.0]
    x.grad = None
    (x * x).backward(ampkit.tensor([1.0, 10.0], dtype=ampkit.float64))
    np.testing.assert_array_equal(x.grad.array, [2, 40])


def test_backward_off_the_tape_says_why():
    with pytest.raises(StateError, match="no_grad"):
        ampkit.tensor([1.0]).sum().backward()


@pytest.mark.parametrize("kind", [nn.Parameter, lambda values: ampkit.tensor(values, requires_grad=True)])
def test_gradients_of_a_backward_that_creates_a_graph_are_differentiated(kind):
    w = kind(np.array([1.0, 2.0]))
    (w**3).sum().backward(create_graph=True)
    assert w.grad.tolist() == [3, 12] and w.grad.requires_grad
    (w.grad**2).sum().backward()  # the gradient of 9 w^4, added to the first
    assert w.grad.tolist() == [3 + 36, 12 + 288]
    w.grad = None
    (w**2).sum().backward(create_graph=True)
    first = w.grad
    (w**3).sum().backward(create_graph=True)
    assert w.grad.tolist() == [5, 16]
    assert ampkit.grad(w.grad.sum(), w)[0].tolist() == [8, 14]
    assert first.requires_grad


def test_a_gradient_on_the_tape_that_backward_adds_to_raises_where_it_was_saved():
    w = leaf(2.0)
    (w**3).sum().backward(create_graph=True)
    penalty = (w.grad**2).sum()
    (w * 1).sum().backward()
    with pytest.raises(StateError, match="changed in place since"):
        penalty.backward()


def test_gradients_in_an_arena_are_differentiated_and_stepped_on():
    w = nn.Parameter(np.array([1.0, 2.0]))
    optimizer = ampkit.optim.SGD([w], lr=0.1)
    (w**2).sum().backward(create_graph=True)
    (w.grad**2).sum().backward()  # 2 w, and of 4 w^2 8 w
    assert w.grad.tolist() == [10, 20]
    w.grad.mul_(0.5)
    optimizer.step()
    assert w.tolist() == [0.5, 1.0]


def test_regions_without_arguments_decorate_without_parentheses():
    @ampkit.enable_grad
    def recorded():
        return ampkit.is_grad_enabled()

    @ampkit.no_grad
    def off():
        return ampkit.is_grad_enabled()

    @ampkit.inference_mode
    def inferred():
        return ampkit.is_grad_enabled()

    with ampkit.no_grad():
        assert recorded()
    assert (off(), inferred(), off.__name__, ampkit.is_grad_enabled()) == (False, False, "off", True)
    with pytest.raises(DTypeError, match="no_grad: needs a callable, got an object of type int"):
        ampkit.no_grad(5)


def test_a_class_is_not_decorated():
    with pytest.raises(DTypeError, match="^no_grad: needs a function, .* got the class Built\nhelp: decorate its meth"):

        @ampkit.no_grad()
        class Built:
            pass


def test_a_gradient_that_is_no_tensor_is_refused():
    x = ampkit.ones(2, requires_grad=True)
    with pytest.raises(DTypeError, match="grad: needs a Tensor or None, got a int"):
        x.grad = 0
    for wrong, got in ((x, "the tensor itself"), (ampkit.tensor([1, 2]), "int64")):
        with pytest.raises(DTypeError, match=f"another floating-point Tensor, got {got}"):
            x.grad = wrong
    x.sum().backward()
    del x.grad
    assert x.grad is None


def test_no_grad_records_nothing_and_enable_grad_inside_does():
    x = leaf(1.0)
    with ampkit.no_grad():
        assert not (x * x).requires_grad
        with ampkit.enable_grad():
            assert (x * x).requires_grad
    assert (x * x).requires_grad

    @ampkit.no_grad()
    def quiet():
        return x * x

    assert not quiet().requires_grad and not quiet().requires_grad


@pytest.mark.cpu
def test_a_weight_changed_between_forward_and_backward_raises():
    w, x = nn.Parameter(np.ones((2, 2), np.float32)), leaf(1.0, 2.0, dtype=ampkit.float32)
    y = ops.linear(x, w).sum()
    with ampkit.no_grad():
        w.mul_(3.0)
    with pytest.raises(StateError, match="`weight` of linear changed in place"):
        y.backward()


@pytest.mark.cpu
def test_a_change_of_values_that_backward_does_not_read_is_harmless():
    b = nn.Parameter(np.ones(2, np.float32))
    y = (leaf(1.0, 2.0, dtype=ampkit.float32) + b).sum()
    with ampkit.no_grad():
        b.mul_(3.0)
    y.backward()
    np.testing.assert_array_equal(b.grad.array, [1, 1])


@pytest.mark.cpu
def test_what_a_frozen_input_would_need_is_not_saved():
    w, x = nn.Parameter(np.ones((2, 3), np.float32)), leaf(1.0, 2.0, 3.0, dtype=ampkit.float32)
    frozen = nn.Parameter(np.ones((2, 3), np.float32), requires_grad=False)
    assert set(vars(ops.linear(x, w).node.saved)) == {"input", "weight"}
    assert set(vars(ops.linear(x, frozen).node.saved)) == {"weight"}
    assert set(vars(ops.linear(x.detach(), w).node.saved)) == {"input"}


def test_integers_never_require_grad():
    with pytest.raises(DTypeError, match="floating-point"):
        ampkit.tensor([1, 2], requires_grad=True)
    x = leaf(3.0, 1.0)
    values, indices = ops.max(x, 0)
    assert values.requires_grad and not indices.requires_grad


# ampkit.grad


def test_grad_returns_gradients_and_leaves_the_leaves_alone():
    x, w = leaf(2.0), leaf(5.0)
    y = x * x * w
    gx, gw = ampkit.grad(y.sum(), (x, w))
    assert (gx.item(), gw.item()) == (20, 4)
    assert x.grad is None and w.grad is None and not gx.requires_grad


def test_grad_of_an_intermediate():
    x = leaf(2.0)
    h = x * 3.0
    y = (h * h).sum()
    (gh,) = ampkit.grad(y, h)
    assert gh.item() == 12


def test_an_input_that_nothing_depends_on_raises_or_gives_none():
    x, w = leaf(2.0), leaf(1.0)
    with pytest.raises(StateError, match="allow_unused"):
        ampkit.grad((x * x).sum(), (x, w))
    assert ampkit.grad((x * x).sum(), (x, w), allow_unused=True)[1] is None


def test_derivatives_of_any_order():
    x = leaf(2.0)
    y = (x * x * x * x).sum()
    for expected in (32, 48, 48, 24):
        (y,) = ampkit.grad(y, x, create_graph=True)
        assert y.item() == expected


@pytest.mark.cpu
def test_a_gradient_penalty_through_a_network_matches_finite_differences():
    rng = np.random.default_rng(0)
    x = ampkit.tensor(rng.standard_normal((4, 3)), requires_grad=True)
    w = ampkit.tensor(rng.standard_normal((5, 3)), requires_grad=True)
    g = ampkit.tensor(rng.standard_normal(5), requires_grad=True)

    def penalty(weight):
        out = ops.layer_norm(ops.tanh(ops.linear(x, weight)), (5,), g).pow(2).sum()
        (gx,) = ampkit.grad(out, x, create_graph=True)
        return gx.pow(2).sum()

    (gw,) = ampkit.grad(penalty(w), w)
    direction, h = rng.standard_normal((5, 3)), 1e-6
    up, down = (penalty(ampkit.tensor(w.array + s * h * direction, requires_grad=True)).item() for s in (1, -1))
    assert (gw.array * direction).sum() == pytest.approx((up - down) / (2 * h), rel=1e-6)


# scale tags


def test_gradients_of_different_scales_that_meet_on_their_way_raise():
    x = leaf(1.0, dtype=ampkit.float32)
    y = (x * x).sum()
    with pytest.raises(StateError, match="mixture"):
        (ampkit.GradScaler().scale(y) + y).backward()


def test_gradients_of_different_scales_that_meet_in_a_leaf_are_tagged_and_refused_where_they_are_used():
    x = leaf(1.0, dtype=ampkit.float32)
    ampkit.GradScaler().scale((x * x).sum()).backward()
    (x * x).sum().backward()
    with pytest.raises(StateError, match="mixture"):
        nn.utils.clip_grad_norm_([x], 1.0)
    x.grad.zero_()
    (x * x).sum().backward()
    assert nn.utils.clip_grad_norm_([x], 9.0).item() == 2


def test_the_tag_of_a_scaled_loss_survives_arithmetic():
    x = leaf(1.0, dtype=ampkit.float32)
    scaler = ampkit.GradScaler()
    (scaler.scale((x * x).sum()) / 4).backward()
    assert x.grad._scale_tag.owner is scaler._scale
    (g,) = ampkit.grad(scaler.scale((x * x).sum()), x)
    assert g._scale_tag is None


# memory that is shared


def test_asking_a_result_for_its_gradient_leaves_it_on_the_tape():
    x = leaf(1.0, 2.0)
    y = (x * 2).requires_grad_()
    (y * 3).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]


def test_a_result_that_backward_reads_must_not_change_in_place():
    x = leaf(1.0, 2.0)
    y = x.exp()
    y.detach().mul_(2)
    with pytest.raises(StateError, match="`out` of exp changed in place since"):
        y.sum().backward()


def test_a_gradient_that_someone_keeps_is_not_overwritten_by_the_next():
    p = nn.Parameter(ampkit.tensor([1.0, 2.0]))
    optimizer, kept = ampkit.optim.SGD([p], lr=1.0), []
    for factor in (1.0, 10.0):
        optimizer.zero_grad()
        (p * factor).sum().backward()
        kept.append(p.grad)
    assert [g.tolist() for g in kept] == [[1.0, 1.0], [10.0, 10.0]]
    p.grad = kept[0] + kept[1]
    optimizer.step()
    assert p.tolist() == [-10.0, -9.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_that_grad_returns_lie_in_order_so_that_view_works(create_graph):
    x = ampkit.tensor(np.sin(np.arange(24.0)).reshape(2, 3, 4), requires_grad=True)
    (found,) = ampkit.grad((x.permute(2, 0, 1) ** 3).sum(), x, create_graph=create_graph)
    flat = found.view(2, -1)
    np.testing.assert_allclose(np.asarray(flat.detach()), 3 * np.sin(np.arange(24.0)).reshape(2, 12) ** 2)
    if create_graph:
        flat.sum().backward()
        np.testing.assert_allclose(np.asarray(x.grad), 6 * np.sin(np.arange(24.0)).reshape(2, 3, 4))


def test_gradients_that_grad_returns_can_be_changed():
    x = leaf(1.0, 2.0)
    (g,) = ampkit.grad(x.sum(), x)
    assert g.mul_(2).tolist() == [2.0, 2.0]


def test_memory_that_is_read_only_is_refused_in_one_line():
    with pytest.raises(StateError, match="in-place change: needs memory that can be written"):
        ampkit.tensor([1.0]).expand(3).add_(1)
    with pytest.raises(StateError, match="in-place change: needs memory that can be written"):
        ampkit.tensor([1.0]).expand(3)[0] = 2.0


def test_a_loss_that_is_scaled_twice_on_its_way_raises():
    x, scaler = leaf(1.0, dtype=ampkit.float32), ampkit.GradScaler(init_scale=4.0)
    with pytest.raises(StateError, match="all scaled by one GradScaler"):
        scaler.scale(scaler.scale(x.sum()) / 2).backward()


# regions without recording


def test_a_generator_and_a_coroutine_run_without_recording():
    @ampkit.no_grad()
    def steps():
        yield ampkit.is_grad_enabled()
        yield ampkit.is_grad_enabled()

    @ampkit.no_grad()
    async def task():
        return ampkit.is_grad_enabled()

    seen = []
    for inside in steps():
        seen += [inside, ampkit.is_grad_enabled()]
    assert seen == [False, True, False, True]
    assert asyncio.run(task()) is False


def test_set_grad_enabled_is_a_statement_a_block_and_a_decorator():
    ampkit.set_grad_enabled(False)
    off = ampkit.is_grad_enabled()
    ampkit.set_grad_enabled(True)
    assert (off, ampkit.is_grad_enabled()) == (False, True)
    with ampkit.set_grad_enabled(False):
        assert not ampkit.is_grad_enabled()
    assert ampkit.is_grad_enabled()
    inside = ampkit.set_grad_enabled(False)(ampkit.is_grad_enabled)
    assert (inside(), ampkit.is_grad_enabled()) == (False, True)


def test_a_region_without_recording_can_be_entered_again():
    region = ampkit.no_grad()
    with region:
        with region, ampkit.enable_grad():
            assert ampkit.is_grad_enabled()
        assert not ampkit.is_grad_enabled()
    assert ampkit.is_grad_enabled()
