import copy
import math
import pickle
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from ampkit import Tensor, backends, nn, ops, optim  # noqa: F401  (ops gives tensors their operators)
from ampkit.amp.grad_scaler import GradScaler
from ampkit.backends.cpu.device import CPU
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, NonFiniteError, ScaleCollapseError, StateError
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.autograd.tape import grad
from ampkit.nn import Parameter
from ampkit.nn.utils import clip_grad_norm_, get_total_norm
from ampkit.optim import lr_scheduler

BF16 = ml_dtypes.bfloat16


def parameter(*shape, dtype=np.float32, value=1.0):
    return Parameter(np.full(shape, value, dtype))


def loss_of(*pairs):
    """A loss whose gradient with respect to each parameter is the value given with it."""
    terms = [(p * Tensor(np.full(p.shape, g, np.float32))).sum() for p, g in pairs]
    return sum(terms[1:], terms[0])


def iterate(scaler, optimizer, *pairs):
    optimizer.zero_grad()
    scaler.scale(loss_of(*pairs)).backward()
    result = scaler.step(optimizer)
    scaler.update()
    return result


def tag_of(scaler):
    return scaler.scale(parameter(1).sum()).node.tag


def pair(lr=1.0, **options):
    p = parameter(3)
    return p, optim.SGD([p], lr=lr), GradScaler(**options)


# scaling the loss


def test_a_tensor_a_list_and_a_nest_are_scaled_in_their_own_structure():
    class Losses(NamedTuple):
        a: Tensor
        b: Tensor

    scaler, one = GradScaler(init_scale=4.0), Tensor(np.array(2.0, np.float32))
    found = scaler.scale([one, (one, Losses(one, one))])
    assert isinstance(found, list)
    assert isinstance(found[1], tuple)
    assert isinstance(found[1][1], Losses)
    assert found[0].item() == found[1][0].item() == found[1][1].b.item() == 8.0


@pytest.mark.parametrize("outputs", ["x", {"loss": 1}, 3.0, None, [Tensor(np.zeros(1, np.float32)), "x"]], ids=str)
def test_what_is_no_tensor_is_not_scaled(outputs):
    with pytest.raises(DTypeError, match="a Tensor, or a list or tuple"):
        GradScaler().scale(outputs)


def test_integers_and_scaled_losses_are_refused():
    scaler, p = GradScaler(), parameter(3)
    with pytest.raises(DTypeError, match="floating-point loss"):
        scaler.scale(Tensor(np.zeros(3, np.int64)))
    with pytest.raises(StateError, match="not scaled yet"):
        scaler.scale(scaler.scale(loss_of((p, 1.0))))


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_16_bit_losses_are_scaled_in_float32(dtype, shape):
    scaled = GradScaler().scale(Tensor(np.full(shape, 3.0, dtype)))
    assert scaled.dtype == np.float32
    assert np.array_equal(scaled.array, np.full(shape, 3 * 65536.0))


def test_the_gradient_of_a_16_bit_loss_does_not_overflow_at_the_scale():
    scaler, p = GradScaler(), parameter(4, dtype=np.float16)
    loss = p.mean()
    assert loss.dtype == np.float16
    scaler.scale(loss).backward()
    assert np.array_equal(p.grad.array, np.full(4, 65536 / 4))


def test_a_float64_loss_stays_float64():
    assert GradScaler().scale(Tensor(np.ones((), np.float64))).dtype == np.float64


def test_the_tag_flows_through_arithmetic_after_the_scale():
    p, optimizer, scaler = pair(init_scale=8.0)
    (scaler.scale(loss_of((p, 1.0))) / 2).backward()
    assert p.grad._scale_tag.owner is scaler._scale
    assert np.array_equal(p.grad.array, np.full(3, 4.0))
    scaler.unscale_(optimizer)
    assert p.grad._scale_tag is None
    assert np.array_equal(p.grad.array, np.full(3, 0.5))


def test_gradients_that_grad_returns_carry_no_tag():
    p, _, scaler = pair(init_scale=8.0)
    (found,) = grad(scaler.scale(loss_of((p, 1.0))), [p])
    assert found._scale_tag is None
    assert np.array_equal(found.array, np.full(3, 8.0))


