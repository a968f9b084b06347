"""Images from a folder per class: arrays, Netpbm's files, and what is said about others."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ampkit.core.errors import FileError
from ampkit.data import imagefolder
from ampkit.data.imagefolder import ImageFolder
from ampkit.data.pictures import Pictures
from ampkit.utils.data import DataLoader

COLOR = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)  # [h, w, c]
GRAY = np.arange(8, dtype=np.uint8).reshape(2, 4) * 9
pytestmark = pytest.mark.cpu


@pytest.fixture
def folder(tmp_path):
    for name in ("dog", "cat", ".hidden"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "dog" / "1.npy", COLOR)
    (tmp_path / "dog" / "2.ppm").write_bytes(b"P6\n# made by hand\n4 2\n255\n" + (COLOR + 50).tobytes())
    (tmp_path / "cat" / "deep").mkdir()
    np.save(tmp_path / "cat" / "deep" / "a.npy", COLOR + 100)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "readme.txt").write_text("not a class")
    return tmp_path


def test_classes_are_numbered_by_name_and_images_by_path(folder):
    found = ImageFolder(folder, (3, 2, 4))
    assert found.classes == ("cat", "dog")
    assert found.labels.tolist() == [0, 1, 1]
    assert [path.name for path in found.paths] == ["a.npy", "1.npy", "2.ppm"]
    expected = np.stack([COLOR + 50, COLOR + 100, COLOR]).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(found[np.array([2, 0, 1])], expected)


def test_a_folder_feeds_pictures_to_a_loader(folder):
    found = ImageFolder(folder, (3, 2, 4))
    ((x, y),) = DataLoader(Pictures(found, found.labels), 3, num_workers=2)
    np.testing.assert_allclose(x.numpy()[1], COLOR.transpose(2, 0, 1) / 255, atol=1e-6)
    assert y.numpy().tolist() == [0, 1, 1]


def test_gray_images_have_one_channel(tmp_path):
    np.save(tmp_path / "a.npy", GRAY)
    (tmp_path / "b.pgm").write_bytes(b"P5 4 2 255\n" + GRAY.tobytes())
    for name in ("a.npy", "b.pgm"):
        np.testing.assert_array_equal(imagefolder.read(tmp_path / name, gray=True), GRAY[None])


def test_classes_can_be_given_and_others_are_refused(folder):
    assert ImageFolder(folder, (3, 2, 4), ("bird", "dog", "cat")).labels.tolist() == [1, 1, 2]
    with pytest.raises(FileError, match="classes among dog, bird, got cat"):
        ImageFolder(folder, (3, 2, 4), ("dog", "bird"))


def test_a_folder_that_is_missing_or_empty_is_named(tmp_path):
    with pytest.raises(FileError, match="folder of images per class, got .*nowhere.*, which is none"):
        ImageFolder(tmp_path / "nowhere", (3, 2, 4))
    with pytest.raises(FileError, match="a folder per class with .npy, .* files, got none"):
        ImageFolder(tmp_path, (3, 2, 4))


def test_an_image_of_another_size_is_named(folder):
    np.save(folder / "cat" / "big.npy", np.zeros((3, 4, 3), np.uint8))
    found = ImageFolder(folder, (3, 2, 4))
    with pytest.raises(FileError, match=r"big.npy: needs an image of 3 x 2 x 4, got 3 x 3 x 4"):
        found[np.array([0])]


def save(path, array):
    with path.open("wb") as file:
        np.lib.format.write_array(file, array)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", b"no array", "an image, got a file that cannot be read as one"),
        ("a.npy", np.zeros((2, 2)), r"uint8 values \[h, w\] or \[h, w, channels\], got float64 \[2, 2\]"),
        ("a.npy", np.zeros(2, np.uint8), r"got uint8 \[2\]"),
        ("a.npy", np.array([{}], object), "an image, got a file that cannot be read as one"),
        ("a.ppm", b"P3 1 1 255\n0 0 0", "P5 or P6 with 255 as the largest value, got b'P3 1 1"),
        ("a.ppm", b"P6 1 1 65535\n000000", "P5 or P6 with 255"),
        ("a.ppm", b"P6 2 2 255\n12345", "12 bytes of pixels, got 5"),
        ("a.pgm", b"", "P5 or P6 with 255 as the largest value, got b''"),
    ],
)
def test_a_file_that_is_no_image_is_refused_and_named(tmp_path, name, content, message):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        save(tmp_path / name, content)
    with pytest.raises(FileError, match=message) as caught:
        imagefolder.read(tmp_path / name)
    assert name in str(caught.value)


def test_without_pillow_other_kinds_are_refused_in_one_line_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(FileError, match="a.png: needs Pillow to read .png, got none installed\nhelp: pip install"):
        imagefolder.read(tmp_path / "a.png")


def test_with_pillow_a_png_is_read_in_color_and_in_gray(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(COLOR).save(tmp_path / "a.png")
    np.testing.assert_array_equal(imagefolder.read(tmp_path / "a.png"), COLOR.transpose(2, 0, 1))
    assert imagefolder.read(tmp_path / "a.png", gray=True).shape == (1, 2, 4)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(FileError, match="b.png: needs an image"):
        imagefolder.read(tmp_path / "b.png")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 3), (1, 1, 1)])
def test_arrays_are_read_as_numpy_writes_them(shape, order, tmp_path):
    values = np.asarray(np.random.default_rng(0).integers(0, 256, shape), np.uint8, order=order)
    np.save(tmp_path / "a.npy", values)
    wanted = values[None] if values.ndim == 2 else np.moveaxis(values, 2, 0)
    np.testing.assert_array_equal(imagefolder.read(tmp_path / "a.npy"), wanted)


def test_an_array_that_is_cut_off_is_no_image(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 4), np.uint8))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    with pytest.raises(FileError, match="an image, got a file that cannot be read as one"):
        imagefolder.read(tmp_path / "a.npy")
