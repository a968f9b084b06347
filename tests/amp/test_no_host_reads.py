"""A training step never reads the device: no wait in it, by whatever model, format and optimizer."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator
from cuda_on_cpu.emulated_cublaslt import EmulatedCublasLt

import ampkit
from ampkit import backends, nn, ops, optim
from ampkit.autograd import Function
from ampkit.backends.cuda.device import CUDA
from ampkit.models import cnn
from ampkit.models.gpt import GPT
from ampkit.run import step as objectives

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=str(emulator.missing()))


@pytest.fixture(autouse=True)
def device():
    """The emulated GPU, where tensors are made."""
    undo = backends.install(CUDA(emulated_cupy, cublaslt=EmulatedCublasLt()))
    ampkit.set_default_device("cuda")
    yield
    ampkit.set_default_device("cpu")
    undo()


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 5))


MODELS = {
    "mlp": (mlp, lambda rng: rng.standard_normal((6, 8)).astype(np.float32)),
    "cnn": (lambda: cnn(1, 5, width=4), lambda rng: rng.standard_normal((6, 1, 8, 8)).astype(np.float32)),
    "gpt": (lambda: GPT(5, 4, 1, 2, 8, dropout=0.1), lambda rng: rng.integers(0, 5, (2, 3))),
}


def muon(parameters):
    every = list(parameters)
    parts = [([p for p in every if (p.ndim > 1) is big], big) for big in (True, False)]
    return optim.MuonWithAuxAdam([{"params": found, "use_muon": big} for found, big in parts], lr=1e-2)


OPTIMIZERS = {
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "sgd": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "lion": lambda p: optim.Lion(p, lr=1e-3, weight_decay=0.1),
    "adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "nadam": lambda p: optim.NAdam(p, lr=1e-2),
    "adadelta": lambda p: optim.Adadelta(p),
    "rprop": lambda p: optim.Rprop(p, lr=1e-2),
    "radam": lambda p: optim.RAdam(p, lr=1e-2),
    "lamb": lambda p: optim.LAMB(p, lr=1e-2),
    "adafactor": lambda p: optim.Adafactor(p, lr=1e-2, weight_decay=0.1),
    "muon": muon,
}


class Training:
    """A model and all that trains it; `step` is one whole step on a new batch."""

    def __init__(self, model, optimizer, dtype, **options):
        make, self.batch = MODELS[model]
        ampkit.manual_seed(0)
        self.rng, self.dtype, self.model = np.random.default_rng(0), dtype, make().to("cuda")
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.schedule = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        self.scaler = ampkit.GradScaler(enabled=dtype == ampkit.float16, **options)

    def loss(self):
        x = ampkit.tensor(self.batch(self.rng), device="cuda")
        with ampkit.autocast("cuda", dtype=self.dtype):
            logits = self.model(x)
            logits = logits.reshape(-1, logits.shape[-1])
            targets = ampkit.tensor(self.rng.integers(0, 5, logits.shape[0]), device="cuda")
            return ops.cross_entropy(logits, targets, label_smoothing=0.1)

    def step(self, factor=1.0):
        loss = self.loss()
        self.scaler.scale(loss * factor).backward()
        self.scaler.unscale_(self.optimizer)
        norm = optim.clip_grad_norm_(self.model.parameters(), 1.0)
        result = self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad()
        return loss, norm, result


# The cnn has parameters of 1, 2 and 4 dimensions, by which some optimizers choose their update.
OF_OPTIMIZERS = [("cnn", optimizer, ampkit.float16) for optimizer in OPTIMIZERS]
OF_MODELS = [(model, "adamw", dtype) for model in MODELS for dtype in (ampkit.float16, ampkit.bfloat16)]


@pytest.mark.parametrize(("model", "optimizer", "dtype"), dict.fromkeys(OF_OPTIMIZERS + OF_MODELS), ids=str)
def test_no_step_after_the_first_reads_the_device(model, optimizer, dtype):
    training = Training(model, optimizer, dtype)
    training.step()
    before = emulated_cupy.waits[0]
    losses = [training.step()[0] for _ in range(2)]
    assert emulated_cupy.waits[0] == before
    assert all(np.isfinite(loss.item()) for loss in losses)


class Cube(Function):
    """x^3, which casts its input."""

    @staticmethod
    @ampkit.amp.custom_fwd(device_type="cuda", cast_inputs=ampkit.float32)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3, x * 2

    @staticmethod
    @ampkit.amp.custom_bwd(device_type="cuda")
    def backward(ctx, dy, _):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * dy


class Masked(nn.Module):
    """An encoder with masks of both kinds and hooks, and a Function behind it."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.head = nn.Linear(8, 5)
        self.kernel.register_full_backward_hook(lambda module, into, out: None)
        self.head.weight.register_hook(lambda gradient: gradient * 2)
        self.head.bias.register_post_accumulate_grad_hook(self.after)
        self.mask = nn.Transformer.generate_square_subsequent_mask(3, device="cuda")
        self.padding = ampkit.tensor([[False, False, True], [False, True, True]], device="cuda")

    @staticmethod
    def after(p):
        p.grad.mul_(2)

    def forward(self, x):
        y = self.kernel(x, self.mask, self.padding)
        y = y + self.kernel.layers[0].self_attn(y, y, y, self.padding, attn_mask=self.mask)[0]
        return self.head(Cube.apply(y)[0])


