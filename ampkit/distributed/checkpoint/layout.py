"""Where a checkpoint of several ranks keeps what: an index, and for each rank a safetensors file with parts of tensors.

A folder holds `index.json`, which names the files of the last complete save. Each save writes files of new names and
then, when all are complete, replaces the index; the files of before are deleted afterwards. So whatever ends a save,
the index names a complete one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import le
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base import dtypes
from ...base.atomic_file import write
from ...base.errors import AmpkitError, ArgumentError, FileError
from ...core.tensor import Tensor
from ...serialization.safetensors_reader import rebuild
from ...serialization.safetensors_writer import describe
from ..fsdp.sharded_tensor import Box, ShardedTensor

INDEX = "index.json"
_FORMAT = 2  # 1 had rows alone: begin and end were numbers, and `at` was missing
_MOST = 2**30  # bytes of an index


class Piece(NamedTuple):
    """The box `begin` to `end` of a tensor of a dtype and shape, of which a file has it in a part of the tensor.

    begin, end, at: a number per axis; `at` is where the box begins in that part. crc: the CRC-32 of the part's bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    crc: int
    file: str = ""
    at: tuple[int, ...] = ()

    @property
    def box(self) -> Box:
        """Where it lies in the tensor."""
        return tuple(map(slice, self.begin, self.end))

    @property
    def place(self) -> Box:
        """Where it lies in the part that the file has."""
        return tuple(slice(at, at + end - begin) for at, begin, end in zip(self.at, self.begin, self.end, strict=True))


