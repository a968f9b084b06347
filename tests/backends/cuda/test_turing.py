"""A GPU without units for bfloat16 and without cuDNN's attention, a T4: neither library is asked for what it lacks."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator
from cuda_on_cpu.emulated_cupy import cuda

import ampkit
from ampkit import models, ops, optim
from ampkit.base.dtypes import bfloat16
from ampkit.run import doctor

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")


@pytest.fixture
def turing(device, monkeypatch):
    about = {**cuda.runtime.getDeviceProperties(0), "major": 7, "minor": 5, "sharedMemPerBlockOptin": 64 << 10}
    monkeypatch.setattr(cuda.runtime, "getDeviceProperties", lambda index: about)
    monkeypatch.setattr(cuda.Device, "compute_capability", "75")
    device.__dict__.pop("capability", None)

    def asked(self, *given, **options):
        raise AssertionError("cuDNN's attention was asked for")

    monkeypatch.setattr(type(device.cudnn), "attention_forward", asked)
    return device


def losses(place, dtype):
    ampkit.manual_seed(0)
    tokens = ampkit.tensor(np.random.default_rng(0).integers(0, 64, (2, 17)), device=place)
    model = models.gpt(vocab_size=64, block_size=16, n_layer=1, n_head=2, n_embd=32).to(place)
    optimizer, scaler = optim.AdamW(model.parameters(), lr=1e-2), ampkit.GradScaler(enabled=dtype == "float16")
    for _ in range(3):
        with ampkit.autocast(place, dtype=dtype):
            loss = ops.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield loss.item()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gpt_trains_as_on_a_cpu(dtype, turing):
    assert np.allclose(list(losses("cuda", dtype)), list(losses("cpu", dtype)), rtol=5e-3)
    dtypes = {product.a.dtype for product in turing.cublaslt.ran}
    assert bfloat16 not in dtypes and (np.dtype("float16") in dtypes) == (dtype == "float16")


def test_a_convolution_in_bfloat16_is_left_to_array_code(turing):
    images, kernels = (
        np.random.default_rng(0).normal(size=shape).astype(bfloat16) for shape in ((2, 8, 9, 9), (8, 8, 3, 3))
    )
    found, expected = (
        ops.conv2d(ampkit.tensor(images, device=place), ampkit.tensor(kernels, device=place)).float().cpu()
        for place in ("cuda", "cpu")
    )
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-2, atol=1e-2)


def test_doctor_says_which_dtype_such_a_gpu_is_for(turing, monkeypatch):
    monkeypatch.setattr(doctor, "_cupy", lambda: "cupy 14.2.0")
    found = {finding.topic: finding for finding in doctor._cuda()}
    assert found["bfloat16 products"].found == "no units for them before compute capability 8.0"
    assert found["bfloat16 products"].cure.startswith("amp.dtype=float16: ")
