"""Recorded training steps of models, whose elementwise launches are fused, have the bits of eager ones on a GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
from cuda_on_cpu import emulator, streams
from models.test_fused_steps import CASES, Llama, tokens

import ampkit
from ampkit import ops, optim

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
STEPS = 5  # the last ones are recorded
SMALL = {**CASES, "llama": (lambda: Llama(32), lambda: tokens(2, 16))}
EVERY = [(name, dtype) for name in CASES for dtype in ("float32", "bfloat16", "float16")]  # minutes of compiling
FEW = [("llama", "bfloat16"), ("llama", "float16"), ("vit", "bfloat16")]
CHECKED = EVERY if os.environ.get("HYPOTHESIS_PROFILE") == "long" else FEW


def trained(name: str, dtype: str, compiled: bool) -> tuple[list[bytes], Any]:
    """The bits of losses and parameters of some steps, and the report."""
    make, data = SMALL[name]
    ampkit.manual_seed(0)
    model, batch = make().to("cuda"), data().to("cuda")[:2]
    parameters = list(model.parameters())
    optimizer = optim.SGD(parameters, lr=0.1, momentum=0.9)
    scaler = ampkit.GradScaler(device="cuda", init_scale=256.0, enabled=dtype == "float16")

    def step(x: Any) -> Any:
        with ampkit.autocast("cuda", dtype=getattr(ampkit, dtype), enabled=dtype != "float32"):
            y = model(x)
            loss = ((y.float() - 0.5) ** 2).mean() + ops.gelu(y * 0.1).abs().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    run, found = ampkit.compile(step, warmup=1, fullgraph=True) if compiled else step, []
    for _ in range(STEPS):
        found.append(run(batch).numpy().tobytes())
    report = run.report() if compiled else None
    return [*found, *(p.numpy(force=True).tobytes() for p in parameters)], report


@pytest.mark.parametrize(("name", "dtype"), CHECKED)
def test_recorded_steps_of_models_have_the_bits_of_eager_ones(name, dtype, gpu):
    ampkit.set_default_device("cuda")
    expected, _ = trained(name, dtype, compiled=False)
    with streams.races() as found_races:
        found, report = trained(name, dtype, compiled=True)
    assert not found_races
    assert expected == found
    assert report.graphs == 1
    assert report.chains
    assert report.bytes_after < report.bytes_before
