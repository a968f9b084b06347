"""What the recipes ask of oneDNN in float32 it has fast code for, on every machine: nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampkit import config
from ampkit.backends.cpu import onednn
from ampkit.backends.cpu.dnnl import OneDNNError, library, trouble
from ampkit.train import fit

pytestmark = pytest.mark.skipif(library() is None, reason=trouble())
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    ("name", "more"),
    [("digits_cnn", []), ("digits_mlp", []), ("text_gpt", ["train.eval_batches=1", "schedule.warmup=0"])],
)
def test_nothing_that_a_recipe_asks_for_is_refused(name, more, monkeypatch):
    refused, made, make = [], [], onednn.Call.__init__

    def watched(self, create, *arguments):
        try:
            make(self, create, *arguments)
        except OneDNNError as error:
            refused.append(f"{create}: {error}")
            raise
        made.append(create)

    monkeypatch.setattr(onednn.Call, "__init__", watched)
    monkeypatch.setattr(onednn._own, "calls", {})
    list(fit(config.load(RECIPES / f"{name}.toml", ["train.epochs=", "train.steps=2", "train.eval_every=", *more])))
    assert not refused
    kinds = {
        "digits_cnn": {"convolution_forward", "convolution_backward_weights", "batch_normalization_backward"},
        "digits_mlp": {"matmul"},
        "text_gpt": {"matmul", "layer_normalization_backward", "softmax_backward", "eltwise_backward"},
    }
    assert {"binary", *kinds[name]} <= set(made)  # binary: Adam's update
