"""What whole training steps run on a GPU: kernels and libraries, and no reference but the views."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

import ampkit
from ampkit import models, ops, optim, profile

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
# Views move nothing; attention's backward bears the name of its kernel's own.
VIEWS = {"reshape", "reshape_backward", "permute", "permute_backward", "split", "unbind"}


def gpt():
    tokens = np.random.default_rng(0).integers(0, 257, (2, 33))
    sizes = {"vocab_size": 257, "block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 128}
    return models.gpt(**sizes, dropout=0.1), tokens[:, :-1].copy(), tokens[:, 1:].copy()


def resnet():
    rng = np.random.default_rng(0)
    return models.resnet18(num_classes=10), rng.normal(size=(2, 3, 32, 32)).astype("f"), rng.integers(0, 10, 2)


def cnn():
    rng = np.random.default_rng(0)
    return models.cnn(width=8), rng.normal(size=(4, 1, 8, 8)).astype("f"), rng.integers(0, 10, 4)


def mlp():
    rng = np.random.default_rng(0)
    return models.mlp(hidden=[32, 32], dropout=0.1), rng.normal(size=(8, 64)).astype("f"), rng.integers(0, 10, 8)


@pytest.mark.parametrize(
    ("build", "dtype"),
    [*((build, dtype) for build in (gpt, resnet, cnn, mlp) for dtype in ("float32", "float16")), (gpt, "bfloat16")],
)
def test_a_step_of_a_model_runs_no_reference(build, dtype, device):
    model, *batch = build()
    model = model.to("cuda")
    x, y = (ampkit.tensor(part, device="cuda") for part in batch)
    optimizer, scaler = optim.AdamW(model.parameters(), lr=1e-3), ampkit.GradScaler(enabled=dtype == "float16")
    mixed = dtype != "float32"
    with profile() as found:
        with ampkit.autocast("cuda", dtype=dtype if mixed else "bfloat16", enabled=mixed):
            loss = ops.cross_entropy(model(x).flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    kernels = {row.name: row.kernel for row in found.rows if row.kernel and row.name not in VIEWS}
    plain = {name for name, kernel in kernels.items() if "_cuda" not in kernel}
    attention = {"scaled_dot_product_attention", "scaled_dot_product_attention_backward"}  # cuDNN's has 16 bits
    assert plain == (attention if build is gpt and not mixed else set())
