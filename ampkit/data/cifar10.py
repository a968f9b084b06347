"""CIFAR-10: 60,000 photographs in ten classes, 3 x 32 x 32 pixels, from the official binary version.

Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images, https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.errors import FileError, check_choice
from ..base.files import Stream, foreign, opened
from ..base.registry import Splits, register_dataset
from .download import Source, fetch

SHAPE = (3, 32, 32)
CLASSES = 10
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# Of the training images in [0, 1]; the values that most published code uses.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

# Size and SHA-256: TensorFlow Datasets, url_checksums/cifar10.txt. The official page gives the MD5
# c32a1d4ab5d03f1284b67883e8d87530.
SOURCE = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170052171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
RECORDS = 10_000  # images in a file
_FILES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
_FOLDER = "cifar-10-batches-bin"
_RECORD = 1 + prod(SHAPE)  # the label, then the red, the green and the blue plane
_WHOLE = "a whole archive", "download it anew"
_FILES_AT_MOST, _BESIDE, _BLOCK = 8, 2**20, 2**18  # files per archive; bytes of other content; bytes read at once


def load(
    split: Literal["train", "test"],
    folder: str | Path,
    download: bool = False,
    source: Source = SOURCE,
    records: int = RECORDS,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The training split (50,000 images) or the test split (10,000 images) of CIFAR-10.

    -> (images [n, 3, 32, 32] uint8, labels [n] int64 in 0..9, named by `NAMES`), in the order of the files.
    folder: contains the `.bin` files, their folder `cifar-10-batches-bin`, or the archive, which is read without being
    unpacked to disk. The format of these is checked (gzip's CRC, `records` images per file, labels), not their SHA-256.
    download: download the archive from `source` into `folder` (`download.fetch`); its size and SHA-256 are checked,
    also if it exists already.
    Raises ArgumentError for another split, FileError for files that are missing, corrupt or of another format.
    """
    check_choice("cifar10.load", "split", split, *_FILES)
    folder = Path(folder)
    if download:
        fetch(source, folder)
    found = _contents(folder, folder / source.name, _FILES[split], download, records)
    parts = [_parse(where, content, records) for where, content in found]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _contents(
    folder: Path, archive: Path, names: tuple[str, ...], from_archive: bool, records: int
) -> list[tuple[str, bytes]]:
    """(location for errors, content) of each of the files `names`."""
    for directory in () if from_archive else (folder, folder / _FOLDER):
        if (directory / names[0]).is_file():
            return [(str(directory / name), _content(directory / name, records)) for name in names]
    if archive.is_file():
        return _unpacked(archive, names, records)
    cure = "say download=true, or give the folder that holds the binary version's files"
    raise FileError("cifar10", f"{names[0]} or {archive.name} in {folder}", "neither", cure)


def _content(path: Path, records: int) -> bytes:
    with opened(path, "cifar10") as file:
        _need_length(str(path), os.fstat(file.fileno()).st_size, records)
        with foreign(str(path), "a file that can be read"):
            return file.read()


def _unpacked(archive: Path, names: tuple[str, ...], records: int) -> list[tuple[str, bytes]]:
    where, found = str(archive), {}
    most = _FILES_AT_MOST * records * _RECORD + _BESIDE
    with opened(archive, "cifar10") as file:
        stream = Stream(gzip.GzipFile(fileobj=file), where, *_WHOLE, most)
        for name, member, tar in _members(where, stream):
            if name in names:
                _need_length(f"{where}: {name}", member.size, records)
                with foreign(where, *_WHOLE):
                    found[name] = tar.extractfile(member).read()
        while stream.read(_BLOCK):  # to the end, where gzip checks its CRC
            pass
    missing = [name for name in names if name not in found]
    if missing:
        raise FileError(where, f"{', '.join(missing)} in it", "none")
    return [(f"{archive}: {name}", found[name]) for name in names]


def _members(where: str, stream: Any) -> Iterator[tuple[str, tarfile.TarInfo, Any]]:
    """Yield (name without folders, member, archive to read it from) for each file of a tar archive, in order."""
    with foreign(where, *_WHOLE):
        tar = tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK)  # noqa: SIM115
    with tar:
        while True:
            with foreign(where, *_WHOLE):
                member = tar.next()
            if member is None:
                return
            if member.isfile():
                yield member.name.rpartition("/")[2], member, tar


def _need_length(where: str, length: int, records: int) -> None:
    if length != records * _RECORD:
        needs = f"{records} images of {_RECORD} bytes, {records * _RECORD}"
        raise FileError(where, needs, f"{length} bytes", "download it anew")


def _parse(where: str, content: bytes, records: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    _need_length(where, len(content), records)
    table = np.frombuffer(content, np.uint8).reshape(records, _RECORD)
    labels = table[:, 0].astype(np.int64)
    if labels.max(initial=0) >= CLASSES:
        raise FileError(where, f"labels from 0 to {CLASSES - 1}", f"{labels.max()}")
    return table[:, 1:].reshape(records, *SHAPE), labels


def load_splits(folder: str | Path, download: bool = False) -> Splits:
    """CIFAR-10 in its binary version.

    folder: the directory of the files. download: download missing files into it.
    """
    return Splits(load("train", folder, download), load("test", folder, download), MEAN, STD, NAMES)


register_dataset("cifar10", load_splits, "images", "images", constants={"shape": SHAPE, "classes": CLASSES})
