"""Does `debug.lab` find the layer that formats spoil, and do formats train in the order that it predicts?

    python -m tests.bench.planted_layers [--models mlp cnn gpt bert vit] [--seeds 6] [--steps 100]

In each of five small models one layer is made sensitive, and the model computes the same but for roundings: either its
weight has a large constant added, of which the product is subtracted behind it in float32, or some features are 256
times as large and their weights that much smaller. The laboratory measures the model in the middle of a training in
bfloat16. Then bfloat16 and every format train from the same seeds on the same batches. The table has the predicted
error of the loss, and the mean over the seeds of the relative difference of the mean training loss from bfloat16's,
with its standard error. Training tells two formats apart where the differences of all seeds between them have a mean
above three standard errors, and the prediction does where one error is a tenth above the other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np

import ampkit
from ampkit import Policy, autocast, debug, models, nn, ops, optim
from ampkit.data import digits
from ampkit.debug import Laboratory

Batch = tuple[Any, Any]


class Cancelled(nn.Module):
    """A linear layer whose weight has a large constant of rank 1 added, and whose output has its product subtracted."""

    def __init__(self, linear: nn.Linear, strength: float):
        super().__init__()
        draw, shape = np.random.default_rng(1), linear.weight.shape
        constant = np.outer(draw.standard_normal(shape[0]), draw.standard_normal(shape[1]))
        constant *= strength * float(linear.weight.detach().numpy().std())
        self.linear = linear
        self.register_buffer("constant", ampkit.tensor(constant.astype("f")))
        with ampkit.no_grad():
            linear.weight.add_(self.constant)

    def forward(self, input: Any) -> Any:
        out = self.linear(input).float()
        with autocast(enabled=False):
            return out - ops.linear(input.float(), self.constant)


class Outliers(nn.Module):
    """A linear layer in which each sixteenth feature is `strength` times as large, its weights that much smaller."""

    def __init__(self, linear: nn.Linear, strength: float):
        super().__init__()
        features = np.ones(linear.weight.shape[1], np.float32)
        features[::16] = strength
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("features", ampkit.tensor(features))

    def forward(self, input: Any) -> Any:
        return ops.linear(input.float() * self.features, self.weight / self.features, self.bias)


class Task(NamedTuple):
    """A model to make, the path of its planted layer and what it becomes, its loss, and its batches by a generator."""

    make: Callable[[], nn.Module]
    path: str
    plant: Callable[[nn.Linear], nn.Module]
    loss: Callable[..., Any]
    batches: Callable[[np.random.Generator], Iterator[Batch]]


def images(draw: np.random.Generator) -> Iterator[Batch]:
    """Digits of which three in ten have a random label, so that the loss does not end at 0."""
    every, labels = digits.load("train")
    while True:
        chosen = draw.integers(len(labels), size=64)
        noise = np.where(draw.random(64) < 0.3, draw.integers(10, size=64), labels[chosen])
        yield ampkit.tensor(every[chosen]), ampkit.tensor(noise)


_TOKENS, _LENGTH, _MASK = 32, 32, 31
_CHAIN = np.cumsum(np.random.default_rng(2).dirichlet([0.2] * (_TOKENS - 1), _TOKENS - 1), -1)  # by the token before


def _sequences(draw: np.random.Generator) -> Any:
    # [16, 33] of a Markov chain, the same for all draws.
    found = draw.integers(_TOKENS - 1, size=(16, _LENGTH + 1))
    for at in range(1, _LENGTH + 1):
        found[:, at] = (_CHAIN[found[:, at - 1]] < draw.random((16, 1))).sum(-1).clip(max=_TOKENS - 2)
    return found


def text(draw: np.random.Generator) -> Iterator[Batch]:
    """Tokens and those that come next."""
    while True:
        found = _sequences(draw)
        yield ampkit.tensor(found[:, :-1]), ampkit.tensor(found[:, 1:])


def masked(draw: np.random.Generator) -> Iterator[Batch]:
    """Tokens of which a quarter is masked, and the masked ones, -100 elsewhere."""
    while True:
        found = _sequences(draw)[:, :-1]
        hidden = draw.random(found.shape) < 0.25
        yield ampkit.tensor(np.where(hidden, _MASK, found)), ampkit.tensor(np.where(hidden, found, -100))


def classes(model: Any, x: Any, t: Any) -> Any:
    """The mean cross entropy of class scores [..., C]."""
    scores = model(x)
    return ops.cross_entropy(scores.reshape(-1, scores.shape[-1]), t.reshape(-1))


def _mlp() -> nn.Module:
    hidden = [each for _ in range(2) for each in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


def _cnn() -> nn.Module:
    features = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _bert() -> nn.Module:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return models.bert(
        "tiny", vocab_size=_TOKENS, max_position_embeddings=_LENGTH, initializer_range=0.1, **sizes, **dropout
    )


def _gpt() -> nn.Module:
    return models.GPT(_TOKENS, _LENGTH, n_layer=2, n_head=2, n_embd=64)


def _vit() -> nn.Module:
    return models.vit(8, 2, 2, 2, 64, 128, in_channels=1)


def _cancelled(linear: nn.Linear) -> nn.Module:
    return Cancelled(linear, 16.0)


def _cancelled_more(linear: nn.Linear) -> nn.Module:
    return Cancelled(linear, 64.0)


def _outliers(linear: nn.Linear) -> nn.Module:
    return Outliers(linear, 256.0)


TASKS = {
    "mlp": Task(_mlp, "3", _cancelled, classes, images),
    "cnn": Task(_cnn, "6", _outliers, classes, images),
    "gpt": Task(_gpt, "transformer.h.0.attn.c_attn", _cancelled, classes, text),
    "bert": Task(_bert, "bert.encoder.layer.1.output.dense", _cancelled_more, classes, masked),
    "vit": Task(_vit, "encoder.layers.encoder_layer_1.mlp.3", _cancelled, classes, images),
}


def planted(task: Task, seed: int) -> nn.Module:
    """The model with its planted layer, of the initial weights of `seed`."""
    ampkit.manual_seed(seed)
    model = task.make()
    owner, _, name = task.path.rpartition(".")
    parent = model.get_submodule(owner)
    setattr(parent, name, task.plant(getattr(parent, name)))
    return model


def train(task: Task, seed: int, policy: Policy, steps: int) -> tuple[nn.Module, list[float]]:
    """The model after `steps` steps of AdamW, and their losses."""
    model = planted(task, seed)
    optimizer = optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for batch in islice(task.batches(np.random.default_rng(seed)), steps):
        optimizer.zero_grad()
        with autocast(policy=policy):
            loss = task.loss(model, *batch)
        loss.backward()
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def measured(task: Task, formats: Sequence[str], seeds: int, steps: int) -> dict[str, Any]:
    """By format, for each seed the relative difference of the mean training loss from bfloat16's."""
    policies = {name: Policy("bfloat16", recipe=name) for name in formats}
    found: dict[str, list[float]] = {name: [] for name in formats}
    for seed in range(seeds):
        base = np.mean(train(task, seed, Policy("bfloat16"), steps)[1])
        for name, policy in policies.items():
            found[name].append(float(np.mean(train(task, seed, policy, steps)[1]) / base - 1))
    return {name: np.array(values) for name, values in found.items()}


