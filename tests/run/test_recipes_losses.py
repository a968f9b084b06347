"""Every recipe's first 10 losses, on a tiny fixed fixture and in each precision, by a golden file.

`python tests/run/test_recipes_losses.py` writes the file anew: look at its difference before it is kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ampkit import config
from ampkit.backends.cpu import threads
from ampkit.run.loop import StepRow, fit

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "losses.json"
PRECISIONS = ("float32", "bfloat16", "float16")
STEPS = 10

# Relative to the loss. Sums are taken in another order on other machines, by other threads and without oneDNN, so a
# float32 loss differs in its last bits, and a 16-bit value now and then by a whole unit. Measured between oneDNN with
# AVX-512, all with AVX2 alone, and the references: at most 2e-7, 3e-4 and 2e-4 where nothing is normalized
# over a few values; where it is, the norms amplify it: 3e-6, 2e-2 and 2e-3.
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-3, "float16": 1e-3}
AMPLIFIED = {
    "cifar10_resnet18",
    "finetune_images",
    "synthetic/deeplabv3_resnet50",
    "synthetic/efficientnet_b0",
    "synthetic/fcn_resnet50",
}
AMPLIFIED |= {"synthetic/efficientnet_b4", "synthetic/resnet18", "synthetic/resnet50"}
AMPLIFICATION = {"float32": 10, "bfloat16": 25, "float16": 10}

# What makes each recipe small: narrower models, smaller images and batches, not another kind of anything. Learning
# rates are low where large steps on a few images would amplify a rounding to another run.
_IMAGES = "data.shape=[3,32,32] data.count=48 data.batch_size=4"
_MAPS = f"model.width=4 model.depth=0.1 optimizer.lr=1e-4 {_IMAGES}"
SMALL = {
    "cifar10_resnet18": "model.width=4 model.depth=0.5 train.epochs=19 optimizer.lr=1e-4 "
    "data={name='images',folder='FOLDER',held_out='FOLDER',shape=[3,16,16],classes=2,batch_size=8,crop=4,flip=true}",
    "digits_cnn": "model.width=4 data.batch_size=8 optimizer.lr=1e-3",
    "digits_mlp": "model.hidden=[16,16] data.batch_size=8",
    "finetune_images": "model.width=4 model.stem=cifar train.epochs=19 optimizer.lr=1e-4 data.folder=FOLDER "
    "data.shape=[3,16,16] data.resize=16 data.random_resized_crop= data.batch_size=8 data.workers=0",
    "mnist_lenet": "data.batch_size=4 train.epochs=9 data.download=false data.folder=FOLDER",
    "synthetic/alexnet": "model.hidden=8 data.shape=[3,63,63] data.count=48 data.batch_size=2 optimizer.lr=1e-5",
    "synthetic/bert": "model.vocab_size=32 model.hidden_size=16 model.num_hidden_layers=1 model.num_attention_heads=2 "
    "model.intermediate_size=32 data.length=16 data.count=48 data.batch_size=4",
    "synthetic/convmixer": f"model.dim=8 model.depth=2 {_IMAGES}",
    "synthetic/deeplabv3_resnet50": _MAPS,
    "synthetic/efficientnet_b0": f"model.width=0.25 model.depth=0.1 optimizer.lr=1e-5 {_IMAGES} data.batch_size=16",
    "synthetic/efficientnet_b4": f"model.width=0.25 model.depth=0.1 optimizer.lr=1e-5 {_IMAGES} data.batch_size=16",
    "synthetic/fcn_resnet50": _MAPS,
    "synthetic/gpt": "model.n_layer=1 model.n_embd=16 model.block_size=16 data.count=48 data.batch_size=4",
    "synthetic/lenet5": "data.count=48 data.batch_size=4",
    "synthetic/resnet18": f"model.width=4 model.depth=0.5 optimizer.lr=1e-4 {_IMAGES}",
    "synthetic/resnet50": f"model.stem=cifar {_MAPS} data.shape=[3,16,16]",
    "synthetic/vgg16": f"model.widths=[4,4,8,8,8] model.hidden=32 {_IMAGES}",
    "synthetic/vit": "model.num_layers=1 model.hidden_dim=16 model.mlp_dim=16 model.num_heads=2 model.patch_size=8 "
    + _IMAGES,
    "synthetic/wav2letter": "model.width=8 model.wide=8 model.num_features=4 data.length=64 data.count=48 "
    "data.batch_size=2 optimizer.lr=1e-4",
    "text_gpt": f"model.n_layer=1 model.n_embd=16 model.block_size=16 data.batch_size=2 data.path={ROOT / 'LICENSE'}",
}


def write_digits(folder):
    """MNIST's four files, with 24 images of noise around a digit of its own each."""
    draw = np.random.RandomState(0)
    folder.mkdir()
    for part in ("train", "t10k"):
        labels = draw.randint(0, 10, 24).astype(np.uint8)
        images = (draw.randint(0, 128, (24, 28, 28)) + 12 * labels[:, None, None]).astype(np.uint8)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(head + values.tobytes())


def write_pictures(folder):
    """Two folders of 12 images of 16 x 16 pixels."""
    draw = np.random.RandomState(0)
    for brightness, name in enumerate(("dark", "light")):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            image = draw.randint(0, 128, (16, 16, 3)) + 100 * brightness
            np.save(folder / name / f"{number:02}.npy", image.astype(np.uint8))


WRITERS = {"mnist_lenet": write_digits, "cifar10_resnet18": write_pictures, "finetune_images": write_pictures}


def small(name, dtype, folder):
    """The recipe on its fixture, which it finds in `folder`."""
    place = folder / name
    if name in WRITERS and not place.exists():
        WRITERS[name](place)
    changes = ["train.log_every=1", "train.eval_every=", "train.bench_steps=", f"amp.dtype={dtype}"]
    if threads.can_set_num_threads():  # products this small gain nothing from a second one, and wait for it
        changes.append("train.threads=1")
    changes += [change.replace("FOLDER", str(place)) for change in SMALL[name].split()]
    return config.load(ROOT / "recipes" / f"{name}.toml", changes)


def losses(recipe):
    rows = (row.loss for row in fit(recipe) if isinstance(row, StepRow))
    return list(islice(rows, STEPS))


def recipes():
    return sorted(
        str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in (ROOT / "recipes").rglob("*.toml")
    )


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


def test_every_recipe_has_its_losses_in_the_golden_file(golden):
    assert list(golden) == recipes() == sorted(SMALL)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("name", recipes())
def test_the_first_losses_of_a_recipe_are_those_of_the_golden_file(name, dtype, golden, fixtures):
    found = losses(small(name, dtype, fixtures))
    tolerance = TOLERANCE[dtype] * (AMPLIFICATION[dtype] if name in AMPLIFIED else 1)
    assert found == pytest.approx(golden[name][dtype], rel=tolerance)


def write():
    with tempfile.TemporaryDirectory() as folder:
        found = {name: {d: losses(small(name, d, Path(folder))) for d in PRECISIONS} for name in recipes()}
    GOLDEN.write_text(text(found))


def text(found):
    """A line for each recipe and precision."""
    rows = [(name, dtype, [float(f"{x:.8g}") for x in row]) for name, r in found.items() for dtype, row in r.items()]
    parts = {name: ",\n".join(f'  "{d}": {row}' for n, d, row in rows if n == name) for name in found}
    return "{\n" + ",\n".join(f' "{name}": {{\n{part}\n }}' for name, part in parts.items()) + "\n}\n"


if __name__ == "__main__":
    sys.exit(write())
