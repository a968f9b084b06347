"""Trainings that are sound, though their loss scale overflows on the way: no alarm in any of them."""

import numpy as np
import pytest

import ampkit
from ampkit import GradScaler, autocast, debug, nn, ops, optim

INF = float("inf")


class Attention(nn.Module):
    """Causal self-attention with a mask of -inf, and padding whose rows are masked by a number that fits."""

    def __init__(self, width):
        super().__init__()
        self.projection = nn.Linear(width, 3 * width)

    def forward(self, x):
        query, key, value = ops.chunk(self.projection(x), 3, -1)
        later = ops.triu(ampkit.ones(x.shape[-2], x.shape[-2]), 1).bool()
        scores = (query @ key.transpose(-1, -2)).masked_fill(later, -INF)
        return ops.softmax(scores, -1) @ value


def model(*inner):
    return nn.Sequential(nn.Linear(8, 16), *inner, nn.Linear(16, 4))


def data(*shape):
    random = np.random.default_rng(0)
    x = ampkit.tensor(random.standard_normal(shape).astype(np.float32))
    return x, ampkit.tensor(random.integers(0, 4, shape[:-1]))


def train(net, *, dtype=ampkit.float16, scale=2.0**30, steps=12, accumulate=1, clip=None, shape=(16, 8), penalty=None):
    """Train with a scale that overflows at first. -> the skipped steps, and the overflows that were told apart."""
    x, target = data(*shape)
    optimizer = optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler(init_scale=scale, growth_interval=4, backoff_factor=2.0**-6)
    skipped = 0
    with debug.detect_nonfinite() as watching:
        for _ in range(steps):
            for _ in range(accumulate):
                with autocast(dtype=dtype):
                    loss = ops.cross_entropy(net(x).flatten(0, -2), target.flatten())
                    if penalty is not None:
                        loss = loss + penalty(net, x, scaler)
                scaler.scale(loss / accumulate).backward()
            if clip is not None:
                scaler.unscale_(optimizer)
                optim.clip_grad_norm_(net.parameters(), clip)
            skipped += bool(scaler.step(optimizer).skipped)
            scaler.update()
            optimizer.zero_grad()
    return skipped, watching.overflows


def penalty_of_gradients(net, x, scaler):
    """The gradient penalty of PyTorch's AMP recipe: the gradients of a scaled loss, unscaled by hand."""
    parameters = list(net.parameters())
    scaled = ampkit.grad(scaler.scale(net(x).float().square().mean()), parameters, create_graph=True)
    inverse = 1.0 / scaler.get_scale()
    return 1e-3 * sum(((gradient * inverse).square().sum() for gradient in scaled), ampkit.zeros(()))


class Recomputed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return ampkit.recompute(self.inner, x)


RUNS = {
    "float16": lambda: train(model(nn.GELU())),
    "a mask of -inf": lambda: train(model(Attention(16)), shape=(4, 6, 8)),
    "dropout and layer normalization": lambda: train(model(nn.LayerNorm(16), nn.Dropout(0.3))),
    "batch normalization": lambda: train(model(nn.BatchNorm1d(16), nn.ReLU())),
    "accumulation and clipping": lambda: train(model(nn.ReLU()), accumulate=3, clip=1.0),
    "recomputation": lambda: train(model(Recomputed(nn.Sequential(nn.Linear(16, 16), nn.Tanh())))),
    "shared weights": lambda: train(model(*[nn.Linear(16, 16)] * 3)),
    "a gradient penalty": lambda: train(model(nn.Tanh()), penalty=penalty_of_gradients),
    "an encoder": lambda: train(
        model(nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)), shape=(4, 6, 8), steps=8
    ),
    "a recurrent network": lambda: train(model(Hidden(nn.LSTM(16, 16, batch_first=True))), shape=(4, 6, 8), steps=8),
}


class Hidden(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x):
        return self.recurrent(x)[0]


@pytest.mark.parametrize("name", RUNS)
def test_a_scale_that_overflows_raises_no_alarm(name):
    ampkit.manual_seed(0)
    skipped, overflows = RUNS[name]()
    assert skipped > 0
    assert overflows > 0


def test_bfloat16_without_a_scaler_raises_no_alarm():
    ampkit.manual_seed(0)
    net, (x, target) = model(nn.GELU()), data(16, 8)
    with debug.detect_nonfinite() as watching:
        for _ in range(3):
            with autocast(dtype=ampkit.bfloat16):
                ops.cross_entropy(net(x), target).backward()
    assert watching.overflows == 0


def test_infinities_that_come_to_nothing_raise_no_alarm():
    x = ampkit.tensor([0.0, 1.0, 2.0], requires_grad=True)
    with debug.detect_nonfinite():
        safe = ops.where(x > 0, x, ampkit.ones(3))
        (ops.where(x > 0, safe.log(), ampkit.zeros(3)).sum() + ops.sigmoid(1 / x.detach()).sum()).backward()
        ops.log_softmax(ampkit.tensor([-INF, 0.0]), 0).max()


def test_the_same_overflow_at_a_scale_of_one_is_a_fault():
    """The gradients that overflow by the scale in the runs above overflow by the loss here."""
    net, (x, target) = model(nn.GELU()), data(16, 8)
    scaler = GradScaler(init_scale=1.0)
    with debug.detect_nonfinite():
        with autocast(dtype=ampkit.float16):
            loss = ops.cross_entropy(net(x), target)
        with pytest.raises(ampkit.NonFiniteError, match="backward"):
            scaler.scale(loss * 2.0**30).backward()