def test_a_gradient_penalty_has_the_right_gradient():
    p, optimizer, scaler = pair(init_scale=8.0)
    (scaled,) = grad(scaler.scale((p * p * p).sum()), [p], create_graph=True)
    penalty = (scaled * (1 / scaler.get_scale())).sum()
    scaler.scale(penalty).backward()
    scaler.unscale_(optimizer)
    assert np.allclose(p.grad.array, 6.0)


def test_the_scale_of_a_loss_is_fixed_when_it_is_scaled():
    p, _optimizer, scaler = pair(init_scale=8.0)
    loss = scaler.scale(loss_of((p, 1.0)))
    scaler.update(2.0)
    loss.backward()
    assert np.array_equal(p.grad.array, np.full(3, 8.0))


def test_without_the_tape_only_the_values_are_scaled():
    with no_grad():
        assert not GradScaler().scale(parameter(3)).requires_grad


# stepping


def test_a_step_sees_the_unscaled_gradients():
    p, optimizer, scaler = pair()
    result = iterate(scaler, optimizer, (p, 0.25))
    assert np.array_equal(p.array, np.full(3, 0.75))
    assert result.skipped is False
    assert result.value is None


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_a_step_that_overflows_changes_nothing(bad, kind):
    p, q = parameter(3), parameter(2)
    options = {"momentum": 0.9, "dampening": 0.5} if kind is optim.SGD else {}
    optimizer, scaler = kind([p, q], lr=0.1, weight_decay=0.1, **options), GradScaler()
    assert not iterate(scaler, optimizer, (p, 0.5), (q, 0.5)).skipped

    def snapshot():
        state = optimizer.state_dict()["state"]
        return [p.array.copy(), q.array.copy(), *(t.array for entry in state.values() for t in entry.values())]

    before, steps = snapshot(), int(optimizer.steps)
    result = iterate(scaler, optimizer, (p, 0.5), (q, bad))
    assert result.skipped is True
    assert repr(result) == "StepResult(skipped=True)"
    assert all(np.array_equal(a, b) for a, b in zip(before, snapshot(), strict=True))
    assert int(optimizer.steps) == steps
    iterate(scaler, optimizer, (p, 0.5), (q, 0.5))
    assert all(np.isfinite(a).all() for a in snapshot())
    assert not np.array_equal(before[1], q.array)


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_a_first_step_that_overflows_leaves_no_state(kind):
    p = parameter(3)
    optimizer, scaler = kind([p], lr=0.1), GradScaler()
    iterate(scaler, optimizer, (p, np.inf))
    assert optimizer.state_dict()["state"] == {}
    assert np.array_equal(p.array, np.ones(3))


def test_steps_under_a_scaler_equal_steps_without_one():
    def run(scaler):
        p = parameter(3)
        optimizer = optim.AdamW([p], lr=0.1)
        for k in range(5):
            iterate(scaler, optimizer, (p, 0.3 * k - 0.5))
        return p.array

    assert np.array_equal(run(GradScaler()), run(GradScaler(enabled=False)))


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float64])
def test_parameters_of_every_dtype_are_trained(dtype):
    p = parameter(3, dtype=dtype)
    optimizer, scaler = optim.SGD([p], lr=1.0), GradScaler()
    p.accumulate(np.full(3, 0.25 * 65536), tag=tag_of(scaler))
    scaler.scale(Tensor(np.zeros((), np.float32)))
    scaler.step(optimizer)
    assert np.array_equal(p.array, np.full(3, 0.75, dtype))


def test_a_value_that_overflows_only_when_it_is_unscaled_is_caught():
    p, optimizer, scaler = pair(init_scale=2.0**-10)
    p.accumulate(np.full(3, 1e38, np.float32), tag=tag_of(scaler))
    scaler.scale(Tensor(np.zeros((), np.float32)))
    assert scaler.step(optimizer).skipped
    assert np.array_equal(p.array, np.ones(3))


