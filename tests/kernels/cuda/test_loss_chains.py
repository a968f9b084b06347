"""cross_entropy in a recorded step computes its scores where it loads them, and its gradient on, with eager bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import emulator
from kernels.cuda.test_chains import bits, names, same, tensors

import ampkit
from ampkit import nn, ops, optim
from ampkit.base.errors import RangeError

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OPTIONS = [
    {}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.2}, {"ignore_index": 1},
    {"weight": True, "label_smoothing": 0.3, "ignore_index": 0},
]  # fmt: skip


def labels(rows: int, classes: int) -> Any:
    return ampkit.tensor(np.random.default_rng(1).integers(0, classes, rows), device="cuda")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((5, 40), "bfloat16"),
        ((3, 33), "float16"),
        ((4, 1001), "bfloat16"),
        ((2, 5000), "bfloat16"),
        ((3, 7), "float32"),
    ],
    ids=str,
)
def test_scaled_and_biased_scores_their_cast_and_the_loss_are_one_kernel(shape, dtype, options, device):
    options = dict(options)
    weight = tensors(1, ampkit.float32, shape[-1:])[0].detach().abs() if options.pop("weight", False) else None

    def step(logits: Any, bias: Any, target: Any) -> Any:
        loss = ops.cross_entropy((logits * 0.37 + bias).float(), target, weight, **options)
        grads = ampkit.grad(loss, (logits, bias), ampkit.ones_like(loss) * 3.0)
        return loss.detach(), *grads, (grads[0] * 2.0).detach()

    dtype = getattr(ampkit, dtype)
    given = [*tensors(1, dtype, shape), *tensors(1, dtype, shape[-1:])]
    report = same(step, [*given, labels(*shape)])
    (forward,) = [each for each in report.chains if "CrossEntropy" in each.names]
    cast = () if dtype == ampkit.float32 else ("Copy",)
    assert forward.names == ("Mul", "Add", *cast, "CrossEntropy")
    (backward,) = [each for each in report.chains if "CrossEntropy backward" in each.names]
    place = backward.names.index("CrossEntropy backward")
    assert backward.names[:place] == ("Mul", "Add", *cast) and backward.names[place + 1 :][: len(cast)] == cast
    assert backward.names[place + 1 + len(cast) :] == ("Mul backward",)  # by which the scores are scaled
    if shape[-1] == 5000:
        assert forward.after < 5.5 * np.prod(shape)  # bytes: no scores in float32


def test_scores_that_are_capped_and_masked_are_not_stored(device):
    def trained(compiled: bool) -> tuple[list[bytes], Any]:
        ampkit.manual_seed(0)
        head = nn.Linear(16, 104, bias=False).to("cuda")
        optimizer = optim.SGD(head.parameters(), lr=0.1)
        mask = ampkit.tensor(np.arange(104) > 100, device="cuda")

        def scores_of(x: Any) -> Any:
            return (ops.tanh(head(x) * 0.1) * 10.0).masked_fill(mask, float("-inf"))

        def step(x: Any, target: Any) -> Any:
            with ampkit.autocast("cuda", dtype=ampkit.bfloat16):
                loss = ops.cross_entropy(scores_of(x).flatten(0, 1), target.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = ampkit.compile(step, warmup=1, fullgraph=True) if compiled else step
        x, target = tensors(1, ampkit.float32, (2, 6, 16))[0].detach(), labels(12, 100).reshape(2, 6)
        found = [each for _ in range(4) for each in bits(run(x, target))]
        return [*found, *bits(list(head.parameters()))], run.report() if compiled else None

    (found, report), (expected, _) = trained(True), trained(False)
    assert found == expected
    (backward,) = [each for each in names(report) if "CrossEntropy backward" in each]
    assert "Tanh backward" in backward


@pytest.mark.parametrize("dropped", [False, True], ids=["returned", "dropped"])
def test_a_label_out_of_range_is_named_by_a_later_launch(dropped, device):
    def step(logits: Any, target: Any) -> Any:
        loss = ops.cross_entropy(logits * 2.0, target)
        return logits + 1.0 if dropped else loss

    compiled, (logits,) = ampkit.compile(step, warmup=1), tensors(1, ampkit.float32, (3, 8))
    with ampkit.no_grad():
        for _ in range(3):
            compiled(logits.detach(), labels(3, 8))
        assert np.isnan(compiled(logits.detach(), labels(3, 8) + 8).numpy()).all() != dropped
        with pytest.raises(RangeError, match="label"):
            device.synchronize()


def test_losses_over_places_and_of_scores_that_others_read(device):
    def step(x: Any, y: Any, target: Any) -> Any:
        scores = x * y
        kept = scores + 1.0
        of_places = ops.cross_entropy(scores.reshape(4, 6, 40), target.reshape(4, 40))
        loss = ops.cross_entropy(kept, target[:24]) + of_places
        grads = ampkit.grad(loss, (x, y))
        return loss.detach(), kept.detach(), kept.sum(-1).detach(), *grads

    target = ampkit.tensor(np.random.default_rng(1).integers(0, 6, 160), device="cuda")
    same(step, [*tensors(2, ampkit.float32, (24, 40)), target])
