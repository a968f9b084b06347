"""The summary of a recipe: its layers and what a step of them takes."""

from __future__ import annotations

import pytest

from ampkit.cli.summary import in_words
from ampkit.run.summary import summarize

from .test_checkpoint import recipe

pytestmark = pytest.mark.cpu


def test_layers_parameters_and_operations_are_those_of_the_model():
    found = summarize(recipe("text", "model.n_layer=2", "train.accumulate=3"), ["float32", "float16"])
    batch, context, width, vocabulary = 8, 8, 16, 256
    layers = {layer.path: layer for layer in found.layers}
    fc = layers["transformer.h.*.mlp.c_fc"]
    assert (fc.kind, fc.number, fc.parameters) == ("Linear", 2, 2 * (width * 4 * width + 4 * width))
    assert layers["lm_head"].parameters == 0  # shared with the embedding
    assert layers["transformer.wte"].parameters == vocabulary * width
    assert found.parameters == sum(layer.parameters for layer in found.layers)
    rows = batch * context
    products = 2 * rows * (vocabulary * width + 2 * 12 * width * width) + 2 * 4 * rows * context * width
    assert found.forward == 3 * products == 3 * sum(layer.flops for layer in found.layers)
    assert found.backward > 1.9 * found.forward
    assert (found.per_step, found.unit) == (3 * rows, "tokens")
    wide, low = found.memory["float32"], found.memory["float16"]
    assert wide["parameters"] == low["parameters"]
    assert 4 * found.parameters <= wide["parameters"] < 4.5 * found.parameters  # aligned in flat memory
    assert wide["moments"] == 2 * wide["parameters"]
    assert low["16-bit copies of weights"] > 0
    kept = [sum(size for name, size in held.items() if name.startswith("kept")) for held in (wide, low)]
    assert 0.4 * kept[0] < kept[1] < 0.8 * kept[0]


def test_modules_that_differ_are_rows_of_their_own():
    found = summarize(recipe("mlp", "model.hidden=[8, 8, 8, 5]"), ["float32"])
    linear = [layer for layer in found.layers if layer.kind == "Linear"]
    sizes = [64 * 8 + 8, 2 * (8 * 8 + 8), 8 * 5 + 5, 5 * 10 + 10]
    numbers = [("1", 1), ("{4,7}", 2), ("10", 1), ("13", 1)]
    assert [(layer.path, layer.number) for layer in linear] == numbers
    assert [layer.parameters for layer in linear] == sizes
    rows = recipe("mlp").data.batch_size
    assert [layer.flops for layer in linear] == [2 * rows * n for n in (64 * 8, 2 * 8 * 8, 8 * 5, 5 * 10)]


def test_layers_that_run_as_one_fused_op_have_operations_of_their_own():
    found = {layer.path: layer.flops for layer in summarize(recipe("text", "model.n_layer=2"), ["float32"]).layers}
    assert found["transformer.h.*.mlp.c_fc"] == found["transformer.h.*.mlp.c_proj"] == 2 * 2 * 8 * 8 * 16 * 64


def test_a_model_that_computes_outside_of_its_layers_is_counted_too():
    found = summarize(recipe("cnn"), ["float32"])
    assert found.forward == sum(layer.flops for layer in found.layers)
    assert all(layer.parameters or layer.flops for layer in found.layers)


@pytest.mark.parametrize(
    ("operations", "words"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (1950, "1.95 kFLOP"), (3_628_146_688, "3.63 GFLOP"), (5e15, "5e+03 TFLOP")],
)
def test_operations_in_words(operations, words):
    assert in_words(operations) == words