def test_unscaling_before_the_step_is_not_done_twice():
    p, optimizer, scaler = pair()
    scaler.scale(loss_of((p, 4.0))).backward()
    scaler.unscale_(optimizer)
    optim.clip_grad_norm_([p], math.sqrt(3))
    scaler.step(optimizer)
    assert np.allclose(p.array, 0, atol=1e-6)


def test_gradients_written_after_unscale_are_checked_again():
    p, optimizer, scaler = pair()
    scaler.scale(loss_of((p, 1.0))).backward()
    scaler.unscale_(optimizer)
    p.grad.array[1] = np.nan
    assert scaler.step(optimizer).skipped
    assert np.array_equal(p.array, np.ones(3))


def test_an_overflow_before_clipping_skips_although_clipping_made_it_finite():
    p, optimizer, scaler = pair()
    scaler.scale(loss_of((p, np.inf))).backward()
    scaler.unscale_(optimizer)
    optim.clip_grad_norm_([p], 1.0)
    assert scaler.step(optimizer).skipped


def test_every_optimizer_decides_for_itself_and_the_scale_backs_off_once():
    p, q = parameter(3), parameter(3)
    a, b, scaler = optim.SGD([p], lr=1.0), optim.SGD([q], lr=1.0), GradScaler()
    scaler.scale(loss_of((p, np.inf), (q, 0.5))).backward()
    assert (scaler.step(a).skipped, scaler.step(b).skipped) == (True, False)
    scaler.update()
    assert np.array_equal(p.array, np.ones(3))
    assert np.array_equal(q.array, np.full(3, 0.5))
    assert scaler.get_scale() == 32768.0


def test_an_optimizer_with_a_step_of_its_own_is_skipped_too():
    class Mine(optim.SGD):
        def step(self, closure=None):
            return self.param_groups[0]["params"][0].data.array.__isub__(1) is not None

    p = parameter(3)
    optimizer, scaler = Mine([p]), GradScaler()
    assert iterate(scaler, optimizer, (p, np.inf)).value is None
    assert np.array_equal(p.array, np.ones(3))
    assert iterate(scaler, optimizer, (p, 1.0)).value is True
    assert np.array_equal(p.array, np.zeros(3))


def test_a_gradient_set_to_zero_in_place_takes_any_scale():
    p, optimizer, scaler = pair()
    for _ in range(2):
        scaler.scale(loss_of((p, 0.25))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)
    assert np.array_equal(p.array, np.full(3, 0.5))


@pytest.mark.cpu
@pytest.mark.parametrize("zero", ["grad.zero_()", "module", "optimizer"])
def test_a_gradient_filled_with_zeros_takes_any_scale_whoever_filled_it(zero):
    module = nn.Linear(2, 1, bias=False)
    optimizer, scaler = optim.SGD(module.parameters(), lr=1.0), GradScaler(init_scale=8.0)
    for scaled in (False, True, False):
        loss = module(Tensor(np.ones((1, 2), np.float32))).sum()
        (scaler.scale(loss) if scaled else loss).backward()
        assert module.weight.grad.tolist() == [[8.0, 8.0] if scaled else [1.0, 1.0]]
        if zero == "grad.zero_()":
            module.weight.grad.zero_()
        else:
            (module if zero == "module" else optimizer).zero_grad(set_to_none=False)


def test_accumulated_gradients_add_up():
    p, optimizer, scaler = pair()
    for _ in range(4):
        scaler.scale(loss_of((p, 1.0)) / 4).backward()
    scaler.step(optimizer)
    assert np.array_equal(p.array, np.zeros(3))


# a scale that moves while scaled gradients wait


def move_by_update(scaler):
    scaler.update(3.0)


def move_by_loading(scaler):
    scaler.load_state_dict(GradScaler(init_scale=3.0).state_dict())


def move_by_another_optimizer(scaler):
    p = parameter(2)
    iterate(scaler, optim.SGD([p]), (p, np.inf))


