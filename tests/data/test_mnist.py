"""MNIST's files: read as they are, refused where they are not what they say."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from traced_memory import memory_below

from ampkit.base.errors import ArgumentError, FileError
from ampkit.data import mnist

IMAGES = np.random.RandomState(0).randint(0, 256, (5, 28, 28)).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 9], np.uint8)
IMAGE_FILE, LABEL_FILE = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"


def idx(values, sizes=None, kind=8):
    sizes = values.shape if sizes is None else sizes
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, kind, len(sizes), *sizes) + values.tobytes()


def packed(values, **words):
    return gzip.compress(idx(values, **words), mtime=0)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / IMAGE_FILE).write_bytes(packed(IMAGES))
    (tmp_path / LABEL_FILE).write_bytes(packed(LABELS))
    return tmp_path


def test_a_part_is_read_with_its_shapes_and_dtypes(folder):
    images, labels = mnist.load("test", folder)
    assert (images.shape, images.dtype, labels.dtype) == ((5, 1, 28, 28), np.uint8, np.int64)
    np.testing.assert_array_equal(images[:, 0], IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


def test_unpacked_files_are_read_as_well(tmp_path):
    (tmp_path / IMAGE_FILE.removesuffix(".gz")).write_bytes(idx(IMAGES))
    (tmp_path / LABEL_FILE.removesuffix(".gz")).write_bytes(idx(LABELS))
    np.testing.assert_array_equal(mnist.load("test", tmp_path)[0][:, 0], IMAGES)


def test_the_official_files_are_named_with_sizes_and_sums():
    assert sum(source.size for source in mnist.SOURCES.values()) == 9912422 + 28881 + 1648877 + 4542
    assert {len(bytes.fromhex(source.sha256)) for source in mnist.SOURCES.values()} == {32}
    assert {source.name for source in mnist.SOURCES.values()} == {f"{name}.gz" for name in mnist.SOURCES}


def test_files_are_downloaded_with_their_sums(server, tmp_path):
    server.files = {IMAGE_FILE: packed(IMAGES), LABEL_FILE: packed(LABELS)}
    sources = {name.removesuffix(".gz"): server.source(name) for name in server.files}
    for _ in range(2):
        images, _ = mnist.load("test", tmp_path, download=True, sources=sources)
        np.testing.assert_array_equal(images[:, 0], IMAGES)
    assert len(server.asked) == 2
    (tmp_path / LABEL_FILE).write_bytes(packed(LABELS[::-1].copy()))
    with pytest.raises(FileError, match="t10k-labels"):
        mnist.load("test", tmp_path, download=True, sources=sources)


def test_missing_files_are_named_with_the_ways_to_get_them(tmp_path):
    with pytest.raises(FileError, match="train-images-idx3-ubyte.gz, got no such file\nhelp: say download=true"):
        mnist.load("train", tmp_path)


def test_a_part_of_a_download_is_never_read(folder):
    (folder / IMAGE_FILE).rename(folder / f"{IMAGE_FILE}.part")
    with pytest.raises(FileError, match="no such file"):
        mnist.load("test", folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGE_FILE, packed(LABELS), "the magic number 00000803, got 00000801"),
        (IMAGE_FILE, packed(IMAGES, kind=9), "the magic number 00000803, got 00000903"),
        (IMAGE_FILE, gzip.compress(b"", mtime=0), "got an empty file"),
        (IMAGE_FILE, gzip.compress(idx(IMAGES)[:9], mtime=0), "3 sizes, got the end"),
        (IMAGE_FILE, packed(IMAGES[:4], sizes=(5, 28, 28)), "5 x 28 x 28 = 3920 bytes, at least 1, got 3136"),
        (IMAGE_FILE, packed(IMAGES, sizes=(4, 28, 28)), "3136 bytes, at least 1, got more"),
        (IMAGE_FILE, packed(IMAGES[:0]), "at least 1, got 0"),
        (IMAGE_FILE, packed(IMAGES[:, :27]), r"images of 28 x 28 pixels, got \(27, 28\)"),
        (IMAGE_FILE, packed(IMAGES)[:500], "a whole idx file, got one that breaks"),
        (IMAGE_FILE, packed(IMAGES)[:-6] + b"abcdef", "a whole idx file, got one that breaks: CRC"),
        (IMAGE_FILE, idx(IMAGES), "a whole idx file, got one that breaks: Not a gzipped file"),
        (LABEL_FILE, packed(LABELS[:4]), "a label for each of 5 images, got 4"),
        (LABEL_FILE, packed(LABELS + 1), "labels from 0 to 9, got 10"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,
)
def test_a_file_that_is_not_what_it_says_is_refused_and_named(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        mnist.load("test", folder)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((2**32 - 1,) * 3, "at most 1073741824 bytes of values, got 4294967295 x .* = 79228162458924105385300197375$"),
        ((1_000_000, 28, 28), "1000000 x 28 x 28 = 784000000 bytes, at least 1, got 3920"),
    ],
)
@pytest.mark.parametrize("pack", [gzip.compress, bytes])
def test_sizes_that_the_file_does_not_hold_take_no_memory(tmp_path, sizes, message, pack):
    path = tmp_path / ("a.gz" if pack is gzip.compress else "a")
    path.write_bytes(pack(idx(IMAGES, sizes=sizes)))
    with memory_below(4 * 2**20), pytest.raises(FileError, match=message):
        mnist.read_idx(path, 3)


def test_a_small_file_that_unpacks_to_a_large_one_is_read_no_further_than_its_sizes(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(IMAGES) + bytes(64 * 2**20), 1))
    with memory_below(4 * 2**20), pytest.raises(FileError, match="3920 bytes, at least 1, got more"):
        mnist.read_idx(tmp_path / "a.gz", 3)


def test_an_unknown_part_is_refused(folder):
    with pytest.raises(ArgumentError, match="split 'train' or 'test', got 'valid'"):
        mnist.load("valid", folder)
