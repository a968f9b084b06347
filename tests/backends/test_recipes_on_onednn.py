"""Recipes on oneDNN: in float32 nothing that they ask for is refused, on any machine, and they give the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampkit import config
from ampkit.backends.cpu import onednn, rooms
from ampkit.backends.cpu.dnnl import OneDNNError, isa, library, trouble
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.train import StepRow, fit

pytestmark = pytest.mark.skipif(library() is None, reason=trouble())
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    ("name", "more"),
    [("digits_cnn", []), ("digits_mlp", []), ("text_gpt", ["train.eval_batches=1", "schedule.warmup=0"])],
)
def test_nothing_that_a_recipe_asks_for_is_refused(name, more, monkeypatch):
    refused, made, make = [], [], onednn.Call.__init__

    def watched(self, create, *arguments, **options):
        try:
            make(self, create, *arguments, **options)
        except OneDNNError as error:
            refused.append(f"{create}: {error}")
            raise
        made.append(create)

    monkeypatch.setattr(onednn.Call, "__init__", watched)
    monkeypatch.setattr(onednn._own, "calls", {})
    list(fit(config.load(RECIPES / f"{name}.toml", ["train.epochs=", "train.steps=2", "train.eval_every=", *more])))
    known = set() if "AVX-512" in isa() or "AMX" in isa() else {"softmax_backward"}
    assert {each.partition(":")[0] for each in refused} <= known  # the slope of softmax is fast with AVX-512 alone
    kinds = {
        "digits_cnn": {"convolution_forward", "convolution_backward_weights", "batch_normalization_backward"},
        "digits_mlp": {"matmul"},
        "text_gpt": {"matmul", "layer_normalization_backward", "softmax_backward", "eltwise_backward"},
    }
    assert {"binary", *kinds[name]} - known <= set(made)  # binary: Adam's update


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["digits_cnn", "text_gpt"])
def test_the_same_seed_and_threads_give_the_same_bits(name, dtype):
    more = ["train.epochs=", "train.steps=3", "train.eval_every=", "train.eval_batches=1", "train.log_every=1"]
    more += [f"amp.dtype={dtype}", "train.grad_clip=0.5"]
    more += ["model.n_layer=2", "model.dropout=0.1", "schedule.warmup=0"] if name == "text_gpt" else []
    recipe, found = config.load(RECIPES / f"{name}.toml", more), []
    before = get_num_threads()
    try:
        set_num_threads(2)
        for _ in range(2):
            run = fit(recipe)
            losses = [row.loss for row in run if isinstance(row, StepRow)]
            found.append((losses, {k: v.numpy().tobytes() for k, v in run.model.state_dict().items()}))
            rooms._rooms.clear()  # other memory
    finally:
        set_num_threads(before)
    assert found[0] == found[1]