MOVES = [move_by_update, move_by_loading, move_by_another_optimizer]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_are_divided_by_the_scale_that_their_loss_had(move, dtype):
    p = parameter(3, dtype=dtype)
    optimizer, scaler = optim.SGD([p], lr=1.0), GradScaler(init_scale=1024.0)
    scaler.scale(loss_of((p, 0.25))).backward()
    move(scaler)
    assert scaler.get_scale() != 1024.0
    assert not scaler.step(optimizer).skipped
    np.testing.assert_allclose(p.array, 0.75, rtol=1e-7 if dtype == np.float32 else 1e-15)


@pytest.mark.parametrize("move", MOVES)
def test_gradients_of_two_scales_are_added_at_one(move):
    p, q = parameter(3), parameter(2)
    optimizer, scaler = optim.SGD([p, q], lr=1.0), GradScaler(init_scale=1024.0)
    scaler.scale(loss_of((p, 0.25), (q, 0.5))).backward()
    move(scaler)
    scaler.scale(loss_of((p, 0.125))).backward()
    scaler.step(optimizer)
    np.testing.assert_allclose(p.array, 0.625, rtol=1e-7)
    np.testing.assert_allclose(q.array, 0.5, rtol=1e-7)


# calls out of order


def test_unscaling_twice_or_after_the_step_raises():
    p, optimizer, scaler = pair()
    scaler.scale(loss_of((p, 1.0))).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(
        StateError, match=r"unscale_\(\) has already been called on this optimizer since the last update"
    ):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(StateError, match=r"unscale_\(\) is being called after step\(\)"):
        scaler.unscale_(optimizer)
    with pytest.raises(StateError, match=r"step\(\) has already been called since the last update\(\)"):
        scaler.step(optimizer)
    scaler.update()


def test_nothing_works_before_the_first_scale():
    _, optimizer, scaler = pair()
    for call, name in (
        (lambda: scaler.step(optimizer), "step"),
        (lambda: scaler.unscale_(optimizer), "unscale_"),
        (lambda: scaler.update(), "update"),
    ):
        with pytest.raises(StateError, match=f"Attempted {name} but _scale is None.*\nhelp: call scaler.scale"):
            call()


def test_a_step_without_any_gradient_says_why():
    p, frozen = parameter(3), parameter(3)
    frozen.requires_grad = False
    optimizer, scaler = optim.SGD([p, frozen]), GradScaler()
    scaler.scale(Tensor(np.zeros((), np.float32)))
    with pytest.raises(
        StateError, match=r"No inf checks were recorded for this optimizer.\nhelp: none of its 2 parameters .* 1 of"
    ):
        scaler.step(optimizer)
    with pytest.raises(StateError, match=r"No inf checks were recorded prior to update\."):
        scaler.update()


def test_closures_are_refused_in_either_place():
    p, optimizer, scaler = pair()
    scaler.scale(loss_of((p, 1.0))).backward()
    for call in (lambda: scaler.step(optimizer, lambda: 1), lambda: scaler.step(optimizer, closure=lambda: 1)):
        with pytest.raises(StateError, match="Closure use is not currently supported if GradScaler is enabled"):
            call()
    with pytest.raises(ArgumentError, match="an optimizer alone"):
        scaler.step(optimizer, 3)
    scaler.step(optimizer, None)


def test_a_parameter_in_two_optimizers_is_refused():
    p, older, scaler = pair()
    newer = optim.SGD([p], lr=1.0)
    scaler.scale(loss_of((p, 1.0))).backward()
    scaler.unscale_(newer)
    with pytest.raises(StateError, match="which a newer optimizer holds"):
        scaler.unscale_(older)


def test_a_step_after_a_backward_that_came_after_unscale_is_refused():
    p, q = parameter(3), parameter(3)
    optimizer, scaler = optim.SGD([p, q]), GradScaler()
    scaler.scale(loss_of((p, 1.0))).backward()
    scaler.unscale_(optimizer)
    scaler.scale(loss_of((q, 1.0))).backward()
    with pytest.raises(StateError, match=r"scaler.step after unscale_.*\nhelp: .*before scaler.unscale_"):
        scaler.step(optimizer)


