"""Images from a folder per class: arrays, Netpbm's files, and what is said about others."""

from __future__ import annotations

import struct
import sys
import zlib

import numpy as np
import pytest
from traced_memory import memory_below

from ampkit.base.errors import DTypeError, FileError
from ampkit.data.augment import AugmentedImages
from ampkit.data.imagefolder import ImageFolder, read
from ampkit.data.images import files as imagefolder
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
    ((x, y),) = DataLoader(AugmentedImages(found, found.labels), 3, num_workers=2)
    np.testing.assert_allclose(x.numpy()[1], COLOR.transpose(2, 0, 1) / 255, atol=1e-6)
    assert y.numpy().tolist() == [0, 1, 1]


def test_a_loader_of_the_folder_alone_names_what_gives_labels_too(folder):
    with pytest.raises(
        DTypeError, match=r"needs an array of indices, got a int\nhelp: DataLoader\(ampkit.data.augment"
    ):
        next(iter(DataLoader(ImageFolder(folder, (3, 2, 4)), 2)))


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
        ("a.npy", b"no array", "an image in NumPy's format, got a file that begins with b'no array'"),
        (
            "a.npy",
            np.zeros((2, 2)),
            r"uint8 values \[h, w\] or \[h, w, channels\], got float64 \[2, 2\]\nhelp: .* save \(255 \*",
        ),
        ("a.npy", np.zeros((2, 2), np.uint16), r"got uint16 \[2, 2\]\nhelp: .*, of 16 bits \(values // 257\)"),
        ("a.npy", np.zeros(2, np.uint8), r"got uint8 \[2\]"),
        ("a.npy", np.array([{}], object), r"uint8 values \[h, w\] or \[h, w, channels\], got object \[1\]"),
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
    with pytest.raises(FileError, match="a.npy: needs 16 bytes of pixels, got 15"):
        imagefolder.read(tmp_path / "a.npy")


def npy(shape, dtype="|u1", pixels=b"12"):
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + pixels


def test_pixels_begin_where_the_length_of_the_header_says(tmp_path):
    whole = npy("(1, 2)")
    (tmp_path / "a.npy").write_bytes(whole)
    assert imagefolder.read(tmp_path / "a.npy").tolist() == [[[49, 50]]]
    (tmp_path / "a.npy").write_bytes(whole[:-3] + b" \n12")
    with pytest.raises(FileError, match="NumPy's format, got a file that begins with"):
        imagefolder.read(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", npy(f"({2**70}, 1)"), f"{2**70} bytes of pixels, got 2"),
        ("a.npy", npy(f"(0, {2**70})", pixels=b""), "an image in NumPy's format, got one that breaks"),
        ("a.npy", npy("(1, 2)", "zzz"), "NumPy's format, got one that breaks: data type 'zzz' not understood"),
        ("a.npy", npy(f"({'9' * 4000}, 1)"), "NumPy's format, got a file that begins with"),
        ("a.npy", npy(f"({'1, ' * 90})"), "NumPy's format, got a file that begins with"),
        ("a.ppm", b"P6 4294967295 4294967295 255\n123", "55340232195358851075 bytes of pixels, got 3"),
        ("a.pgm", b"P5 0 99999999999999999999 255\n", "Netpbm's format, got one that breaks"),
        ("a.ppm", b"P6" + b" " * 2**23 + b"1 1 255\n123", "P5 or P6 with 255 as the largest value, got b'P6 "),
    ],
)
def test_a_header_that_claims_too_much_is_refused_in_one_line_and_little_memory(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with memory_below(4 * 2**20), pytest.raises(FileError, match=message) as caught:
        imagefolder.read(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", ["npy", "png"])
def test_an_image_of_another_size_is_refused_before_its_pixels_are_read(tmp_path, suffix):
    (tmp_path / "cat").mkdir()
    large = np.zeros((4000, 4000), np.uint8)
    if suffix == "npy":
        np.save(tmp_path / "cat" / "1.npy", large)
    else:
        pytest.importorskip("PIL.Image").fromarray(large).save(tmp_path / "cat" / "1.png")
    folder = ImageFolder(tmp_path, (1, 8, 8))
    with memory_below(4 * 2**20), pytest.raises(FileError, match="an image of 1 x 8 x 8, got 1 x 4000 x 4000"):
        folder[np.array([0])]


def test_a_small_file_that_claims_a_large_image_is_refused_before_there_is_memory_for_it(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    head = b"IHDR" + struct.pack(">II", 9000, 9000) + content[24:29]
    (tmp_path / "a.png").write_bytes(content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:])
    with pytest.raises(FileError, match=r"a.png: needs as many pixels as [0-9]+ bytes can hold, got 81000000"):
        imagefolder.read(tmp_path / "a.png")


def test_what_pillow_refuses_as_too_large_is_one_clear_error(tmp_path, monkeypatch):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 16)
    with pytest.raises(FileError, match=r"a.png: needs an image, got one that breaks: Image size \(64 pixels\)"):
        imagefolder.read(tmp_path / "a.png")


def test_with_pillow_16_bits_become_8_by_257_whatever_the_number_of_channels_asked_for(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    values = np.array([[0, 100, 20000], [30000, 45000, 65535]], np.uint16)
    pillow.fromarray(values).save(tmp_path / "a.png")
    expected = np.round(values / 257).astype(np.uint8)
    assert np.array_equal(read(tmp_path / "a.png", gray=True), expected[None])
    assert np.array_equal(read(tmp_path / "a.png"), np.stack([expected] * 3))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_an_image_of_wide_numbers_is_refused(tmp_path, dtype):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.array([[0, 100, 20000]], dtype)).save(tmp_path / "a.tiff")
    (tmp_path / "a.tiff").rename(tmp_path / "a.png")
    with pytest.raises(FileError, match="needs 8 or 16 bits in each channel, got Pillow's mode"):
        read(tmp_path / "a.png")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_of_8_bits_is_read_without_its_transparency(tmp_path, mode):
    pillow = pytest.importorskip("PIL.Image")
    image = pillow.fromarray(COLOR).convert(mode)
    options = {"transparency": bytes(range(100))} if mode == "P" else {}
    image.save(tmp_path / "a.png", **options)
    expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(read(tmp_path / "a.png"), np.moveaxis(expected, 2, 0))
