"""Recipes on oneDNN: large arrays are not left to references, in float32 nothing that they ask for is refused, on any
machine, and they give the same bits."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from ampkit import config
from ampkit.backends.cpu import caching_allocator
from ampkit.backends.cpu.native import library as native
from ampkit.backends.cpu.onednn import primitive
from ampkit.backends.cpu.onednn.library import OneDNNError, isa, library, unavailable_reason
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.core.dispatch import Primitive
from ampkit.run.loop import StepRow, fit

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
    pytest.mark.skipif(native.library() is None, reason=native.unavailable_reason()),
]
RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.mark.parametrize(
    ("name", "more"),
    [("digits_cnn", []), ("digits_mlp", []), ("text_gpt", ["train.eval_batches=1", "schedule.warmup=0"])],
)
def test_nothing_that_a_recipe_asks_for_is_refused(name, more, monkeypatch):
    refused, made, make = [], [], primitive.Call.__init__

    def watched(self, create, *arguments, **options):
        try:
            make(self, create, *arguments, **options)
        except OneDNNError as error:
            refused.append(f"{create}: {error}")
            raise
        made.append(create)

    monkeypatch.setattr(primitive.Call, "__init__", watched)
    monkeypatch.setattr(primitive._thread, "calls", {})
    list(fit(config.load(RECIPES / f"{name}.toml", ["train.epochs=", "train.steps=2", "train.eval_every=", *more])))
    assert not refused
    kinds = {
        "digits_cnn": {"convolution_forward", "convolution_backward_weights"},
        "digits_mlp": {"matmul"},
        "text_gpt": {"matmul"},
    }
    assert kinds[name] <= set(made)


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
            caching_allocator._allocator.clear()  # other memory
    finally:
        set_num_threads(before)
    assert found[0] == found[1]


LARGE = 1 << 16  # elements, from which on a reference shows in the time of a step
_BATCH = "data.count=16 data.batch_size=4"
_DEEP = f"model.depth=0.1 {_BATCH}"
_IMAGES = "data={{name='synthetic_images',shape={},classes=10,count={},batch_size={}}}"
# What makes a step cheap: few samples, and few layers of one kind. Widths and sizes of images stay.
CHEAP = {
    "cifar10_resnet18": _IMAGES.format("[3,32,32]", 16, 4) + " model.depth=0.5",
    "digits_cnn": "",
    "digits_mlp": "",
    "finetune_images": _IMAGES.format("[3,64,64]", 16, 4),
    "mnist_lenet": _IMAGES.format("[1,28,28]", 256, 128),
    "synthetic/alexnet": f"model.hidden=256 {_BATCH}",
    "synthetic/bert": "model.num_hidden_layers=1 data.count=16 data.batch_size=8",
    "synthetic/convmixer": f"model.depth=1 {_BATCH}",
    "synthetic/deeplabv3_resnet50": _DEEP,
    "synthetic/efficientnet_b0": _DEEP,
    "synthetic/efficientnet_b4": _DEEP,
    "synthetic/fcn_resnet50": _DEEP,
    "synthetic/gpt": "model.n_layer=1 data.count=16 data.batch_size=8",
    "synthetic/lenet5": "data.count=256",
    "synthetic/resnet18": f"model.depth=0.5 {_BATCH}",
    "synthetic/resnet50": _DEEP,
    "synthetic/vgg16": f"model.hidden=64 {_BATCH}",
    "synthetic/vit": f"model.num_layers=1 {_BATCH}",
    "synthetic/wav2letter": "data.count=32 data.batch_size=16",
    "text_gpt": f"model.n_layer=1 data.path={RECIPES.parent / 'LICENSE'}",
}


def test_every_recipe_is_made_cheap_here():
    assert set(CHEAP) == {str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.toml")}


def _arrays(items):
    for item in items:
        if isinstance(item, np.ndarray):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from _arrays(item)


@pytest.fixture
def references(monkeypatch):
    """The names of the references that wrote to memory of their own when given large arrays."""
    found = set()

    def watched(name, run):
        def reference(*args, **params):
            out, given = run(*args, **params), list(_arrays(args))
            viewed = [any(np.may_share_memory(made, a) for a in given) for made in _arrays([out])]
            if next(_arrays(args[:1]), np.empty(0)).size >= LARGE and not (viewed and all(viewed)):
                found.add(name)
            return out

        return reference

    gc.unfreeze()  # tests/conftest.py freezes what exists before the first test
    primitives = [each for each in gc.get_objects() if type(each) is Primitive]
    gc.freeze()
    for each in primitives:
        monkeypatch.setattr(each.reference, "run", watched(each.name, each.reference.run))
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CHEAP)
def test_no_large_array_of_a_recipe_is_left_to_a_reference(name, dtype, references):
    if "AVX-512" not in isa() or (dtype == "float16" and "float16" not in isa()):
        pytest.skip(f"oneDNN has no fast code in {dtype} on {isa()}")
    more = ["train.epochs=", "train.steps=1", "train.eval_every=", "schedule={name='constant'}", "amp.init_scale=16"]
    recipe = config.load(RECIPES / f"{name}.toml", [*more, f"amp.dtype={dtype}", *CHEAP[name].split()])
    next(iter(fit(recipe)))
    assert references == set()
