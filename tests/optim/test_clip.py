import ml_dtypes
import numpy as np
import pytest

from ampkit import Tensor, optim
from ampkit.base.errors import ArgumentError, NonFiniteError, StateError
from ampkit.nn import Parameter, utils

RNG = np.random.default_rng(0)


def parameters(*shapes, bound=True):
    ps = [Parameter(np.zeros(s, np.float32)) for s in shapes]
    if bound:
        ps[0].name, parameters.keep = "first", optim.SGD(ps)
    for p in ps:
        p.grad = Tensor(RNG.standard_normal(p.shape).astype(np.float32))
    return ps


def flat(ps):
    return np.concatenate([p.grad.array.reshape(-1).astype(np.float64) for p in ps])


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_gradients_are_scaled_to_the_norm_and_the_norm_before_is_returned(bound, order):
    ps = parameters((30, 50), (7,), (400, 200), (), bound=bound)
    before = flat(ps)
    norm = np.linalg.norm(before, order)
    got = optim.clip_grad_norm_(ps, norm / 2, order)
    assert got.shape == ()
    assert got.dtype == np.float32
    assert np.isclose(got.item(), norm, rtol=1e-6)
    assert np.allclose(flat(ps), before / 2, rtol=1e-5)


def test_small_gradients_and_parameters_without_one_stay_as_they_are():
    ps = parameters((30,), (7,), (5,))
    ps[1].grad = None
    before = flat([ps[0], ps[2]])
    norm = optim.clip_grad_norm_((p for p in [*ps, ps[0]]), 1e6)
    assert np.isclose(norm.item(), np.linalg.norm(before))
    assert ps[1].grad is None
    assert np.array_equal(flat([ps[0], ps[2]]), before)


def test_without_gradients_the_norm_is_zero():
    assert optim.clip_grad_norm_([Parameter(np.zeros(3, np.float32))], 1.0).item() == 0
    assert optim.clip_grad_norm_([], 1.0).item() == 0


def test_the_norm_of_large_gradients_does_not_overflow():
    ps = parameters((4,))
    ps[0].grad = Tensor(np.full(4, 1e30, np.float32))
    assert np.isclose(optim.clip_grad_norm_(ps, 1.0).item(), 2e30)
    assert np.allclose(ps[0].grad.array, 0.5)


def test_gradients_whose_norm_is_inf_in_float32_are_scaled_by_the_norm_in_float64():
    ps = parameters((100,))
    ps[0].grad = Tensor(np.full(100, 3e38, np.float32))
    assert utils.get_total_norm([ps[0].grad]).item() == np.inf
    assert optim.clip_grad_norm_(ps, 1.0).item() == np.inf
    np.testing.assert_allclose(ps[0].grad.array, np.full(100, 0.1), rtol=1e-5)  # by a subnormal factor


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_norm_that_is_not_finite_makes_the_gradients_zero_and_no_parameter_nan(bad):
    ps = parameters((30,), (7,))
    optimizer = parameters.keep
    ps[0].grad.array[3] = bad
    assert not np.isfinite(optim.clip_grad_norm_(ps, 1.0).item())
    assert not flat(ps).any()
    optimizer.step()
    assert all(np.isfinite(p.array).all() for p in ps)


def test_a_norm_that_is_not_finite_raises_on_demand():
    ps = parameters((30,))
    ps[0].grad.array[3] = np.inf
    with pytest.raises(NonFiniteError, match="a finite norm"):
        optim.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)


def test_values_are_limited():
    ps = parameters((30,), (7,))
    before = flat(ps)
    optim.clip_grad_value_(ps, 0.25)
    assert np.array_equal(flat(ps), np.clip(before, -0.25, 0.25))


def test_16_bit_leaves_are_clipped_in_their_own_dtype():
    leaf = Tensor(np.ones(3, ml_dtypes.bfloat16), requires_grad=True)
    leaf.grad = Tensor(np.full(3, 4, ml_dtypes.bfloat16))
    optim.clip_grad_norm_(leaf, 1.0)
    optim.clip_grad_value_(leaf, 0.5)
    assert leaf.grad.dtype == ml_dtypes.bfloat16
    assert np.array_equal(leaf.grad.array, np.full(3, 0.5, ml_dtypes.bfloat16))


@pytest.mark.parametrize("clip", [optim.clip_grad_norm_, optim.clip_grad_value_])
def test_scaled_gradients_are_refused(clip):
    ps = parameters((3,), (4,))
    ps[0].grad._scale_tag = object()
    with pytest.raises(StateError, match=r"1 of 2 still scaled by a GradScaler\nhelp: call scaler.unscale_"):
        clip(ps, 1.0)


def test_limits_out_of_range_are_refused():
    ps = parameters((3,))
    for call in (
        lambda: optim.clip_grad_norm_(ps, -1.0),
        lambda: optim.clip_grad_norm_(ps, float("nan")),
        lambda: optim.clip_grad_norm_(ps, 1.0, 0),
        lambda: optim.clip_grad_value_(ps, True),
    ):
        with pytest.raises(ArgumentError):
            call()


def test_clipping_counts_as_a_change_of_the_gradient():
    ps = parameters((3,))
    before = ps[0].grad._version_counter[0]
    optim.clip_grad_norm_(ps, 1.0)
    assert ps[0].grad._version_counter[0] > before


def test_the_norm_of_the_largest_magnitude_also_goes_by_its_name():
    ps = parameters((3,), (2, 2), bound=False)
    wanted = np.abs(flat(ps)).max()
    assert np.isclose(utils.get_total_norm([p.grad for p in ps], "inf").item(), wanted)
    assert np.isclose(optim.clip_grad_norm_(ps, wanted / 2, "inf").item(), wanted)
    assert np.allclose(np.abs(flat(ps)).max(), wanted / 2)
    with pytest.raises(ArgumentError, match="needs norm_type >= 0"):
        optim.clip_grad_norm_(ps, 1.0, "max")
