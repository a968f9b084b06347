"""Files of every mode are read alike, photos upright; what is no single image is refused in one line."""

from __future__ import annotations

import importlib.metadata
import io
import struct

import numpy as np
import pytest

from ampkit.base.errors import FileError
from ampkit.data.images import files
from ampkit.data.images.files import load_with_channels, read
from ampkit.data.transforms.pillow import as_array

Image = pytest.importorskip("PIL.Image", reason="photos are read by Pillow")
COLOR = np.random.RandomState(0).randint(0, 256, (5, 8, 3)).astype(np.uint8)
pytestmark = pytest.mark.cpu


# A pixel that the orientation brings to the upper left: EXIF 2.3, table 6, where row 0 and column 0 lie.
FIRST = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (-1, 0), 7: (-1, -1), 8: (0, -1)}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_a_photo_is_turned_upright(orientation, suffix, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(COLOR).save(tmp_path / f"a.{suffix}", exif=exif)
    found = np.moveaxis(read(tmp_path / f"a.{suffix}"), 0, 2)
    assert found.shape[:2] == ((5, 8) if orientation < 5 else (8, 5))
    assert np.array_equal(found[0, 0], COLOR[FIRST[orientation]])
    assert np.array_equal(np.sort(found.reshape(-1, 3), 0), np.sort(COLOR.reshape(-1, 3), 0))
    down = COLOR[FIRST[orientation][0], [1, -2][FIRST[orientation][1]]]
    across = COLOR[[1, -2][FIRST[orientation][0]], FIRST[orientation][1]]
    assert np.array_equal(found[1, 0], across if orientation < 5 else down)


def test_an_orientation_that_there_is_not_changes_nothing(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 77
    Image.fromarray(COLOR).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(read(tmp_path / "a.png"), np.moveaxis(COLOR, 2, 0))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_has_the_channels_that_are_asked_for(mode, channels, tmp_path):
    image = Image.fromarray(COLOR).convert(mode)
    if mode == "YCbCr" and int(importlib.metadata.version("pillow").partition(".")[0]) < 13:
        pytest.skip("Pillow before 13 does not read the TIFF files of this mode that it writes")
    image.save(tmp_path / "a.tiff")
    found = as_array(load_with_channels(tmp_path / "a.tiff", channels))
    assert np.array_equal(found, as_array(image.convert("L" if channels == 1 else "RGB")))


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_have_the_channels_that_are_asked_for(channels, tmp_path):
    np.save(tmp_path / "gray.npy", COLOR[..., 0])
    np.save(tmp_path / "color.npy", COLOR)
    gray, color = (as_array(load_with_channels(tmp_path / f"{name}.npy", channels)) for name in ("gray", "color"))
    assert np.array_equal(gray, np.repeat(COLOR[..., :1], channels, 2))
    assert np.array_equal(color, as_array(Image.fromarray(COLOR).convert("L" if channels == 1 else "RGB")))
    np.save(tmp_path / "four.npy", np.zeros((2, 2, 4), np.uint8))
    with pytest.raises(FileError, match="four.npy: needs an image of 1 or 3 channels, got .2, 2, 4."):
        load_with_channels(tmp_path / "four.npy", channels)
    np.save(tmp_path / "first.npy", np.zeros((3, 8, 8), np.uint8))
    with pytest.raises(FileError, match=r"got .3, 8, 8.\nhelp: save np.moveaxis\(values, 0, 2\): channels come last"):
        load_with_channels(tmp_path / "first.npy", channels)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_an_animation_is_refused(kind, tmp_path):
    frames = [Image.new("RGB", (8, 8), (i * 80, 0, 0)) for i in range(3)]
    path = tmp_path / f"a.{kind.lower()}"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    for pixels in (True, False):
        with pytest.raises(FileError, match=f"a.{kind.lower()}: needs a still image, got an animation of 3 frames"):
            files.check(path, pixels)
    frames[0].save(path)
    files.check(path, False)


def test_a_large_photo_is_one_error_and_no_warning(tmp_path, monkeypatch):
    Image.fromarray(COLOR).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    with pytest.raises(FileError, match=r"a.png: needs an image, .*40 pixels\) exceeds limit"):
        read(tmp_path / "a.png")


def test_flaws_of_a_header_that_do_not_matter_are_no_warning(tmp_path):
    content = io.BytesIO()
    Image.fromarray(COLOR).save(content, "JPEG")
    broken = b"Exif\0\0MM\0*\0\0\0\x08\0\x09" + struct.pack(">HHII", 0x0112, 3, 1, 6 << 16)
    data = content.getvalue()
    (tmp_path / "a.jpg").write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(broken) + 2) + broken + data[2:])
    assert read(tmp_path / "a.jpg").shape[0] == 3


@pytest.mark.parametrize(("suffix", "options"), [("jpg", {}), ("png", {}), ("webp", {"lossless": True}), ("tiff", {})])
@pytest.mark.parametrize("share", [0.6, 0.95])
@pytest.mark.parametrize("pixels", [True, False])
def test_a_file_that_was_cut_off_is_found_by_its_pixels_and_by_its_end(suffix, options, share, pixels, tmp_path):
    image = np.random.RandomState(0).randint(0, 256, (40, 40, 3)).astype(np.uint8)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(image).save(path, **options)
    files.check(path, pixels)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(FileError, match=f"a.{suffix}: needs an image, got one that breaks"):
        files.check(path, pixels)


def test_a_whole_photo_with_something_behind_it_is_whole(tmp_path):
    Image.fromarray(COLOR).save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes() + b"maker notes" * 20)
    files.check(tmp_path / "a.jpg", False)


def test_an_empty_file_and_one_of_no_kind_are_named(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"")
    (tmp_path / "b.heic").write_bytes(b"no image")
    for name, got in (("a.jpg", "an empty file"), ("b.heic", "a file of no kind that Pillow reads")):
        with pytest.raises(FileError, match=f"{name}: needs an image, got {got}$"):
            files.check(tmp_path / name, False)
