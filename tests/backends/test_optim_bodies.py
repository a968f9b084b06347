"""Adam's update by oneDNN is the reference's, and a step that is not real changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, optim
from ampkit.backends.cpu.dnnl import library, trouble
from ampkit.backends.cpu.optim import PIECE
from ampkit.core.primitive import reference_only
from ampkit.optim.adam import adam_update

pytestmark = pytest.mark.skipif(library() is None, reason=trouble())


def trained(kind, size, dtype=ampkit.float32, scaled=False, **options):
    rng = np.random.default_rng(0)
    p = nn.Parameter(ampkit.tensor(rng.standard_normal(size).astype(np.float32)).to(dtype))
    p.copy_in(ampkit.bfloat16, True)
    optimizer, scaler = kind([p], lr=0.01, **options), ampkit.GradScaler(enabled=scaled)
    for k in range(4):
        p.grad = None
        gradient = ampkit.tensor(rng.standard_normal(size).astype(np.float32))
        if scaled and k == 2:
            gradient[size // 2] = float("nan")
        scaler.scale((p.float() * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    found = optimizer.state_dict()["state"][0]
    low = p.detach().numpy() if dtype == ampkit.bfloat16 else p.copy_in(ampkit.bfloat16, True)
    return {
        "p": p.detach().numpy(),
        "low": low,
        **{name: found[name].numpy() for name in ("exp_avg", "exp_avg_sq", "step")},
    }


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("size", [10_001, PIECE + 1])
@pytest.mark.parametrize(
    ("kind", "options"),
    [(optim.Adam, {}), (optim.AdamW, {"weight_decay": 0.1}), (optim.AdamW, {"eps": 1e-3, "betas": (0.5, 0.9)})],
)
def test_an_update_is_the_reference_s(kind, options, size, dtype, scaled):
    found = trained(kind, size, dtype, scaled, **options)
    with reference_only():
        truth = trained(kind, size, dtype, scaled, **options)
    assert found["step"] == truth["step"] == (3 if scaled else 4)
    for name in ("exp_avg", "exp_avg_sq"):
        np.testing.assert_allclose(found[name], truth[name], rtol=2e-6, atol=1e-6)
    for name, tolerance in (("p", 2e-6 if dtype == ampkit.float32 else 8e-3), ("low", 8e-3)):
        np.testing.assert_allclose(found[name].astype(float), truth[name].astype(float), rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"amsgrad": True}, {"maximize": True}, {"weight_decay": 0.1}, {"decoupled": False, "double": True}],
    ids=str,
)
def test_other_updates_are_left_to_the_reference(options):
    array = np.ones(10_000, np.float64 if options.pop("double", False) else np.float32)
    largest = array if options.pop("amsgrad", False) else None
    given = {"eps": 1e-8, "weight_decay": 0.0, "decoupled": False, "maximize": False, **options}
    body = adam_update.pick("cpu", array, array, array, array, largest, None, None, None, None, [], [], **given)
    assert body is adam_update.reference
    given = {"eps": 1e-8, "weight_decay": 0.1, "decoupled": True, "maximize": False}
    array = np.ones(10_000, np.float32)
    body = adam_update.pick("cpu", array, array, array, array, None, None, None, None, None, [], [], **given)
    assert body is not adam_update.reference
