"""Runs on a folder of images of one's own: split, checked, augmented, resumed, and used afterwards."""

from __future__ import annotations

import pickle
import re
from itertools import islice

import numpy as np
import pytest

from ampkit import config, load_run
from ampkit.base.errors import ConfigError, FileError
from ampkit.cli import main
from ampkit.data.augment import AugmentedImages
from ampkit.data.imagefolder import ImageFolder
from ampkit.data.transforms import RandomResizedCrop
from ampkit.run.input_pipeline import input_pipeline
from ampkit.run.loop import fit
from ampkit.run.ranks import Ranks
from ampkit.run.step import IMAGE_CLASSES
from ampkit.utils.data import DataLoader

pytestmark = pytest.mark.cpu
TOML = """
[model]
name = "mlp"
hidden = [8]

[data]
name = "images"
folder = "{folder}"
shape = [3, 6, 6]
batch_size = 5

[optimizer]
name = "adamw"
lr = 0.01

[train]
steps = 7
log_every = 1
eval_every = 4
threads = 1
"""
RANDOM = [
    "data.random_resized_crop=[0.3, 1.0]",
    "data.crop=1",
    "data.flip=true",
    "data.random_erasing=0.5",
    "data.mixup=0.4",
    "data.cutmix=1.0",
]
PILLOWS = ["data.auto_augment=RandAugment", "data.color_jitter=[0.2, 0.2, 0.2, 0.1]"]