@pytest.mark.parametrize("others", ["unscaled", "of the same scaler", "of another scaler"])
def test_a_sum_of_scaled_and_unscaled_gradients_is_refused_wherever_it_is_used(others):
    p = parameter(3)
    optimizer, scaler = optim.SGD([p]), GradScaler()
    scaler.scale(loss_of((p, 1.0))).backward()
    if others == "of the same scaler":
        scaler.unscale_(optimizer)
    second = {"unscaled": GradScaler(enabled=False), "of the same scaler": scaler, "of another scaler": GradScaler()}
    second[others].scale(loss_of((p, 1.0))).backward()
    uses = [lambda: clip_grad_norm_([p], 1.0), lambda: get_total_norm([p.grad]), optimizer.step]
    for use in (*uses, lambda: scaler.step(optimizer)):
        with pytest.raises(StateError, match=r"a mixture\nhelp: scale every loss of a step with the same scaler"):
            use()


@pytest.mark.parametrize("own", [False, True])
def test_a_discriminator_may_keep_what_its_generators_loss_leaves_in_it_until_zero_grad(own):
    generator, discriminator = parameter(3), parameter(3)
    of_g, of_d = optim.SGD([generator], lr=1.0), optim.SGD([discriminator], lr=1.0)
    scaler = GradScaler(init_scale=4.0)
    scaler_g = GradScaler(init_scale=8.0) if own else scaler
    for _ in range(2):
        of_d.zero_grad()
        scaler.scale(loss_of((discriminator, 1.0))).backward()
        scaler.step(of_d)
        of_g.zero_grad()
        scaler_g.scale(loss_of((generator, 1.0), (discriminator, 1.0))).backward()
        scaler_g.step(of_g)
        for each in {scaler, scaler_g}:
            each.update()
    assert discriminator.tolist() == [-1.0] * 3


