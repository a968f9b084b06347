"""MNIST: 70,000 handwritten digits, 28 x 28 pixels, from the four official idx files.

LeCun, Bottou, Bengio and Haffner 1998, doi 10.1109/5.726791. Files of the same format, such as Fashion-MNIST's (Xiao,
Rasul and Vollgraf 2017, arXiv:1708.07747), can be read too if they are copied into the folder.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..base import files
from ..base.errors import FileError, check_choice
from ..base.registry import Splits, register_dataset
from .download import Source, fetch

SHAPE = (1, 28, 28)
CLASSES = 10
MEAN, STD = (0.1307,), (0.3081,)  # of the training images in [0, 1]; the values that most published code uses

# Sizes and SHA-256: TensorFlow Datasets, url_checksums/mnist.txt, which names this mirror of the authors' files.
_MIRROR = "https://storage.googleapis.com/cvdf-datasets/mnist/"
SOURCES: dict[str, Source] = {
    name: Source(f"{_MIRROR}{name}.gz", size, sha256)
    for name, size, sha256 in [
        ("train-images-idx3-ubyte", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ]
}
_PARTS = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08
MOST_BYTES = 2**30  # of values in a file: a small gzip file can unpack to any size. A million images are 0.8 * 10^9.


def load(
    split: Literal["train", "test"], folder: str | Path, download: bool = False, sources: Mapping[str, Source] = SOURCES
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The training split (60,000 images) or the test split (10,000 images) of MNIST.

    -> (images [n, 1, 28, 28] uint8, 0 for paper and 255 for ink, labels [n] int64 in 0..9), in the order of the files.
    folder: contains `train-images-idx3-ubyte.gz` and the other three files, or the same without `.gz`. Their format is
    checked (gzip's CRC, magic number, sizes, labels), not their SHA-256. download: download the files from `sources`,
    by name, into `folder` (`download.fetch`); size and SHA-256 are checked, also of files that exist already.
    Raises ArgumentError for another split, FileError for files that are missing, corrupt or of another format.
    """
    check_choice("mnist.load", "split", split, *_PARTS)
    found = [_found(f"{_PARTS[split]}-{kind}", Path(folder), download, sources) for kind in _KINDS]
    images, labels = (read_idx(path, dims) for path, dims in zip(found, (3, 1), strict=True))
    if images.shape[1:] != SHAPE[1:]:
        raise FileError(str(found[0]), f"images of {SHAPE[1]} x {SHAPE[2]} pixels", f"{images.shape[1:]}")
    if len(images) != len(labels):
        raise FileError(str(found[1]), f"a label for each of {len(images)} images", f"{len(labels)}")
    if labels.max(initial=0) >= CLASSES:
        raise FileError(str(found[1]), f"labels from 0 to {CLASSES - 1}", f"{labels.max()}")
    return images[:, None], labels.astype(np.int64)


_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def _found(name: str, folder: Path, download: bool, sources: Mapping[str, Source]) -> Path:
    if download:
        return fetch(sources[name], folder)
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    cure = "say download=true, or give the folder that holds the four idx files"
    raise FileError("mnist", f"{folder / name}.gz", "no such file", cure)


def read_idx(path: Path, dims: int) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with `dims` dimensions, gzipped if its name ends in .gz. -> [*sizes] uint8.

    The format: two zero bytes, the type 8, the number of dimensions, a big-endian 32-bit size for each, then the bytes.
    Raises FileError for a file of another format, of another length than its sizes give or of more than `MOST_BYTES`
    values, and for one that gzip cannot read.
    """
    where = str(path)
    with files.opened(path, "mnist") as file:
        plain = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        return _parse_idx(where, files.Stream(plain, where, "a whole idx file", "download it anew"), dims)


def _parse_idx(where: str, file: files.Stream, dims: int) -> NDArray[np.uint8]:
    magic, wanted = file.read(4), bytes([0, 0, _UNSIGNED_BYTE, dims])
    if magic != wanted:
        raise FileError(where, f"the magic number {wanted.hex()}", magic.hex() or "an empty file")
    head = file.read(4 * dims)
    if len(head) != 4 * dims:
        raise FileError(where, f"{dims} sizes", "the end of the file")
    sizes = tuple(np.frombuffer(head, ">u4").tolist())
    count, named = prod(sizes), " x ".join(map(str, sizes))
    if count > MOST_BYTES:
        raise FileError(where, f"at most {MOST_BYTES} bytes of values", f"{named} = {count}")
    values = files.read(file, count + 1)
    if len(values) != count or not values:
        got = "more" if len(values) > count else f"{len(values)}"
        raise FileError(where, f"{named} = {count} bytes, at least 1", got)
    return np.frombuffer(values, np.uint8).reshape(sizes)


def load_splits(folder: str | Path, download: bool = False) -> Splits:
    """MNIST in its official files.

    folder: the directory of the files. download: download missing files into it.
    """
    return Splits(load("train", folder, download), load("test", folder, download), MEAN, STD)


register_dataset("mnist", load_splits, "images", "images", constants={"shape": SHAPE, "classes": CLASSES})
