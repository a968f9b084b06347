"""Read the files of PyTorch's `torch.save`: its zip format, and the format of PyTorch before 1.6.

A file holds a pickle and the bytes of each storage, the flat memory that tensors are views of. All sizes that a file
tells are compared with the bytes that it has.
"""

from __future__ import annotations

import io
import sys
import zipfile
from typing import Any, BinaryIO

import numpy as np

from ..base.errors import FileError
from .pickled_tensors import HostArray, PickledTensors, Place

_MAGIC = 0x1950A86A20F9469CFC6C  # the first value in a file of PyTorch before 1.6
_CHUNK = 2**22  # bytes
_WHOLE = "a whole file of torch.save"


def load_zip(file: BinaryIO, where: str, place: Place, whole: bool = False) -> Any:
    """The object in a zip file of PyTorch. whole: whether it may hold whole modules.

    Raises FileError or DTypeError, which begin with `where`.
    """
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries, folder = _checked(archive, size, where)
        told = entries.get(f"{folder}byteorder")
        order = b"little" if told is None else _bytes(archive, told).tobytes()
        if order not in (b"little", b"big"):
            raise FileError(where, _WHOLE, "one with bytes in another order")
        swap = order != sys.byteorder.encode()

        def read(key: str, size: int, itemsize: int) -> HostArray:
            values = _bytes(archive, entries[f"{folder}data/{key}"])
            return values.view(f"u{itemsize}").byteswap().view(np.uint8) if swap else values

        pickle = _bytes(archive, entries[f"{folder}data.pkl"]).tobytes()
        return PickledTensors(where, place, read, whole).run(io.BytesIO(pickle))


def _checked(archive: zipfile.ZipFile, size: int, where: str) -> tuple[dict[str, zipfile.ZipInfo], str]:
    """The entries by name, and the folder that they are in, of an archive in a file of `size` bytes."""
    found = archive.infolist()
    entries = {entry.filename: entry for entry in found}
    folder = next((name[: -len("data.pkl")] for name in entries if name.endswith("/data.pkl")), None)
    cure = "load it in PyTorch and save its state_dict()"
    if any(name.endswith("/archive_format") for name in entries):
        raise FileError(where, "a file of torch.save", "a program of torch.export", cure)
    if folder is not None and f"{folder}constants.pkl" in entries:
        raise FileError(where, "a file of torch.save", "a TorchScript program", cure)
    if folder is None or any(entry.compress_type for entry in found):
        raise FileError(where, "a file of torch.save", "another zip file")
    if len(entries) < len(found):
        raise FileError(where, _WHOLE, "one with two entries of one name")
    if sum(entry.file_size for entry in found) > size or any(e.file_size != e.compress_size for e in found):
        raise FileError(where, _WHOLE, f"one of {size} bytes that lists more")
    return entries, folder


def _bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> HostArray:
    values, at = np.empty(entry.file_size, np.uint8), 0
    with archive.open(entry) as file:
        while part := file.read(_CHUNK):
            values[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
    if at != len(values):
        raise ValueError(f"{at} of the {len(values)} bytes of {entry.filename}")
    return values


def load_legacy(file: BinaryIO, where: str, place: Place, whole: bool = False) -> Any:
    """The object in a file of PyTorch before 1.6: pickles of the object and of the storages' keys, then their bytes."""
    file = io.BytesIO(file.read())  # a read from it takes no more memory than there are bytes
    left, storages = len(file.getbuffer()), dict[str, HostArray]()

    def reserve(key: str, size: int, itemsize: int) -> HostArray:
        nonlocal left
        left -= size
        if size < 0 or left < 0:
            raise FileError(where, _WHOLE, "one that lists more bytes than it has")
        storages[key] = np.zeros(size, np.uint8)
        return storages[key]

    first = PickledTensors(where, lambda array, saved: array, reserve, whole)
    if first.run(file) != _MAGIC:
        raise FileError(where, "a file of torch.save", "another pickle")
    first.run(file)  # the version of the format
    first.run(file)  # the sizes of types in C
    begin = file.tell()
    first.run(file)
    _fill(storages, first.run(file), file, where)
    file.seek(begin)
    return PickledTensors(where, place, lambda key, size, itemsize: storages[key], whole).run(file)


def _fill(storages: dict[str, HostArray], keys: Any, file: io.BytesIO, where: str) -> None:
    if type(keys) is not list or not all(type(key) is str for key in keys) or len(set(keys)) < len(keys):
        raise FileError(where, _WHOLE, "one whose keys of storages are none")
    for key in keys:
        elements = int.from_bytes(file.read(8), "little")
        if len(storages[key]) % max(elements, 1) or file.readinto(storages[key].data) < len(storages[key]):
            raise FileError(where, _WHOLE, f"one that ends within storage {key}")
    if len(keys) < len(storages):
        raise FileError(where, _WHOLE, "one without some of its storages")