def test_gradients_that_were_not_scaled_by_this_scaler_are_refused():
    p, optimizer, scaler = pair()
    scaler.scale(Tensor(np.zeros((), np.float32)))
    loss_of((p, 1.0)).backward()
    with pytest.raises(StateError, match="gradients scaled by this GradScaler, got 1 of 1 that are not"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    GradScaler().scale(loss_of((p, 1.0))).backward()
    with pytest.raises(StateError, match="1 of 1 that are not"):
        scaler.unscale_(optimizer)


def test_what_is_no_optimizer_is_refused():
    scaler = GradScaler()
    scaler.scale(Tensor(np.zeros((), np.float32)))
    with pytest.raises(DTypeError, match="an ampkit optimizer"):
        scaler.step("optimizer")


# the scale


def test_the_scale_grows_after_the_interval_and_backs_off_after_an_overflow():
    p, optimizer, scaler = pair(init_scale=8.0, growth_interval=3)
    seen = []
    for gradient in (1, 1, 1, 1, 1, np.inf, 1, 1, 1):
        iterate(scaler, optimizer, (p, gradient))
        seen.append(scaler.get_scale())
    assert seen == [8, 8, 16, 16, 16, 8, 8, 8, 16]


def test_a_growth_interval_below_the_count_still_grows():
    p, optimizer, scaler = pair(init_scale=8.0, growth_interval=100)
    for _ in range(5):
        iterate(scaler, optimizer, (p, 1.0))
    scaler.set_growth_interval(2)
    iterate(scaler, optimizer, (p, 1.0))
    assert scaler.get_scale() == 16
    assert scaler.state_dict()["_growth_tracker"] == 0


def test_the_scale_stays_within_its_bounds_and_finite():
    p, optimizer, scaler = pair(init_scale=8.0, growth_interval=1, min_scale=5.0, max_scale=20.0)
    seen = []
    for gradient in (1, 1, 1, np.inf, np.inf):
        iterate(scaler, optimizer, (p, gradient))
        seen.append(scaler.get_scale())
    assert seen == [16, 20, 20, 10, 5]
    _, huge, scaler = p, optimizer, GradScaler(init_scale=2.0**127, growth_interval=1)
    huge.zero_grad()
    scaler.scale(Tensor(np.zeros((), np.float32)))
    p.accumulate(np.ones(3, np.float32), tag=tag_of(scaler))
    scaler.step(huge)
    scaler.update()
    assert scaler.get_scale() == 2.0**127


def test_hysteresis_tolerates_overflows_before_it_backs_off():
    p, optimizer, scaler = pair(init_scale=16.0, hysteresis=2)
    seen = []
    for gradient in (np.inf, 1, np.inf, np.inf, np.inf, 1, np.inf):
        iterate(scaler, optimizer, (p, gradient))
        seen.append(scaler.get_scale())
    assert seen == [16, 16, 16, 8, 4, 4, 4]


@pytest.mark.parametrize(
    "new", [4.0, 4, Tensor(np.array(4.0, np.float32)), Tensor(np.array([4.0], np.float32))], ids=repr
)
def test_update_takes_a_new_scale(new):
    p, _optimizer, scaler = pair()
    scaler.scale(loss_of((p, 1.0)))
    scaler.update(new)
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("new", [0, -2.0, math.inf, math.nan, True, "4", Tensor(np.ones(2, np.float32))], ids=repr)
def test_update_refuses_what_is_no_scale(new):
    p, _optimizer, scaler = pair()
    scaler.scale(loss_of((p, 1.0)))
    with pytest.raises(ArgumentError):
        scaler.update(new)
    assert scaler.get_scale() == 65536.0


@pytest.mark.parametrize(
    "options",
    [
        *({"init_scale": v} for v in (0, -1, math.inf, math.nan, True)),
        *({"growth_factor": v} for v in (1.0, 0.5, math.inf, math.nan, True)),
        *({"backoff_factor": v} for v in (1.0, 0.0, -0.5, math.nan, True)),
        *({"growth_interval": v} for v in (0, -1, 2.5, True)),
        {"min_scale": 0},
        {"min_scale": 8.0, "init_scale": 4.0},
        {"max_scale": 4.0},
        {"hysteresis": 0},
    ],
    ids=str,
)
def test_the_constructor_and_the_setters_refuse_bad_values(options):
    with pytest.raises(ArgumentError, match="GradScaler"):
        GradScaler(**options)
    ((name, value),) = list(options.items())[:1]
    setter = getattr(GradScaler(), f"set_{name}", None)
    if setter is not None:
        with pytest.raises(ArgumentError):
            setter(value)


def test_getters_return_what_was_set_and_integers_are_numbers():
    scaler = GradScaler("cpu", 1024, 3, 0.25, 10)
    assert scaler.get_scale() == 1024
    assert scaler.get_growth_factor() == 3
    assert scaler.get_backoff_factor() == 0.25
    scaler.set_growth_factor(4)
    scaler.set_backoff_factor(0.125)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (4, 0.125, 10)
    with pytest.raises(DeviceError):
        GradScaler("cuda:9")


def test_a_disabled_scaler_passes_everything_through():
    p = parameter(3)
    optimizer, scaler = optim.SGD([p], lr=1.0), GradScaler(growth_factor=3.0, enabled=False)
    loss = loss_of((p, 1.0))
    assert scaler.scale(loss) is loss
    assert scaler.scale("x") == "x"
    assert not scaler.is_enabled()
    loss.backward()
    scaler.unscale_(optimizer)
    result = scaler.step(optimizer)
    scaler.update()
    assert not result.skipped
    assert np.array_equal(p.array, np.zeros(3))
    assert scaler.step(optimizer, lambda: 7).value == 7
    assert scaler.get_scale() == 1.0
    assert scaler.get_growth_factor() == 3.0
    assert scaler.get_growth_interval() == 2000
    scaler.load_state_dict({})
    assert scaler.state_dict() == {}


# its state


def test_a_state_dict_has_pytorchs_keys_and_goes_back():
    p, optimizer, scaler = pair(init_scale=8.0, growth_interval=10, hysteresis=3)
    for gradient in (1, 1, np.inf, 1):
        iterate(scaler, optimizer, (p, gradient))
    state = scaler.state_dict()
    assert set(state) == {
        "scale",
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "_growth_tracker",
        "_hysteresis_tracker",
    }
    for used in (False, True):
        other = GradScaler(hysteresis=3)
        if used:
            other.scale(Tensor(np.zeros((), np.float32)))
        other.load_state_dict(state)
        assert other.state_dict() == state
    pytorchs = {"scale": 32.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 7, "_growth_tracker": 4}
    other.load_state_dict(pytorchs)
    assert other.state_dict() == {**pytorchs, "_hysteresis_tracker": 3}


def test_a_state_that_is_empty_partial_or_bad_changes_nothing():
    scaler = GradScaler()
    before = scaler.state_dict()
    with pytest.raises(StateError, match="The source state dict is empty"):
        scaler.load_state_dict({})
    with pytest.raises(ArgumentError, match="one without growth_factor"):
        scaler.load_state_dict({"scale": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 0})
    for bad in ({"scale": math.nan}, {"_growth_tracker": -1}, {"backoff_factor": 2.0}):
        with pytest.raises(ArgumentError):
            scaler.load_state_dict({**before, **bad})
    assert scaler.state_dict() == before


def test_a_scaler_is_pickled_and_copied_between_iterations_only():
    p, optimizer, scaler = pair(init_scale=8.0, growth_interval=10)
    for gradient in (1, np.inf, 1):
        iterate(scaler, optimizer, (p, gradient))
    for twin in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert twin.state_dict() == scaler.state_dict()
        q = parameter(3)
        assert not iterate(twin, optim.SGD([q]), (q, 1.0)).skipped
    optimizer.zero_grad()
    scaler.scale(loss_of((p, 1.0))).backward()
    scaler.step(optimizer)
    with pytest.raises(StateError, match="may only be pickled at the beginning of an iteration, or at the end"):
        pickle.dumps(scaler)


# collapse


def test_fifty_skips_in_a_row_stop_the_training_and_say_where_and_what_to_do():
    p, q = parameter(300), parameter(2, 4)
    p._dotted_name, q._dotted_name = "embed.weight", "head.bias"
    optimizer, scaler = optim.SGD([p, q]), GradScaler()

    def overflow():
        optimizer.zero_grad()
        scaler.scale(loss_of((p, 1.0), (q, 1.0))).backward()
        q.grad.array[1, 2] = np.inf
        scaler.step(optimizer)
        scaler.update()

    for _ in range(49):
        overflow()
    with pytest.raises(ScaleCollapseError) as caught:
        overflow()
    text = str(caught.value)
    assert "50 steps in a row overflowed" in text
    assert "'head.bias' [2, 4] at [1, 2]" in text
    assert f"{65536 * 0.5**49:g} (step 50)" in text
    assert "bfloat16" in text
    assert isinstance(caught.value, NonFiniteError)
    assert np.isfinite(p.array).all()
    assert np.isfinite(q.array).all()
    assert scaler.get_scale() == 65536 * 0.5**50


def test_good_steps_in_between_start_the_count_anew():
    p, optimizer, scaler = pair()
    for k in range(120):
        iterate(scaler, optimizer, (p, 1.0 if k % 40 == 39 else np.nan))


def test_an_overflow_at_the_smallest_scale_stops_the_training():
    p, optimizer, scaler = pair(init_scale=4.0, min_scale=2.0)
    iterate(scaler, optimizer, (p, np.inf))
    with pytest.raises(
        ScaleCollapseError, match=r"smallest scale allowed, 2; .* parameter 0 \[3\] at \[0\]; scale: 4 \(step 1\), 2"
    ):
        iterate(scaler, optimizer, (p, np.inf))
    assert np.array_equal(p.array, np.ones(3))


def test_the_smallest_scale_allowed_need_not_be_a_float32():
    p, optimizer, scaler = pair(init_scale=0.1, min_scale=0.1)
    with pytest.raises(ScaleCollapseError, match="smallest scale allowed"):
        iterate(scaler, optimizer, (p, np.inf))
    assert p.tolist() == [1.0, 1.0, 1.0]


def test_no_number_of_overflows_makes_a_parameter_nan():
    p, optimizer, scaler = pair(lr=1e-3)
    collapses = 0
    for k in range(400):
        try:
            iterate(scaler, optimizer, (p, 1.0 if k % 60 == 59 else np.inf))
        except ScaleCollapseError:
            collapses += 1
    assert collapses
    assert np.isfinite(p.array).all()
    assert scaler.get_scale() >= 2.0**-126


# the host never looks


def forbidden(name):
    def read_scalar(self, *args):
        raise AssertionError(f"{name}: the host read the device")

    return read_scalar


class Device(np.ndarray):
    """An array whose values the host may not read."""

    def __array_function__(self, function, types, args, kwargs):
        out = super().__array_function__(function, types, args, kwargs)
        return np.asarray(out).view(Device) if isinstance(out, (np.ndarray, np.generic)) else out


for method in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__"):
    setattr(Device, method, forbidden(method))


class DeviceBackend(CPU):
    looks = 0

    def asarray(self, values, dtype=None):
        return np.asarray(values, dtype).view(Device)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype).view(Device)

    def zeros(self, shape, dtype):
        return np.zeros(shape, dtype).view(Device)

    def cast(self, array, dtype):
        return array.astype(dtype)

    def to_numpy(self, array):
        raise AssertionError("the host read the device")

    def item(self, array):
        DeviceBackend.looks += 1
        return super().item(array)


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setitem(backends._BY_TYPE, Device, DeviceBackend())
    monkeypatch.setattr(DeviceBackend, "looks", 0)
    return lambda *shape: Parameter(Tensor(np.ones(shape, np.float32).view(Device)))


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_a_whole_step_never_reads_the_device(device, monkeypatch, kind):
    ps = [device(3), device(40, 50), device(2)]
    options = {"momentum": 0.9} if kind is optim.SGD else {}
    optimizer, scaler = kind(ps, lr=0.1, weight_decay=0.1, **options), GradScaler()
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, 10)
    looks = []
    monkeypatch.setattr(scaler.monitor, "record", lambda *args: looks.append(args))
    for k, gradient in enumerate((1.0, np.inf, 0.5)):
        optimizer.zero_grad()
        loss = scaler.scale(Tensor(np.ones((), np.float32).view(Device)))
        assert type(loss.array) is Device
        for p in ps[: 3 - k]:
            p.copy_in(np.dtype(np.float16), True)
            p.accumulate(np.full(p.shape, gradient * 65536, np.float32).view(Device), tag=tag_of(scaler))
        scaler.unscale_(optimizer)
        norm = optim.clip_grad_norm_(ps, 1.0)
        optim.clip_grad_value_(ps, 0.5)
        result = scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        assert type(norm.array) is Device
        assert DeviceBackend.looks == 0
    assert len(looks) == 3
    assert type(ps[0].array) is Device
    assert result.skipped is False
    assert DeviceBackend.looks == 1
    assert scheduler.last_epoch == 2
    assert scaler.get_scale() == 32768.0


def test_the_guard_looks_through_peek_alone(device):
    p = device(3)
    optimizer, scaler = optim.SGD([p]), GradScaler(min_scale=65536.0)
    scaler.scale(Tensor(np.ones((), np.float32).view(Device)))
    p.accumulate(np.full(3, np.inf, np.float32).view(Device), tag=tag_of(scaler))
    scaler.step(optimizer)
    with pytest.raises(ScaleCollapseError, match=r"parameter 0 \[3\] at \[0\]"):
        scaler.update()
    assert DeviceBackend.looks > 0


def test_unscaling_an_optimizer_without_gradients_leaves_the_scaler_usable():
    p, scaler = nn.Parameter(np.ones(2, np.float32)), GradScaler(init_scale=4.0)
    optimizer = optim.SGD([p], lr=1.0)
    scaler.scale(p.sum())
    scaler.unscale_(optimizer)
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert p.tolist() == [0.0, 0.0]


def test_counts_that_32_bits_do_not_hold_are_refused():
    with pytest.raises(ArgumentError, match="hysteresis as an integer from 1 to 2147483647"):
        GradScaler(hysteresis=2**40)
