"""Training steps of models, compiled on a CPU, have the bits of eager ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting_launches import let_all_wait

import ampkit
from ampkit import models, nn, ops, optim
from ampkit.backends.cpu.native.arrays import available
from ampkit.models.efficientnet import Stage
from ampkit.models.resnet import BasicBlock, ResNet

pytestmark = pytest.mark.no_gpu
STEPS = 3


class Llama(nn.Module):
    """A block of a Llama-like model in plain ops: RMS norm, rotary positions, gated MLP."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down, self.head = nn.Linear(2 * width, width, bias=False), nn.Linear(width, 50, bias=False)
        self.scale = nn.Parameter(ampkit.ones(width))

    def norm(self, x: Any) -> Any:
        return x * ampkit.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.scale

    def turned(self, x: Any) -> Any:
        angle = ampkit.arange(x.shape[-2])[:, None].float() * ampkit.linspace(1.0, 0.01, x.shape[-1] // 2)
        a, b = x.chunk(2, -1)
        return ampkit.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = ops.softmax(self.turned(q) @ self.turned(k).mT * 0.125, -1)
        x = x + ops.dropout(self.out(weights @ v), 0.1)
        y = self.norm(x)
        return self.head(x + self.down(ops.silu(self.gate(y)) * self.up(y)))


def images(*shape: int) -> Any:
    return ampkit.tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def tokens(*shape: int) -> Any:
    return ampkit.tensor(np.random.default_rng(0).integers(0, 50, shape))


EFFICIENTNET = (Stage(1, 3, 1, 8, 8, 2), Stage(2, 5, 2, 8, 16, 2))
GPT = {"vocab_size": 50, "block_size": 32, "n_layer": 2, "n_head": 2, "n_embd": 64}
BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
VIT = {"patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 64, "mlp_dim": 128}
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mlp": (lambda: models.mlp(64, (512, 256), 10), lambda: images(64, 1, 8, 8)),
    "cnn": (lambda: models.cnn(width=16), lambda: images(16, 1, 8, 8)),
    "resnet": (lambda: ResNet(BasicBlock, (1, 1, 1, 1), 10, stem="cifar", width=8), lambda: images(4, 3, 16, 16)),
    "efficientnet": (lambda: models.EfficientNet(EFFICIENTNET, 0.2, num_classes=5), lambda: images(4, 3, 32, 32)),
    "convmixer": (lambda: models.convmixer(32, 2, 3), lambda: images(8, 3, 16, 16)),
    "vit": (lambda: models.vit(16, **VIT), lambda: images(8, 3, 16, 16)),
    "bert": (lambda: models.bert("tiny", vocab_size=50, **BERT), lambda: tokens(8, 32)),
    "gpt": (lambda: models.GPT(**GPT), lambda: tokens(8, 32)),
    "llama": (Llama, lambda: tokens(8, 32)),
}


@pytest.fixture(autouse=True)
def _all_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from let_all_wait(monkeypatch)


def trained(name: str, dtype: str, compiled: bool) -> tuple[list[bytes], int]:
    """The bits of losses, gradients and parameters of some steps, and how many chains ran."""
    make, data = CASES[name]
    ampkit.manual_seed(0)
    model, batch = make(), data()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    scaler = ampkit.GradScaler(device="cpu", init_scale=256.0, enabled=dtype == "float16")
    found: list[bytes] = []

    def step(x: Any) -> Any:
        with ampkit.autocast("cpu", dtype=getattr(ampkit, dtype), enabled=dtype != "float32"):
            y = model(x)
            loss = ((y.float() - 0.5) ** 2).mean() + ops.gelu(y * 0.1).abs().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 1.0)
        found.extend(p.grad.numpy().tobytes() for p in model.parameters())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    run, chains = ampkit.compile(step) if compiled else step, 0
    for _ in range(STEPS):
        found.append(run(batch).numpy().tobytes())
        chains += sum(run.report().chains.values()) if compiled else 0
    return [*found, *(p.numpy(force=True).tobytes() for p in model.parameters())], chains


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_compiled_steps_of_models_have_the_bits_of_eager_ones(name, dtype):
    expected, _ = trained(name, dtype, compiled=False)
    found, chains = trained(name, dtype, compiled=True)
    assert expected == found
    if available() and (name, dtype) == ("llama", "bfloat16"):
        assert chains
