"""Updates, unscaling and norms by oneDNN are the references', and a step that is not real changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
from ampkit.amp.found_inf import unscale
from ampkit.backends.cpu.onednn.binary import PIECE
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.core.dispatch import reference_only
from ampkit.optim.clip import power_sum
from ampkit.optim.elementwise import update
from ampkit.optim.flat.memory import CHUNK

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("two_threads"),
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
]


def trained(kind, size, dtype=ampkit.float32, scaled=False, **options):
    rng = np.random.default_rng(0)
    p = nn.Parameter(ampkit.tensor(rng.standard_normal(size).astype(np.float32)).to(dtype))
    optimizer, scaler = kind([p], lr=0.01, **options), ampkit.GradScaler(enabled=scaled)
    p.copy_in(ampkit.bfloat16, True)
    for k in range(4):
        p.grad = None
        gradient = ampkit.tensor(rng.standard_normal(size).astype(np.float32))
        if scaled and k == 2:
            gradient.reshape(-1)[gradient.numel() // 2] = float("nan")
        scaler.scale((p.float() * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    found = optimizer.state_dict()["state"].get(0, {})
    low = p.detach().numpy() if dtype == ampkit.bfloat16 else p.copy_in(ampkit.bfloat16, True)
    return {
        "p": p.detach().numpy(),
        "low": low,
        **{name: found[name].numpy() for name in found if name != "master"},
    }


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("size", [10_001, PIECE + 1])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (optim.Adam, {}),
        (optim.AdamW, {"weight_decay": 0.1}),
        (optim.AdamW, {"weight_decay": 100.0}),  # of which nothing stays, at this rate
        (optim.AdamW, {"eps": 1e-3, "betas": (0.5, 0.9)}),
        (optim.LAMB, {"weight_decay": 0.1}),
        (optim.SGD, {}),
        (optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (optim.SGD, {"momentum": 0.8, "dampening": 0.3}),
        (optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
    ],
)
def test_an_update_is_the_reference_s(kind, options, size, dtype, scaled):
    found = trained(kind, size, dtype, scaled, **options)
    with reference_only():
        truth = trained(kind, size, dtype, scaled, **options)
    assert found.get("step") == truth.get("step") == (None if kind is optim.SGD else 3 if scaled else 4)
    for name in set(truth) - {"p", "low", "step"}:
        np.testing.assert_allclose(found[name], truth[name], rtol=2e-6, atol=1e-6)
    for name, tolerance in (("p", 2e-6 if dtype == ampkit.float32 else 8e-3), ("low", 8e-3)):
        np.testing.assert_allclose(found[name].astype(float), truth[name].astype(float), rtol=tolerance, atol=1e-6)


def selected(kind, size=10_000, dtype=np.float32, **options):
    optimizer = kind([nn.Parameter(ampkit.tensor(np.ones(size, dtype)))], **options)
    (group,) = optimizer.param_groups
    (span,) = group.arenas[0].begin_step(group.arenas[0].segments)
    moments = [span.moment(name) if optimizer.needs_moment(group, name) else None for name in optimizer.moments]
    step = optimizer.step_inputs(group, span, None)
    return update.select("cpu", span.weights, span.gradient, moments, [], step).name


class OwnAdam(optim.Adam):
    """One that another rule was given."""

    @staticmethod
    def update_elements(p, g, moments, scalars):
        p -= g


def test_only_the_plain_updates_are_onednns():
    assert selected(optim.Adam) == selected(optim.AdamW) == "adam_update_cpu"
    assert selected(optim.SGD, momentum=0.9) == "sgd_update_cpu"
    rest = [(optim.Adam, {"amsgrad": True}), (optim.AdamW, {"maximize": True}), (optim.Adam, {"weight_decay": 0.1})]
    rest += [(optim.Adam, {"size": 10}), (optim.SGD, {"dtype": np.float64}), (optim.Lion, {}), (OwnAdam, {})]
    for kind, options in rest:
        assert selected(kind, **options) == "update_cpu"


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", [optim.Lion, optim.NAdam, optim.Rprop, OwnAdam])
def test_threads_leave_the_bits_of_the_reference(kind, scaled):
    found = trained(kind, 2 * CHUNK + 5, scaled=scaled)
    with reference_only():
        truth = trained(kind, 2 * CHUNK + 5, scaled=scaled)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in truth.items()}


def test_the_threads_of_lamb_leave_the_same_bits_however_many_they_are():
    before, found = ampkit.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            ampkit.set_num_threads(threads)
            found.append({n: a.tobytes() for n, a in trained(optim.LAMB, 3 * CHUNK + 5, scaled=True).items()})
    finally:
        ampkit.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("shape", "maximize"),
    [((1000, 70), True), ((2, 1, CHUNK + 1), False), ((8000, 3, 3), False), ((2, 257, 256), True), ((1, CHUNK), False)],
    ids=str,
)
def test_the_blocks_of_adafactor_leave_what_the_reference_leaves(shape, maximize):
    found = trained(optim.Adafactor, shape, scaled=True, weight_decay=0.1, maximize=maximize)
    with reference_only():
        truth = trained(optim.Adafactor, shape, scaled=True, weight_decay=0.1, maximize=maximize)
    for name, tolerance in (("p", 2e-6), ("low", 8e-3), ("row_var", 2e-6), ("col_var", 2e-5)):
        np.testing.assert_allclose(found[name].astype(float), truth[name].astype(float), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("inverse", [None, 2.0**-10])
@pytest.mark.parametrize(
    "bad", [{}, {7: np.nan}, {PIECE + 3: np.inf, PIECE + 2000: np.nan}, {2 * PIECE: -np.inf}], ids=str
)
def test_unscaling_finds_the_first_that_is_not_finite(bad, inverse):
    values = np.random.default_rng(0).standard_normal(2 * PIECE + 1).astype(np.float32)
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


def test_large_gradients_whose_sum_overflows_are_finite_all_the_same():
    values = np.full(10_000, 3e38, np.float32)
    with np.errstate(over="ignore"):
        assert unscale.select("cpu", values, None, None).run(values, None, None) == 10_000


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30, 0.0])
@pytest.mark.parametrize("size", [10_001, 2 * PIECE + 100])
def test_a_norm_is_that_of_float64(size, scale):
    values = (np.random.default_rng(0).standard_normal(size) * scale).astype(np.float32)
    kernel = power_sum.select("cpu", values, 2.0, None)
    assert kernel is not power_sum.reference
    found = kernel.run(values, 2.0, np.empty(CHUNK))
    np.testing.assert_allclose(found, (values.astype(float) ** 2).sum(), rtol=1e-7)


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD, optim.Lion, optim.LAMB, optim.Adafactor])
def test_a_skipped_step_fills_a_copy_that_was_made_for_a_neighbour(kind):
    first, second = (nn.Parameter(ampkit.tensor(np.full(10_000, float(n), np.float32))) for n in (1, 3))
    optimizer, scaler = kind([first, second], lr=0.1), ampkit.GradScaler()
    first.copy_in(ampkit.bfloat16, True)
    scaler.scale((first + second).sum() * float("inf")).backward()
    assert scaler.step(optimizer).skipped
    assert (second.copy_in(ampkit.bfloat16, True) == 3).all()