def test_nor_does_one_with_masks_hooks_and_a_function_of_its_own(monkeypatch):
    monkeypatch.setitem(MODELS, "masked", (Masked, lambda rng: rng.standard_normal((2, 3, 8)).astype(np.float32)))
    training = Training("masked", "adamw", ampkit.float16)
    training.step()
    before = emulated_cupy.waits[0]
    losses = [training.step()[0] for _ in range(2)]
    assert emulated_cupy.waits[0] == before
    assert all(np.isfinite(loss.item()) for loss in losses)


def accumulated(t):
    for _ in range(2):
        t.scaler.scale(t.loss() / 2).backward()
    t.scaler.step(t.optimizer)
    t.scaler.update()
    t.optimizer.zero_grad(set_to_none=False)


def clipped_by_value(t):
    t.scaler.scale(t.loss()).backward()
    t.scaler.unscale_(t.optimizer)
    optim.clip_grad_value_(t.model.parameters(), 0.1)
    optim.clip_grad_norm_(t.model.parameters(), 1.0, norm_type=float("inf"))
    t.scaler.step(t.optimizer)
    t.scaler.update(), t.schedule.step(), t.optimizer.zero_grad()


def with_its_own_scale(t):
    t.scaler.scale(t.loss()).backward()
    t.scaler.step(t.optimizer)
    t.scaler.update(512.0)
    t.model.zero_grad()


def unscaled(t):
    loss = t.loss()
    loss.backward()
    t.optimizer.step(), t.schedule.step()
    t.optimizer.zero_grad()


def evaluated(t):
    with ampkit.no_grad():
        t.model.eval()
        t.loss()
        t.model.train()
    unscaled(t)


