"""save and load: objects of tensors in PyTorch's file format, or in safetensors files.

A file whose name ends in `.safetensors` is one (see safetensors_writer); every other file, and every file object, is in
PyTorch's zip format, which `torch.load` reads with weights_only=True. `load` tells the formats apart by their content.
Neither runs code.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import IO, TYPE_CHECKING, Any

from .. import backends
from ..backends import Backend
from ..base.atomic_file import write
from ..base.errors import ArgumentError, DeviceError, FileError
from ..base.files import foreign, opened
from ..core.tensor import Tensor
from . import sharded
from .safetensors_reader import decode, read
from .safetensors_writer import encode

if TYPE_CHECKING:
    from .pickled_tensors import Place  # imported where a file needs it: `import ampkit` is to be quick

__all__ = ["decode", "encode", "load", "save"]

_CURE = "ampkit.save and torch.save write such files"
_LFS = b"version https://git-lfs.github.com/spec/"


def save(
    obj: Any,
    f: str | os.PathLike[str] | IO[bytes],
    pickle_module: Any = None,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Write `obj` to the file or file object `f`: a `state_dict`, or tensors, arrays of NumPy, numbers, strings, None,
    dtypes and devices in dicts, lists, tuples, sets and argparse.Namespaces; or whole modules, other objects that are
    their attributes alone, such as dataclasses, and members of enumerations, of classes at the top of a file.

    The format is PyTorch's, or safetensors if the name of `f` ends in `.safetensors`. A file is replaced atomically: a
    temporary file in the same directory takes its place and its mode; of a symbolic link, the file that it names is
    replaced. Tensors with the same memory, such as tied weights, are stored once and share memory again after `load`.
    The further arguments are accepted for PyTorch's sake and ignored.
    Raises DTypeError for a value of another type, naming its path in `obj`; FileError if the file cannot be written.
    """
    if not hasattr(f, "write") and os.fspath(f).endswith(".safetensors"):
        write("save", f, encode(obj))
        return
    from .pytorch_writer import encode as encode_for_pytorch

    data = encode_for_pytorch(obj)
    if hasattr(f, "write"):
        f.write(data)
    else:
        write("save", f, data)


def load(
    f: str | os.PathLike[str] | IO[bytes],
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Load the object that `save` or PyTorch's `torch.save` wrote to the file or file object `f`, or the dict of
    tensors of any other safetensors file.

    Of Hugging Face's sharded checkpoints, `f` is the index, such as `model.safetensors.index.json`, or its folder: the
    result is the dict of all tensors. A tensor of a dtype that ampkit has not, such as complex64, is a ForeignTensor.
    map_location: the device of the tensors; a dict from saved devices to others; or a function of a storage (as a 1-d
    Tensor on the CPU) and its saved device that returns the storage on another one. By default the saved device where
    this machine has it, else the CPU. Unless weights_only=True, a file may hold whole modules and plain objects of
    classes that the program has defined or imported already. No code of a file is ever run, nor an `__init__`: an
    object gets the attributes that it had. The further arguments are accepted for PyTorch's sake and ignored; the whole
    file is read.
    Raises FileError for a file that is missing, truncated, in no known format, or with objects of other types than
    `save` takes.
    """
    place, whole = _placed_by(map_location), weights_only is not True
    if hasattr(f, "read"):
        return _loaded(io.BytesIO(f.read()), str(getattr(f, "name", "a stream")), place, whole)
    path = sharded.file_in(f)
    one = partial(_load_file, place=place, whole=whole)
    return sharded.load(path, one) if path.endswith(sharded.SUFFIX) else one(path)


def _load_file(path: str, place: Place, whole: bool) -> Any:
    with opened(path, "load") as file:
        return _loaded(file, path, place, whole)


def _loaded(file: Any, name: str, place: Place, whole: bool) -> Any:
    described = f"load: {name}", "a whole file in PyTorch's or the safetensors format", _CURE
    with foreign(*described):
        start = file.read(len(_LFS))
        file.seek(0)
        if start == _LFS:
            cure = "run `git lfs pull` where it was cloned, or download the file itself"
            raise FileError(*described[:2], "a pointer of Git LFS in its place", cure)
        zipped, legacy = start[:4] == b"PK\3\4", start[2:4] == b"\x8a\n"  # the latter begins with a pickled integer
        if zipped or legacy:
            from . import pytorch_reader

            load_one = pytorch_reader.load_zip if zipped else pytorch_reader.load_legacy
            return load_one(file, described[0], place, whole)
    return read(file, name, lambda values: place(values, backends.get_default_device()))


def _placed_by(map_location: Any) -> Place:
    """The function that puts a storage, an array on the host with its saved device, where `map_location` says."""
    if isinstance(map_location, (str, int)):
        there = backends.get(map_location)
        return lambda array, saved: there.asarray(array)
    at = cache(_at)  # looking for a GPU takes milliseconds
    if isinstance(map_location, Mapping):
        return lambda array, saved: at(map_location.get(saved, saved)).asarray(array)
    if callable(map_location):
        return lambda array, saved: _moved(map_location, array, saved)
    if map_location is None:
        return lambda array, saved: at(saved).asarray(array)
    got = f"a {type(map_location).__name__}"
    raise ArgumentError("load", "map_location as a device, a dict of devices or a function", got)


def _at(device: str) -> Backend:
    try:
        return backends.get(device)
    except DeviceError:
        return backends.cpu


def _moved(move: Callable[[Tensor, str], Tensor | None], array: Any, saved: str) -> Any:
    made = move(Tensor(array), saved)
    return _at(saved).asarray(array) if made is None else made.array
