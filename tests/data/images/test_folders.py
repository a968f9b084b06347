"""A folder of images as it is found: its classes, the part held out, and what cannot be read."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ampkit.base.errors import ArgumentError, ConfigError, FileError
from ampkit.base.progress import listening
from ampkit.data.imagefolder import IMAGENET, ImageFolder, load_splits, measured
from ampkit.data.images import checking, folders

pytestmark = pytest.mark.cpu


def write(folder, counts, size=(6, 8)):
    """A folder of arrays per class, `counts` of each by name."""
    draw = np.random.RandomState(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            np.save(folder / name / f"{number}.npy", draw.randint(0, 256, (*size, 3)).astype(np.uint8))
    return folder


def names(images):
    return {path.relative_to(images.root).as_posix() for path in images.paths}


def test_a_folder_alone_is_split_within_each_class(tmp_path):
    splits = load_splits(write(tmp_path, {"cat": 20, "dog": 10, "owl": 2}), shape=(3, 6, 6))
    (train, labels), (test, held_out) = splits.train, splits.held_out
    assert splits.classes == ("cat", "dog", "owl")
    assert (np.bincount(labels).tolist(), np.bincount(held_out).tolist()) == ([16, 8, 1], [4, 2, 1])
    assert len(names(train) | names(test)) == 32
    assert [path.parent.name for path in test.paths] == ["cat"] * 4 + ["dog"] * 2 + ["owl"]
    assert test[np.arange(7)].shape == (7, 3, 6, 6)


def test_the_split_follows_from_the_seed_and_the_names_alone(tmp_path):
    counts = {"cat": 40, "dog": 40}
    here, there = write(tmp_path / "here", counts), write(tmp_path / "there" / "deeper", counts)
    first, again, other = (load_splits(*where) for where in ((here,), (there,), (here, None, 0.2, 1)))
    assert names(first.held_out[0]) == names(again.held_out[0])
    assert len(names(first.held_out[0]) & names(other.held_out[0])) < 10
    assert first.identity == again.identity != other.identity
    before = names(first.held_out[0])
    write(here / "cat", {"new": 5})
    assert len(before - names(load_splits(here).held_out[0])) <= 2
    assert load_splits(here).identity != first.identity


def test_a_folder_of_its_own_is_held_out_as_a_whole(tmp_path):
    train, test = write(tmp_path / "a", {"cat": 3, "dog": 1}), write(tmp_path / "b", {"cat": 2, "dog": 4})
    splits = load_splits(train, test, shape=(3, 6, 6))
    assert (splits.train[1].tolist(), splits.held_out[1].tolist()) == ([0, 0, 0, 1], [0, 0, 1, 1, 1, 1])


def test_mean_and_std_are_given_imagenets_or_measured(tmp_path):
    write(tmp_path, {"cat": 5, "dog": 5})
    assert load_splits(tmp_path)[2:4] == ((0.5,), (0.25,))
    assert load_splits(tmp_path, std=(0.3,))[2:4] == ((0.5,), (0.3,))
    assert load_splits(tmp_path, normalize="imagenet")[2:4] == IMAGENET
    splits = load_splits(tmp_path, normalize="measured", shape=(3, 6, 8))
    pixels = splits.train[0][np.arange(8)] / 255
    np.testing.assert_allclose(splits.mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(splits.std, pixels.std((0, 2, 3)), rtol=1e-12)


def test_images_without_contrast_have_a_std_that_can_be_divided_by(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            np.save(tmp_path / name / f"{number}.npy", np.full((4, 4, 3), 51, np.uint8))
    mean, std = measured(load_splits(tmp_path, shape=(3, 4, 4)).train[0])
    assert mean == pytest.approx((0.2, 0.2, 0.2))
    assert std == (1, 1, 1)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "needs a folder per class with .npy, .* files, got none\nhelp: move the images of each class"),
        ({"cat": 3}, "needs a folder for each of two or more classes, got one, 'cat'"),
        ({"cat": 3, "dog": 0}, r"at least 1 image in the folder of each class, got dog \(0\)\nhelp: add images"),
        (
            {"cat": 3, "dog": 1},
            r"at least 2 images in the folder of each class, one of them to hold out, got dog \(1\)",
        ),
        ({"train": 3, "val": 1}, "got train, val, the parts of a data set\nhelp: .*folder=.*train data.held_out=.*val"),
        ({"Test": 3, "training": 1}, "help: .*folder=.*training data.held_out=.*Test"),
        ({"train": 3}, "got train, the parts of a data set\nhelp: name the parts: data.folder=[^ ]*train$"),
    ],
)
def test_a_folder_that_nothing_can_be_learned_from_is_refused_with_the_cure(counts, message, tmp_path):
    with pytest.raises(FileError, match=message) as caught:
        load_splits(write(tmp_path, counts))
    assert len(str(caught.value).splitlines()) <= 2


def test_two_folders_with_other_classes_are_refused(tmp_path):
    train, test = write(tmp_path / "a", {"cat": 2, "dog": 2}), write(tmp_path / "b", {"cat": 2, "fox": 2})
    with pytest.raises(FileError, match="b: needs the classes of .*a, got dog in .*a alone and fox in .*b alone"):
        load_splits(train, test)
    with pytest.raises(ConfigError, match="data.classes: needs 2, the folders in .*a, got 3"):
        load_splits(train, classes=3)


def test_what_cannot_be_read_is_counted_and_named_before_it_is_skipped(tmp_path):
    write(tmp_path, {"cat": 70, "dog": 70})  # more than one task of a thread
    for number in (0, 3, 66):
        (tmp_path / "dog" / f"{number}.npy").write_bytes(b"no image")
    (tmp_path / "cat" / "5.npy").write_bytes(b"")
    needed = r"got 4 of 140 that cannot be read: cat/5.npy \(an empty file\), dog/0.npy \(a file .*and 1 more\n"
    with pytest.raises(FileError, match=needed + "help: repair or delete .*: data.unreadable=skip$"):
        load_splits(tmp_path)
    splits = load_splits(tmp_path, unreadable="skip")
    assert len(splits.train[0]) + len(splits.held_out[0]) == 136
    assert [note.split(": ")[2] for note in splits.notes] == ["left out 4 of 140 that cannot be read"]
    assert load_splits(write(tmp_path / "whole", {"a": 2, "b": 2})).notes == ()


def test_an_image_folder_of_an_own_loop_skips_them_with_one_warning(tmp_path):
    write(tmp_path, {"cat": 3, "dog": 2})
    (tmp_path / "cat" / "1.npy").write_bytes(b"")
    with pytest.raises(FileError, match="1.npy"):
        ImageFolder(tmp_path, (3, 6, 8))[np.arange(5)]
    with pytest.warns(
        RuntimeWarning, match=r"left out 1 of 5 that cannot be read: cat/1.npy \(an empty file\)$"
    ) as said:
        found = ImageFolder(tmp_path, (3, 6, 8), unreadable="skip")
    assert len(said) == 1 and len(found) == 4
    assert found[np.arange(4)].shape == (4, 3, 6, 8) and found.labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(ArgumentError, match="ImageFolder: needs unreadable"):
        ImageFolder(tmp_path, (3, 6, 8), unreadable="ignore")
    for path in tmp_path.glob("*/*.npy"):
        path.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="left out 5 of 5"), pytest.raises(FileError, match="got none"):
        ImageFolder(tmp_path, (3, 6, 8), unreadable="skip", check="headers")


@pytest.mark.parametrize(("size", "resize", "share"), [(32, 256, "2%"), (8, 12, "44%"), (224, 256, None), (8, 8, None)])
def test_a_crop_that_leaves_little_of_a_picture_is_one_line_with_the_cure(size, resize, share, tmp_path):
    write(tmp_path, {"cat": 3, "dog": 3})
    notes = load_splits(tmp_path, shape=(3, size, size), resize=resize).notes
    if share is None:
        assert notes == ()
    else:
        (note,) = notes
        assert f"see the middle {size} x {size} pixels of {resize} x {resize}, {share} of a picture; data." in note
        fits = int(note.partition("data.resize=")[2].split()[0])
        assert load_splits(tmp_path, shape=(3, size, size), resize=fits).notes == ()


def test_a_class_of_which_nothing_is_left_is_refused(tmp_path):
    write(tmp_path, {"cat": 3, "dog": 1})
    (tmp_path / "dog" / "0.npy").write_bytes(b"no image")
    with pytest.raises(FileError, match=r"at least 2 images .*, got dog \(0\)"):
        load_splits(tmp_path, unreadable="skip")


def test_without_pillow_photos_are_one_error_and_not_a_folder_of_broken_files(tmp_path, monkeypatch):
    write(tmp_path, {"cat": 3, "dog": 3})
    (tmp_path / "cat" / "a.jpg").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(FileError, match="a.jpg: needs Pillow to read .jpg, got none installed\nhelp: pip install"):
        load_splits(tmp_path, unreadable="skip")


@pytest.mark.parametrize(
    ("size", "depth", "expected"), [(10, None, True), (2**28, None, False), (2**28, "pixels", True)]
)
def test_pixels_are_decoded_where_that_takes_seconds(size, depth, expected, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(checking, "_size", lambda path: size)
    monkeypatch.setattr(checking, "check", lambda path, pixels: asked.append(pixels))
    assert checking.unreadable([Path("a.npy"), Path("b.npy")], depth) == {}
    assert asked == [expected] * 2


def test_a_check_tells_how_far_it_is_and_ends_its_threads_when_it_is_left(tmp_path):
    write(tmp_path, {"cat": 130})
    told = []
    with listening(lambda *row: told.append(row)):
        checking.unreadable(folders.listed(tmp_path, ["cat"])[0])
    assert told == [("checking images", done, 130) for done in (64, 128, 130)]

    def interrupted(*row):
        raise KeyboardInterrupt

    before = threading.active_count()
    with listening(interrupted), pytest.raises(KeyboardInterrupt):
        checking.unreadable(folders.listed(tmp_path, ["cat"])[0])
    assert threading.active_count() == before