def averaged(t):
    if not hasattr(t, "average"):
        t.average = optim.swa_utils.AveragedModel(t.model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
    t.step()
    t.average.update_parameters(t.model)


WAYS = [accumulated, clipped_by_value, with_its_own_scale, unscaled, evaluated, averaged]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("schedule", ["OneCycleLR", "LambdaLR"])
def test_nor_do_other_ways_to_train(way, schedule):
    training = Training("cnn", "adamw", ampkit.float16)
    options = {"OneCycleLR": {"max_lr": 0.1, "total_steps": 9}, "LambdaLR": {"lr_lambda": lambda n: 0.9**n}}[schedule]
    training.schedule = getattr(optim.lr_scheduler, schedule)(training.optimizer, **options)
    way(training)
    before = emulated_cupy.waits[0]
    way(training), way(training)
    assert emulated_cupy.waits[0] == before


def test_a_step_that_overflows_is_skipped_without_a_wait_and_all_that_follows_steps_with_it():
    training = Training("mlp", "adamw", ampkit.float16, growth_interval=2)
    training.step()
    kept = [p.detach().numpy(force=True).copy() for p in training.model.parameters()]
    rate = training.schedule.get_last_lr()
    before = emulated_cupy.waits[0]
    result = training.step(factor=float("inf"))[2]
    assert emulated_cupy.waits[0] == before
    assert result.skipped and training.scaler.get_scale() == 2.0**15
    assert training.schedule.get_last_lr() == rate
    for parameter, was in zip(training.model.parameters(), kept, strict=True):
        np.testing.assert_array_equal(parameter.detach().numpy(force=True), was)
    training.step(), training.step()
    assert training.scaler.get_scale() == 2.0**16 and training.schedule.last_epoch == 3


def test_a_scale_that_collapses_stops_the_training_in_a_later_step():
    training = Training("mlp", "sgd", ampkit.float16, init_scale=4.0, min_scale=2.0)
    training.step()
    training.step(factor=float("inf"))
    training.step(factor=float("inf"))
    with pytest.raises(ampkit.ScaleCollapseError):
        [training.step(factor=float("inf")) for _ in range(2)]


def of_pixels(rng):
    return nn.Conv2d(2, 4, 1), rng.standard_normal((2, 2, 3, 3)).astype(np.float32), rng.integers(0, 4, (2, 3, 3))


def of_letters(rng):
    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.LogSoftmax(1))
    letters = np.array([5, 4]), np.array([[1, 2], [3, 0]]), np.array([2, 1])
    return model, rng.standard_normal((2, 2, 5)).astype(np.float32), *letters


@pytest.mark.parametrize(("objective", "of"), [(objectives.PIXEL_CLASSES, of_pixels), (objectives.LETTERS, of_letters)])
def test_an_evaluation_waits_for_no_batch_before_its_end(objective, of):
    model, *batch = of(np.random.default_rng(0))
    model, batch = model.to("cuda"), [ampkit.tensor(part, device="cuda") for part in batch]
    metric = objective.metric()
    with ampkit.no_grad():
        metric.update(*objective.metric_inputs(model(batch[0]), *batch[1:]))
        before = emulated_cupy.waits[0]
        for _ in range(2):
            metric.update(*objective.metric_inputs(model(batch[0]), *batch[1:]))
    assert emulated_cupy.waits[0] == before
    assert np.isfinite(metric.compute().val_loss)


def computed():
    """Layers whose weights are computed of others, in all four ways."""
    old, new = nn.utils, nn.utils.parametrizations
    layers = [norm(nn.Linear(8, 8)) for norm in (old.weight_norm, old.spectral_norm, new.weight_norm)]
    return nn.Sequential(*layers, nn.GELU(), new.spectral_norm(nn.Linear(8, 5)))


def test_nor_does_one_whose_weights_are_computed(monkeypatch):
    monkeypatch.setitem(MODELS, "computed", (computed, MODELS["mlp"][1]))
    training = Training("computed", "adamw", ampkit.float16)
    training.step()
    before = emulated_cupy.waits[0]
    losses = [training.step()[0] for _ in range(2)]
    assert emulated_cupy.waits[0] == before
    assert all(np.isfinite(loss.item()) for loss in losses)


@pytest.mark.parametrize("dtype", [ampkit.float16, ampkit.bfloat16], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_nor_does_one_whose_ranges_are_counted(model, dtype):
    training = Training(model, "adamw", dtype)
    ranges = ampkit.debug.Ranges(training.model, every=1)
    with ranges.step():
        training.step()
    before = emulated_cupy.waits[0]
    for _ in range(2):
        with ranges.step():
            training.step()
    assert emulated_cupy.waits[0] == before
    found = {layer.path: layer for layer in ranges.ranges() if layer.of == "parameter gradient"}
    assert len(found) == len([*training.model.parameters()]) and len(ranges.samples) == 3
    uses = [found[name].count / p.numel() for name, p in training.model.named_parameters()]
    assert set(uses) == ({3, 6} if model == "gpt" else {3})  # the embedding is the head, too