def laboratory(task: Task, formats: Sequence[str], steps: int) -> Laboratory:
    """What `debug.lab` measures in the middle of a training of another seed."""
    model, _ = train(task, 1000, Policy("bfloat16"), steps // 2)
    batches = list(islice(task.batches(np.random.default_rng(2000)), 4))
    return debug.lab(model, batches, task.loss, formats=formats)


def told_apart(differences: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of formats, the better one first, whose losses differ by more than three standard errors."""
    found = []
    for a, b in combinations(differences, 2):
        paired = differences[b] - differences[a]
        if abs(paired.mean()) > 3 * paired.std(ddof=1) / len(paired) ** 0.5:
            found.append((a, b) if paired.mean() > 0 else (b, a))
    return found


def _differ(a: float, b: float) -> bool:
    return max(a, b) > 1.1 * min(a, b)


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print a table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--formats", nargs="+", default=["current", "rowwise", "mxfp8", "nvfp4", "int8"])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(given)
    ampkit.set_num_threads(1)
    for name in options.models:
        start, task = time.perf_counter(), TASKS[name]
        found = laboratory(task, options.formats, options.steps)
        trained = measured(task, options.formats, options.seeds, options.steps)
        predicted = {each.recipe: each.sensitivity for each in found.formats}
        worst = found.ranking()[-1]
        first = found.sensitive(worst)[0]
        verdict = "found" if first in (task.path, f"{task.path}.linear") else f"not found: {first}"
        print(f"{name}: planted {task.path}, {verdict}; {time.perf_counter() - start:.0f} s")
        print(f"  {'':12}{'predicted':>10}{'of the loss':>13}{'gradient':>10}{'trained':>10}")
        for each in found.ranking():
            values, by = trained[each], predicted[each]
            spread = values.std(ddof=1) / len(values) ** 0.5
            errors = f"{by.error:10.2%}{by.loss:13.2%}{by.gradient:10.2f}"
            print(f"  {each:12}{errors}{values.mean():+10.2%} +- {spread:.2%}", flush=True)
        apart = [pair for pair in told_apart(trained) if _differ(*(predicted[each].error for each in pair))]
        right = sum(predicted[a].error < predicted[b].error for a, b in apart)
        print(
            f"  {right} of {len(apart)} pairs that training and prediction tell apart are in the predicted order",
            flush=True,
        )


if __name__ == "__main__":
    main()