@pytest.fixture
def recipe(tmp_path):
    """Makes a recipe on a folder of 24 images of several sizes, which it finds there."""
    draw = np.random.RandomState(0)
    for level, name in enumerate(("dark", "light")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            size = (6, 6) if number % 3 else (9 + number, 7)
            image = draw.randint(0, 100, (*size, 3)) + 150 * level
            np.save(tmp_path / "photos" / name / f"{number}.npy", image.astype(np.uint8))
    (tmp_path / "recipe.toml").write_text(TOML.format(folder=tmp_path / "photos"))
    return lambda *changes: config.load(tmp_path / "recipe.toml", changes)


def needs_pillow():
    pytest.importorskip("PIL.Image", reason="images of other sizes are resized by Pillow")


def losses(rows):
    return [(row.step, row.loss if hasattr(row, "loss") else row.val_loss) for row in rows]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_was_stopped_within_an_epoch_goes_on_bit_for_bit(workers, recipe, tmp_path):
    needs_pillow()
    made = recipe(*RANDOM, *PILLOWS, f"data.workers={workers}")
    whole = losses(fit(recipe(*RANDOM, *PILLOWS)))
    first = fit(made, tmp_path / "checkpoints")
    before = losses(islice(first, 3))
    first.stop()
    first.save()
    assert before + losses(fit(made, tmp_path / "checkpoints", resume=True)) == whole
    assert len({loss for _, loss in whole}) == len(whole)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_whose_data_raise_is_saved_and_goes_on_bit_for_bit(workers, recipe, tmp_path):
    needs_pillow()
    made = recipe(*RANDOM, f"data.workers={workers}", "train.eval_every=", "train.accumulate=2", "train.steps=4")
    whole = losses(fit(made))
    images = sorted((tmp_path / "photos").rglob("*.npy"))
    first = fit(made, tmp_path / "checkpoints")
    rows = list(islice(first, 2))
    away = [image.rename(image.with_suffix(".away")) for image in images]
    with pytest.raises(FileError, match="images: needs a file that can be read") as caught:
        rows.extend(first)  # those that workers had read already
    assert caught.value.__notes__ == [f"raised by the training data, after step {first.done}"]
    for image in away:
        image.rename(image.with_suffix(".npy"))
    second = fit(made, tmp_path / "checkpoints", resume=True)
    assert second.done == first.done > 0
    assert losses(rows) + losses(second) == whole


def test_a_run_does_not_go_on_with_other_files(recipe, tmp_path):
    needs_pillow()
    run = fit(recipe(), tmp_path / "checkpoints")
    list(run)
    image = tmp_path / "photos" / "dark" / "new.npy"
    np.save(image, np.zeros((6, 6, 3), np.uint8))
    with pytest.raises(ConfigError, match="resume: needs the files that the run was trained and evaluated on"):
        fit(recipe("train.steps=9"), tmp_path / "checkpoints", resume=True)
    image.unlink()
    assert fit(recipe("train.steps=9"), tmp_path / "checkpoints", resume=True).done == 7


def test_ranks_read_parts_of_the_same_batches(recipe):
    needs_pillow()
    made = recipe(*RANDOM[:4])
    whole = input_pipeline(made)
    parts = []
    for rank in range(2):
        ranks = Ranks()
        ranks.data_rank, ranks.data_size = rank, 2
        parts.append(input_pipeline(made, ranks))
    for batch, *own in zip(*(islice(each.train(2), 5) for each in (whole, *parts)), strict=True):
        joined = np.concatenate([images.numpy() for images, _, _ in own])
        assert np.array_equal(joined, batch[0].numpy())
    held_out = [np.concatenate([images.numpy() for images, _ in each.held_out()]) for each in (whole, *parts)]
    assert np.array_equal(np.concatenate(held_out[1:]), held_out[0])


def test_images_are_changed_alike_on_any_thread_and_in_a_copy_for_another_process(recipe, tmp_path):
    needs_pillow()
    found = ImageFolder(tmp_path / "photos", (3, 6, 6), transform=RandomResizedCrop(6))
    words = {"auto_augment": "TrivialAugmentWide", "random_erasing": 0.5, "mixup": 0.3, "num_classes": 2, "seed": 3}
    dataset = AugmentedImages(found, found.labels, color_jitter=(0.1, 0.1, 0.1, 0.1), **words)
    alone = [[part.numpy() for part in batch] for batch in DataLoader(dataset, 7)]
    loader = DataLoader(dataset, 7, num_workers=3)
    copied = DataLoader(pickle.loads(pickle.dumps(dataset)), 7)
    for expected, *batches in zip(alone, loader, copied, strict=True):
        for batch in batches:
            assert all(np.array_equal(part.numpy(), other) for part, other in zip(batch, expected, strict=True))
    assert not np.array_equal(next(iter(loader))[0].numpy(), alone[0][0])  # the next epoch
    assert alone[0][1].shape == (7, 2)


def test_the_loss_of_mixed_labels_is_that_of_their_classes_weighted():
    from ampkit import ops, tensor

    logits, first, second = ops.randn(6, 3), tensor([0, 1, 2, 0, 1, 2]), tensor([2, 2, 1, 0, 0, 1])
    mixed = 0.3 * ops.one_hot(first, 3).float() + 0.7 * ops.one_hot(second, 3).float()
    expected = 0.3 * IMAGE_CLASSES.loss(logits, first) + 0.7 * IMAGE_CLASSES.loss(logits, second)
    assert IMAGE_CLASSES.loss(logits, mixed).item() == pytest.approx(expected.item(), rel=1e-6)


def test_classes_are_counted_and_written_down(recipe, tmp_path):
    made = recipe()
    assert made.data.classes == 2
    assert "classes = 2" in config.dump(made)
    with pytest.raises(FileError, match="images: needs a folder with a folder of images per class, got '.*nowhere'"):
        fit(recipe(f"data.folder={tmp_path}/nowhere"))
    with pytest.raises(ConfigError, match="data.classes: needs 2, the folders in .*photos, got 3"):
        fit(recipe("data.classes=3"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.resize=5"], "data.resize: needs at least the 6 pixels that are cropped, got 5"),
        (["data.shape=[4, 6, 6]"], "data.shape: needs 1 or 3 channels, got 4"),
        (["data.shape=[1, 6, 6]", "data.normalize=imagenet"], "data.normalize: needs images of 3 channels"),
        (["data.normalize=measured", "data.mean=[0.5]"], "data.mean: needs no value beside normalize=measured"),
        (["data.ratio=[2.0, 1.0]"], r"data.ratio: needs the lower bound first, got \[2.0, 1.0\]"),
        (["data.random_resized_crop=[0.1, 1.5]"], r"data.random_resized_crop\[1\]: needs at most 1, got 1.5"),
        (["data.magnitude=31"], "data.magnitude: needs at most 30, got 31"),
        (["data.unreadable=ignore"], "data.unreadable: needs one of refuse, skip, got 'ignore'"),
    ],
)
def test_keys_that_do_not_fit_are_refused(changes, message, recipe):
    with pytest.raises(ConfigError, match=message):
        recipe(*changes)


def test_an_image_of_any_size_is_used_as_evaluations_see_it(recipe, tmp_path):
    needs_pillow()
    list(fit(recipe("data.resize=8", "data.normalize=measured"), tmp_path / "run"))
    found = load_run(tmp_path / "run")
    paths = [tmp_path / "photos" / "dark" / f"{number}.npy" for number in (3, 6, 1)]
    folder = ImageFolder(tmp_path / "photos", (3, 6, 6))
    pipeline = input_pipeline(recipe("data.resize=8", "data.normalize=measured", "data.batch_size=1"))
    seen = {images.numpy().tobytes() for images, _ in pipeline.held_out()}
    mine = {found.images([path]).numpy().tobytes() for path in folder.paths}
    assert len(seen) == 4
    assert seen < mine
    assert found.images(paths).shape == (3, 3, 6, 6)
    assert found.classes == ("dark", "light")
    assert (found.mean, found.std) == tuple(tuple(pipeline.about[name]) for name in ("mean", "std"))


def test_what_is_left_out_is_said_and_every_class_has_its_name(recipe, tmp_path, capsys):
    needs_pillow()
    recipe()
    (tmp_path / "photos" / "dark" / "0.npy").write_bytes(b"")
    command = ["train", str(tmp_path / "recipe.toml"), "--run-dir", str(tmp_path / "run")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "1 of 24 that cannot be read: dark/0.npy (an empty file)\nhelp: repair or delete them" in error
    assert main([*command, "data.unreadable=skip"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "left out 1 of 24 that cannot be read: dark/0.npy (an empty file)" in said
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "photos" / "light" / "3.npy")]) == 0
    assert re.search(r"3.npy: (dark|light) [\d.]+%, (dark|light) [\d.]+%$", capsys.readouterr().out.strip())