class Index(NamedTuple):
    """What a checkpoint holds. save: the name of the save. pieces: by a tensor's name. values: the rest by name."""

    save: str
    pieces: dict[str, list[Piece]]
    values: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Replace the index of `folder` by this one."""
        pieces = {name: [[*piece] for piece in found] for name, found in self.pieces.items()}
        described = {
            "format": _FORMAT,
            "save": self.save,
            "pieces": pieces,
            "values": describe(self.values, "", {}, {}),
        }
        write("checkpoint.save", folder / INDEX, json.dumps(described).encode())

    def delete_others(self, folder: Path) -> None:
        """Delete the files of saves before this one."""
        for path in folder.glob("*.rank*.safetensors"):
            number = path.name.partition("-")[0]
            if number.isdigit() and not path.name.startswith(f"{self.save}.") and int(number) <= self.number:
                with suppress(OSError):
                    path.unlink()

    @property
    def number(self) -> int:
        """How many saves there were before it."""
        return int(self.save.partition("-")[0])


def read_index(folder: Path) -> Index:
    """The index of a checkpoint. Raises FileError where there is none, or one that is damaged."""
    where, path = f"checkpoint: {folder}", folder / INDEX
    try:
        if path.stat().st_size > _MOST:
            raise ValueError("more bytes than an index has")
        found = json.loads(path.read_text())
        if found["format"] not in (1, _FORMAT):
            raise ValueError(f"format {found['format']}, where this release reads 1 and {_FORMAT}")
        make = _rows if found["format"] == 1 else _piece
        pieces = {name: [make(*each) for each in parts] for name, parts in found["pieces"].items()}
        int(str(found["save"]).partition("-")[0])
        return Index(str(found["save"]), pieces, rebuild(found["values"], {}))
    except FileNotFoundError:
        raise FileError(where, f"a folder with a complete save, {INDEX}", "none") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(where, "a whole index", f"one that breaks: {error or type(error).__name__}") from error


def _rows(dtype: Any, shape: Any, begin: Any, end: Any, crc: Any, file: Any) -> Piece:
    # A piece of format 1.
    whole = list(shape)
    first, last = ([begin, *[0] * (len(whole) - 1)], [end, *whole[1:]]) if whole else ([], [])
    return _piece(dtype, whole, first, last, crc, file, [0] * len(whole))


def _piece(dtype: Any, shape: Any, begin: Any, end: Any, crc: Any, file: Any, at: Any) -> Piece:
    numbers = (*shape, *begin, *end, *at, crc)
    fits = len(shape) == len(begin) == len(end) == len(at) and all(map(le, begin, end)) and all(map(le, end, shape))
    if not all(type(n) is int and 0 <= n < 2**63 for n in numbers) or not fits or Path(file).name != file:
        raise ValueError(f"a piece {[dtype, shape, begin, end, crc, file, at]}")
    return Piece(str(dtypes.parse(dtype).name), tuple(shape), tuple(begin), tuple(end), crc, file, tuple(at))


def save_name(folder: Path, letters: str) -> str:
    """A name for the next save into `folder`."""
    numbers = [path.name.partition("-")[0] for path in folder.glob("*.rank*.safetensors")]
    with suppress(FileError):
        numbers.append(str(read_index(folder).number))
    return f"{max([int(number) for number in numbers if number.isdigit()], default=0) + 1:06d}-{letters}"


def boxes_of(tensor: Tensor) -> tuple[tuple[int, ...], list[tuple[Box, Box]]]:
    """The whole shape of a tensor, and where what this rank has of it lies: (here, in the whole one), box by box."""
    if isinstance(tensor, ShardedTensor):
        return tensor.full_shape, tensor._sharding.boxes()
    box = tuple(slice(0, length) for length in tensor.shape)
    return tuple(tensor.shape), [(box, box)]


def need_complete(where: str, name: str, pieces: Sequence[Piece]) -> None:
    """Raise FileError for pieces of a tensor that leave a part out, have one twice, or do not belong together."""
    first = pieces[0]
    if other := [p for p in pieces if (p.dtype, p.shape) != (first.dtype, first.shape)]:
        got = f"{other[0].dtype} {list(other[0].shape)} and {first.dtype} {list(first.shape)}"
        raise FileError(where, f"pieces of one tensor as {name!r}", got)
    # The bounds of the pieces cut the tensor into cells, of which each piece has some.
    cuts = [
        sorted({0, length, *(p.begin[axis] for p in pieces), *(p.end[axis] for p in pieces)})
        for axis, length in enumerate(first.shape)
    ]
    number = [{at: i for i, at in enumerate(found)} for found in cuts]
    counts = np.zeros([len(found) - 1 for found in cuts], np.int32)
    for piece in pieces:
        bounds = zip(number, piece.begin, piece.end, strict=True)
        counts[tuple(slice(found[begin], found[end]) for found, begin, end in bounds)] += 1
    if wrong := np.argwhere(counts != 1).tolist():
        cell, had = wrong[0], counts[tuple(wrong[0])]
        said = " and ".join(
            f"{_axis_name(axis)} {cuts[axis][i]} to {cuts[axis][i + 1]}"
            for axis, i in enumerate(cell)
            if axis == 0 or len(cuts[axis]) > 2
        ) or "elements"  # fmt: skip
        got = f"{said} twice" if had else f"no {said}"
        raise FileError(where, f"every row of {name!r} once", got)


def _axis_name(axis: int) -> str:
    return ("rows", "columns")[axis] if axis < 2 else f"places of axis {axis}"


# nested states: tensors by dotted names, and what has no tensors in it as values


def flat(state: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, container, key, value) of the tensors in a nested state, and of the largest parts without any."""
    items: Iterable[tuple[Any, Any]] = state.items() if isinstance(state, Mapping) else enumerate(state)
    for key, value in items:
        name = f"{path}.{key}" if path else str(key)
        if not isinstance(value, Tensor) and has_tensors(value):
            yield from flat(value, name)
        else:
            yield name, state, key, value


def has_tensors(value: Any) -> bool:
    """Whether there is a tensor in a nested value."""
    if isinstance(value, Tensor):
        return True
    if isinstance(value, Mapping):
        return any(map(has_tensors, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_tensors, value))


def named(where: str, state: Any) -> dict[str, tuple[Any, Any, Any]]:
    """(container, key, value) by name. Raises ArgumentError for no dict, and for two values of one name."""
    if not isinstance(state, Mapping):
        raise ArgumentError(where, "a dict as state_dict", f"a {type(state).__name__}")
    found: dict[str, tuple[Any, Any, Any]] = {}
    for name, *rest in flat(state):
        if name in found:
            raise ArgumentError(where, "one value per name", f"two as {name!r}")
        found[name] = (rest[0], rest[1], rest[2])
    return found


Errors = (AmpkitError, OSError, MemoryError)
