"""Compiled updates, unscaling and norms are the references', and a step that is not real changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
from ampkit.amp.found_inf import unscale
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.core.dispatch import reference_only
from ampkit.optim.clip import power_sum, scale_gradients
from ampkit.optim.elementwise import update
from ampkit.optim.flat.arena import spans
from ampkit.optim.flat.memory import CHUNK, narrow
from ampkit.optim.swa_utils import lerp

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("two_threads"),
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
]

LARGE = 2 * CHUNK + 5
RULES = [
    (optim.Adam, {}),
    (optim.Adam, {"weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    (optim.AdamW, {"weight_decay": 100.0}),  # of which nothing stays, at this rate
    (optim.AdamW, {"eps": 1e-3, "betas": (0.5, 0.9)}),
    (optim.AdamWScheduleFree, {"weight_decay": 0.1, "warmup_steps": 2}),
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}),
    (optim.SGD, {"momentum": 0.8, "nesterov": True}),
    (optim.Adadelta, {"weight_decay": 0.1}),
    (optim.Adagrad, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
    (optim.Adamax, {"weight_decay": 0.1}),
    (optim.ASGD, {"t0": 2, "weight_decay": 0.1}),
    (optim.Lion, {"weight_decay": 0.1}),
    (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (optim.RAdam, {"betas": (0.9, 0.5)}),
    (optim.RMSprop, {}),
    (optim.RMSprop, {"momentum": 0.9}),
    (optim.RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    (optim.Rprop, {}),
    (optim.LAMB, {"weight_decay": 0.1}),
    (optim.Adafactor, {"weight_decay": 0.1}),
]


def trained(kind, shape, dtype=ampkit.float32, scaled=False, special=False, **options):
    rng = np.random.default_rng(0)
    p = nn.Parameter(ampkit.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype))
    optimizer, scaler = kind([p], lr=0.01, **options), ampkit.GradScaler(enabled=scaled)
    p.copy_in(ampkit.bfloat16, True)
    for k in range(4):
        p.grad = None
        values = rng.standard_normal(shape).astype(np.float32)
        values.ravel()[::7] = 0
        if special and k == 1:
            values.ravel()[:4] = np.inf, -np.inf, np.nan, 1e-40
        gradient = ampkit.tensor(values)
        if scaled and k == 2:
            gradient.reshape(-1)[gradient.numel() // 2] = float("nan")
        scaler.scale((p.float() * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    found = optimizer.state_dict()["state"].get(0, {})
    low = p.detach().numpy() if dtype == ampkit.bfloat16 else p.copy_in(ampkit.bfloat16, True)
    return {"p": p.detach().numpy(), "low": low, **{n: found[n].numpy() for n in found if n != "master"}}


@pytest.mark.parametrize(("dtype", "scaled"), [(ampkit.float32, False), (ampkit.bfloat16, True)], ids=str)
@pytest.mark.parametrize("size", [3, 10_001, LARGE])
@pytest.mark.parametrize(("kind", "options"), RULES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_an_update_is_the_reference_s(kind, options, size, dtype, scaled):
    found = trained(kind, size, dtype, scaled, **options)
    with reference_only():
        truth = trained(kind, size, dtype, scaled, **options)
    assert set(found) == set(truth)
    for name in truth:
        tolerance = 8e-3 if truth[name].dtype == ampkit.bfloat16 else 2e-6
        np.testing.assert_allclose(found[name].astype(float), truth[name].astype(float), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize(("kind", "options"), RULES[:-2], ids=lambda value: getattr(value, "__name__", str(value)))
def test_infinities_nans_and_subnormals_come_out_as_of_the_reference(kind, options):
    found = trained(kind, 1000, special=True, **options)
    with reference_only():
        truth = trained(kind, 1000, special=True, **options)
    for name in truth:
        np.testing.assert_allclose(found[name].astype(float), truth[name].astype(float), rtol=8e-3, atol=1e-38)


@pytest.mark.parametrize(
    ("shape", "maximize"),
    [((1000, 70), True), ((2, 1, CHUNK + 1), False), ((800, 3, 3), False), ((2, 257, 256), True), ((1, 9), False)],
    ids=str,
)
def test_adafactor_of_any_matrices_is_the_reference_s(shape, maximize):
    found = trained(optim.Adafactor, shape, scaled=True, weight_decay=0.1, maximize=maximize)
    with reference_only():
        truth = trained(optim.Adafactor, shape, scaled=True, weight_decay=0.1, maximize=maximize)
    for name, tolerance in (("p", 2e-6), ("low", 8e-3), ("row_var", 2e-6), ("col_var", 2e-5)):
        np.testing.assert_allclose(found[name].astype(float), truth[name].astype(float), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("kind", [optim.AdamW, optim.LAMB, optim.Adafactor])
def test_the_number_of_threads_changes_no_bit(kind):
    before, found = ampkit.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            ampkit.set_num_threads(threads)
            bits = {n: a.tobytes() for n, a in trained(kind, (3, CHUNK + 5), scaled=True).items()}
            values = np.random.default_rng(0).standard_normal(LARGE).astype(np.float32)
            found.append((bits, float(power_sum(values, 2.0, np.empty(CHUNK)))))
    finally:
        ampkit.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.Rprop, optim.LAMB])
def test_how_parameters_are_grouped_changes_no_bit(kind):
    def weights(groups):
        rng = np.random.default_rng(0)
        parameters = [nn.Parameter(ampkit.tensor(rng.standard_normal(n).astype(np.float32))) for n in (37, 600, 40_001)]
        optimizer = kind([{"params": [parameters[i] for i in group]} for group in groups], lr=0.01)
        for _ in range(3):
            for p in parameters:
                p.grad = ampkit.tensor(np.sin(np.arange(p.numel(), dtype=np.float32)))
            optimizer.step()
        return [p.detach().numpy().tobytes() for p in parameters]

    assert weights([[0, 1, 2]]) == weights([[2], [1], [0]]) == weights([[1, 0], [2]])


class OwnAdam(optim.Adam):
    """One that another rule was given."""

    @staticmethod
    def update_elements(p, g, moments, scalars):
        p -= g


def test_other_rules_and_other_dtypes_are_left_to_the_reference():
    def selected(kind, dtype=np.float32, **options):
        optimizer = kind([nn.Parameter(ampkit.tensor(np.ones(10, dtype)))], **options)
        (group,) = optimizer.param_groups
        (span,) = spans(group.segments)
        moments = [span.moment(name) if optimizer.needs_moment(group, name) else None for name in optimizer.moments]
        step = optimizer.step_inputs(group, span, None)
        return update.select("cpu", span.weights, span.gradient, moments, [], step)

    assert selected(optim.AdamW) is not update.reference
    for kind, options in [(OwnAdam, {}), (optim.Adam, {"dtype": np.float64})]:
        assert selected(kind, **options) is update.reference


@pytest.mark.parametrize("inverse", [None, 2.0**-10])
@pytest.mark.parametrize("bad", [{}, {7: np.nan}, {20_000: np.inf, 90_000: np.nan}, {LARGE - 1: -np.inf}], ids=str)
def test_unscaling_finds_the_first_that_is_not_finite(bad, inverse):
    values = np.random.default_rng(0).standard_normal(LARGE).astype(np.float32)
    values[5], values[6] = 3e38, 1e-40
    for place, value in bad.items():
        values[place] = value
    given = values.copy(), values.copy()
    by = None if inverse is None else np.array(inverse, np.float32)
    kernel = unscale.select("cpu", values, by, None)
    assert kernel is not unscale.reference
    found = kernel.run(given[0], by, None)
    truth = unscale.reference.run(given[1], by, np.empty(CHUNK, np.bool_))
    assert found == truth == min(bad, default=values.size)
    np.testing.assert_array_equal(*given)


def test_a_gradient_that_overflows_as_it_is_unscaled_is_found():
    values = np.full(5, 1e38, np.float32)
    assert unscale(values, np.array(100.0, np.float32), None) == 0
    assert unscale(values[:0], None, None) == 0


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16, ampkit.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30, 0.0])
@pytest.mark.parametrize("size", [0, 7, LARGE])
def test_norms_are_those_of_float64(size, scale, dtype):
    values = (np.random.default_rng(0).standard_normal(size) * scale).astype(np.float32).clip(-6e4, 6e4).astype(dtype)
    for order, truth in (
        (2.0, (values.astype(float) ** 2).sum()),
        (math.inf, np.abs(values.astype(float)).max(initial=0)),
    ):
        kernel = power_sum.select("cpu", values, order, None)
        assert (kernel is power_sum.reference) == (size == 0)  # a kernel gets no empty array
        np.testing.assert_allclose(kernel.run(values, order, None), truth, rtol=1e-12)


@pytest.mark.parametrize("order", [2.0, math.inf])
def test_a_norm_of_nan_is_nan(order):
    values = np.ones(40_000, np.float32)
    values[20_000], values[100] = -np.nan, np.inf
    assert np.isnan(power_sum(values, order, np.empty(CHUNK)))
    values[20_000] = 1
    assert power_sum(values, order, np.empty(CHUNK)) == np.inf


@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16, ampkit.float16], ids=str)
def test_gradients_are_scaled_and_averages_move_as_by_the_references(dtype):
    rng = np.random.default_rng(0)
    values, average = rng.standard_normal((2, 40_001)).astype(np.float32)
    given = [values.astype(dtype) for _ in range(4)]
    for factor, finite in ((0.25, True), (1.0, True), (0.5, False)):
        for run, scaled in ((scale_gradients, given[0]), (scale_gradients.reference.run, given[1])):
            run(scaled, np.array(factor), np.array(finite))
        np.testing.assert_array_equal(given[0], given[1])
    held = [average.copy(), average.copy()]
    for fresh, stepped in ((True, None), (None, True), (False, False)):
        flags = [None if flag is None else np.array(flag) for flag in (fresh, stepped)]
        for run, moved in ((lerp, held[0]), (lerp.reference.run, held[1])):
            run(moved, values, 0.3, *flags)
        np.testing.assert_allclose(*held, rtol=1e-6, atol=1e-7)
    copies = [np.empty(average.size, dtype) for _ in range(2)]
    for run, copy in ((narrow, copies[0]), (narrow.reference.run, copies[1])):
        run(average, copy)
    np.testing.assert_array_equal(*copies)


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.Lion, optim.LAMB, optim.Adafactor])
def test_a_skipped_step_fills_a_copy_that_was_made_for_a_neighbour(kind):
    first, second = (nn.Parameter(ampkit.tensor(np.full(10_000, float(n), np.float32))) for n in (1, 3))
    optimizer, scaler = kind([first, second], lr=0.1), ampkit.GradScaler()
    first.copy_in(ampkit.bfloat16, True)
    scaler.scale((first + second).sum() * float("inf")).backward()
    assert scaler.step(optimizer).skipped
    assert (second.copy_in(ampkit.bfloat16, True) == 3).all()
