"""Where a checkpoint of several ranks keeps what: an index, and for each rank a safetensors file with rows of tensors.

A folder holds `index.json`, which names the files of the last complete save. Each save writes files of new names and
then, when all are complete, replaces the index; the files of before are deleted afterwards. So whatever ends a save,
the index names a complete one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...base import dtypes
from ...base.atomic_file import write
from ...base.errors import AmpkitError, ArgumentError, FileError
from ...core.tensor import Tensor
from ...serialization.safetensors_reader import rebuild
from ...serialization.safetensors_writer import describe
from ..fsdp.sharded_tensor import ShardedTensor

INDEX = "index.json"
_FORMAT = 1
_MOST = 2**30  # bytes of an index


class Piece(NamedTuple):
    """Rows `begin` to `end` of a tensor of a dtype and shape, in a file; of a tensor without axes it is row 0.

    crc: the CRC-32 of their bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    crc: int
    file: str = ""


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
        if found["format"] != _FORMAT:
            raise ValueError(f"format {found['format']}, where this release reads {_FORMAT}")
        pieces = {name: [_piece(*each) for each in parts] for name, parts in found["pieces"].items()}
        int(str(found["save"]).partition("-")[0])
        return Index(str(found["save"]), pieces, rebuild(found["values"], {}))
    except FileNotFoundError:
        raise FileError(where, f"a folder with a complete save, {INDEX}", "none") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(where, "a whole index", f"one that breaks: {error or type(error).__name__}") from error


def _piece(dtype: Any, shape: Any, begin: Any, end: Any, crc: Any, file: Any) -> Piece:
    numbers = (*shape, begin, end, crc)
    if not all(type(n) is int and 0 <= n < 2**63 for n in numbers) or Path(file).name != file:
        raise ValueError(f"a piece {[dtype, shape, begin, end, crc, file]}")
    return Piece(str(dtypes.parse(dtype).name), tuple(shape), begin, end, crc, file)


def save_name(folder: Path, letters: str) -> str:
    """A name for the next save into `folder`."""
    numbers = [path.name.partition("-")[0] for path in folder.glob("*.rank*.safetensors")]
    with suppress(FileError):
        numbers.append(str(read_index(folder).number))
    return f"{max([int(number) for number in numbers if number.isdigit()], default=0) + 1:06d}-{letters}"


def rows_of(tensor: Tensor) -> tuple[tuple[int, ...], int, int]:
    """The whole shape of a tensor, and which rows of it this rank has."""
    if isinstance(tensor, ShardedTensor):
        dim, blocks = tensor._sharding.dim, tensor._sharding.blocks
        if dim or blocks > 1:
            got = f"one cut along axis {dim}" + (f" in {blocks} blocks" if blocks > 1 else "")
            cure = "save whole ones: get_state_dict(..., options=StateDictOptions(full_state_dict=True))"
            raise ArgumentError("checkpoint", "tensors that ranks share out by rows", got, cure)
        return tensor.full_shape, tensor._sharding.rows.start, tensor._sharding.rows.stop
    shape = tuple(tensor.shape)
    return shape, 0, rows_in(shape)


def rows_in(shape: Sequence[int]) -> int:
    """The number of rows of a shape; 1 without axes."""
    return shape[0] if shape else 1


def need_complete(where: str, name: str, pieces: Sequence[Piece]) -> None:
    """Raise FileError for pieces of a tensor that leave rows out, have some twice, or do not belong together."""
    first, at = pieces[0], 0
    if other := [p for p in pieces if (p.dtype, p.shape) != (first.dtype, first.shape)]:
        got = f"{other[0].dtype} {list(other[0].shape)} and {first.dtype} {list(first.shape)}"
        raise FileError(where, f"pieces of one tensor as {name!r}", got)
    for piece in sorted(pieces, key=lambda piece: (piece.begin, piece.end)):
        if piece.begin != at:
            what = f"no rows {at} to {piece.begin}" if piece.begin > at else f"rows {piece.begin} to {at} twice"
            raise FileError(where, f"every row of {name!r} once", what)
        at = piece.end
    if at != rows_in(first.shape) and 0 not in first.shape:
        raise FileError(where, f"every row of {name!r} once", f"no rows {at} to {rows_in(first.shape)}")


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
