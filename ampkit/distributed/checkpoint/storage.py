"""save, load and async_save: the states of all ranks in one folder, which any number of ranks loads; PyTorch's verbs.

Each rank writes its part of each tensor, and reads the pieces that have some of what it needs.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ... import backends
from ...backends.threads import on_this_device
from ...base.atomic_file import write
from ...base.errors import AmpkitError, ArgumentError, FileError, ShapeError, StateError, error_with_text
from ...core.tensor import Tensor
from ...optim.optimizer import Optimizer
from ...serialization.safetensors_reader import read_some
from ...serialization.safetensors_writer import encode
from .. import world
from ..collectives import gathered_objects
from ..fsdp.sharded_tensor import moved, overlap, sharded
from ..process_group import ProcessGroup
from ..transport import Call, call_site
from .layout import Errors, Index, Piece, boxes_of, named, need_complete, read_index, save_name
from .state_dict import need_flat

_T = TypeVar("_T")
_PAUSE = 0.01  # seconds between two looks for the files of other ranks
PATIENCE = 1800.0  # seconds that the first rank waits for the files of an asynchronous save


class FileSystemWriter:
    """The folder that a checkpoint is written to; PyTorch's name. Its other options have no effect."""

    def __init__(self, path: str | os.PathLike[str], *options: Any, **named_options: Any):
        self.path = path


class FileSystemReader(FileSystemWriter):
    """The folder that a checkpoint is read from; PyTorch's name."""


def save(
    state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str] | None = None, storage_writer: Any = None,
    planner: Any = None, process_group: ProcessGroup | None = None, no_dist: bool = False,
) -> None:  # fmt: skip
    """Save a nested dict of tensors, numbers and text into the folder `checkpoint_id`, by all ranks together.

    Of sharded tensors each rank writes its part, of others the first rank that has them writes all; values without
    tensors are those of the first rank that has one of their name. What has a `state_dict()`, a module or an optimizer,
    stands for that. When all ranks are done, this save takes the place of the one before, which is then deleted;
    whatever ends a save earlier, the one before stays. planner has no effect; no_dist=True saves what this process has,
    alone.
    Raises, on all ranks, FileError where a file cannot be written, DTypeError for other values.
    """
    saving = _Saving("checkpoint.save", state_dict, checkpoint_id, storage_writer, _group(process_group, no_dist))
    _agreed(saving.group, "checkpoint.save, files", saving.write)
    _agreed(saving.group, "checkpoint.save, index", saving.commit)


def async_save(
    state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str] | None = None, storage_writer: Any = None,
    planner: Any = None, process_group: ProcessGroup | None = None, **ignored: Any,
) -> Future[None]:  # fmt: skip
    """`save` whose files are written in the background, of copies: -> a Future. Training may go on at once.

    On rank 0 its `result()` returns when this save has taken the place of the one before, on others when their file is
    written; it raises what went wrong. All ranks see one file system. One save runs at a time.
    """
    group = _group(process_group, False)
    _wait_for_last()
    saving = _Saving("checkpoint.async_save", state_dict, checkpoint_id, storage_writer, group)
    future: Future[None] = Future()

    def run() -> None:
        try:
            saving.write()
            if saving.rank == 0:
                saving.wait_for_files()
                saving.commit()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=on_this_device(run), name="ampkit-checkpoint")
    thread.start()
    _last.thread = thread
    return future


class _Last(threading.local):
    thread: threading.Thread | None = None


_last = _Last()


def _wait_for_last() -> None:
    if _last.thread is not None:
        _last.thread.join()


class _Saving:
    """One save: what this rank writes, and for the first the index."""

    def __init__(self, where: str, state: Any, folder: Any, writer: Any, group: ProcessGroup | None):
        self.folder, self.group = _folder(where, folder, writer), group
        self.rank = 0 if group is None else group.rank()

        def prepare() -> tuple[dict[str, Tensor], dict[str, list[Piece]], dict[str, Any], str]:
            if self.rank == 0:
                self.folder.mkdir(parents=True, exist_ok=True)
            tensors, pieces, values = _parts(where, state)
            return tensors, pieces, values, save_name(self.folder, secrets.token_hex(4)) if self.rank == 0 else ""

        tensors, pieces, values, name = _agreed(group, f"{where}, state", prepare)
        mine = pieces, name, values
        told = [mine] if group is None else gathered_objects(group, mine, Call(where, call_site()))
        self.name = told[0][1]
        files = [f"{self.name}.rank{rank:05d}.safetensors" for rank in range(len(told))]
        whole: dict[str, list[Piece]] = {}
        owners: dict[tuple[Any, ...], int] = {}
        for rank, (theirs, *_) in enumerate(told):
            for key, piece in ((key, piece) for key, found in theirs.items() for piece in found):
                if owners.setdefault((key, piece.begin, piece.end), rank) == rank:
                    whole.setdefault(key, []).append(piece._replace(file=files[rank]))
        for key, found in whole.items():
            need_complete(where, key, found)
        own = {key for (key, *_), rank in owners.items() if rank == self.rank}
        self.tensors = {key: tensor for key, tensor in tensors.items() if key in own}
        self.index = Index(
            self.name, whole, {key: value for *_, found in reversed(told) for key, value in found.items()}
        )
        self.file = files[self.rank]
        self.files = sorted({piece.file for found in whole.values() for piece in found})

    def write(self) -> None:
        """Write this rank's file."""
        if self.tensors:
            write("checkpoint.save", self.folder / self.file, encode(self.tensors))

    def commit(self) -> None:
        """Let this save take the place of the one before."""
        if self.rank == 0:
            self.index.write(self.folder)
            self.index.delete_others(self.folder)

    def wait_for_files(self) -> None:
        """Return when the files of all ranks are there. Raises FileError where one does not come."""
        until = time.monotonic() + PATIENCE
        while late := [name for name in self.files if not (self.folder / name).exists()]:
            if time.monotonic() > until:
                raise FileError(
                    "checkpoint.async_save", f"the files of all ranks within {PATIENCE:g} s", f"no {late[0]}"
                )
            time.sleep(_PAUSE)


def _parts(where: str, state: Any) -> tuple[dict[str, Tensor], dict[str, list[Piece]], dict[str, Any]]:
    # The tensors of this rank, copied to the host, their pieces, and the values.
    tensors, pieces, values = dict[str, Tensor](), dict[str, list[Piece]](), dict[str, Any]()
    for name, (_, _, value) in named(where, _states(state)).items():
        if not isinstance(value, Tensor):
            values[name] = value
            continue
        shape, boxes = boxes_of(value)
        if value.array.size or shape == tuple(value.shape):
            array = np.array(backends.backend_of(value.array).to_numpy(value.array), order="C")
            tensors[name], crc = Tensor(array), _crc(array)
            for here, there in boxes:
                begin, end, at = (
                    tuple(part.start for part in there),
                    tuple(part.stop for part in there),
                    tuple(part.start for part in here),
                )
                pieces.setdefault(name, []).append(Piece(array.dtype.name, shape, begin, end, crc, "", at))
    encode({"values": values})  # raises for what no file holds
    return tensors, pieces, values


def _states(state: Any) -> Any:
    """A state in which the states of modules, optimizers and the like stand for them."""
    if not isinstance(state, dict):
        return state
    for value in state.values():
        if isinstance(value, Optimizer):
            need_flat("checkpoint.save", value, False)
    return {key: value.state_dict() if _is_stateful(value) else value for key, value in state.items()}


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def load(
    state_dict: dict[str, Any], *, checkpoint_id: str | os.PathLike[str] | None = None, storage_reader: Any = None,
    planner: Any = None, process_group: ProcessGroup | None = None, no_dist: bool = False,
) -> None:  # fmt: skip
    """Read a checkpoint of any number of ranks into the tensors and values of `state_dict`, by all ranks together.

    Each rank reads what its tensors have, in their own dtype, and takes the values of the checkpoint; what it
    does not name is left out. A module or an optimizer in it loads its state.
    Raises, on all ranks and before a tensor has changed, FileError for files that are missing or damaged, for rows that
    are missing or there twice, and where ranks see different checkpoints; StateError for names that the checkpoint
    lacks, ShapeError for tensors of other shapes.
    """
    where, group = "checkpoint.load", _group(process_group, no_dist)
    folder = _folder(where, checkpoint_id, storage_reader)

    def prepare() -> tuple[Index, Any]:
        index = read_index(folder)
        return index, {key: _target(key, value, index) for key, value in state_dict.items()}

    index, state = _agreed(group, f"{where}, index", prepare)
    saves = [index.save] if group is None else gathered_objects(group, index.save, Call(where, call_site()))
    if other := [rank for rank, save_of in enumerate(saves) if save_of != saves[0]]:
        got = f"{saves[0]} on rank 0, {saves[other[0]]} on rank {other[0]}"
        raise FileError(f"{where}: {folder}", "the same checkpoint on all ranks", got)
    entries = named(where, state)
    arrays = _agreed(group, f"{where}, tensors", lambda: _read(where, folder, index, entries))
    for name, (container, key, value) in entries.items():
        if isinstance(value, Tensor):
            value._write(arrays[name])
        else:
            container[key] = index.values[name]
    for key, value in state_dict.items():
        if _is_stateful(value):
            value.load_state_dict(state[key])
        elif not isinstance(value, Tensor):
            state_dict[key] = state[key]


def _target(key: str, value: Any, index: Index) -> Any:
    # What is to be filled for an entry of the caller's dict.
    if isinstance(value, Optimizer):
        return _optimizer_target(key, value, index)
    return value.state_dict() if _is_stateful(value) else value


def _optimizer_target(key: str, optimizer: Optimizer, index: Index) -> Any:
    # A new optimizer has no state yet: that of the checkpoint.
    found = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, (first, *_) in index.pieces.items():
        start = f"{key}.state."
        number, _, what = name.removeprefix(start).partition(".")
        if name.startswith(start) and number.isdigit() and int(number) < len(parameters):
            sharding = parameters[int(number)]._sharding
            is_cut = sharding is not None and sharding.full_shape == first.shape
            made = Tensor(np.zeros(sharding.local_shape if is_cut else first.shape, np.dtype(first.dtype)))
            state.setdefault(int(number), {})[what] = sharded(made, sharding) if is_cut else made
    return {**found, "state": state}


def _read(where: str, folder: Path, index: Index, entries: dict[str, Any]) -> dict[str, Any]:
    # The arrays of this rank by name.
    wanted: dict[str, dict[str, list[Piece]]] = {}
    boxes: dict[str, Any] = {}
    for name, (_, _, value) in entries.items():
        if not isinstance(value, Tensor):
            if name not in index.values:
                raise _missing(where, folder, name)
            continue
        if name not in index.pieces:
            raise _missing(where, folder, name)
        need_complete(f"{where}: {folder}", name, index.pieces[name])
        shape, boxes[name] = boxes_of(value)
        if index.pieces[name][0].shape != shape:
            raise ShapeError(where, f"{name!r} {list(shape)}", f"{list(index.pieces[name][0].shape)} in {folder}")
        for piece in index.pieces[name]:
            if any(overlap(piece.box, there) is not None for _, there in boxes[name]):
                wanted.setdefault(piece.file, {}).setdefault(name, []).append(piece)
    tensors = {name: entries[name][2].array for name in boxes}
    arrays: dict[str, Any] = {name: np.empty(given.shape, np.dtype(given.dtype)) for name, given in tensors.items()}
    for file, pieces in wanted.items():
        for name, values in _read_file(where, folder / file, pieces).items():
            for piece in pieces[name]:
                for here, there in boxes[name]:
                    if (shared := overlap(piece.box, there)) is not None:
                        given = values[*moved(shared, piece.box, piece.place), ...]  # ...: a view without axes, too
                        _copy(arrays[name][*moved(shared, there, here), ...], given)
    return arrays


def _copy(out: Any, values: Any) -> None:
    backends.backend_of(out).copy(out, values)


def _read_file(where: str, path: Path, pieces: dict[str, list[Piece]]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = read_some(file, path, pieces)
    except FileNotFoundError:
        raise FileError(f"{where}: {path.parent}", f"the file {path.name}", "none") from None
    made = {}
    for name, (piece, *others) in pieces.items():
        array = found[name].array if name in found else None
        alike = array is not None and array.ndim == len(piece.shape) and array.dtype.name == piece.dtype
        if not alike or _crc(array) != piece.crc or not all(_has(array, each) for each in (piece, *others)):
            raise FileError(f"{where}: {path}", f"a part of {name!r} as saved", "others")
        made[name] = array
    return made


def _has(array: Any, piece: Piece) -> bool:
    return all(part.stop <= length for part, length in zip(piece.place, array.shape, strict=True))


def _crc(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data) if array.size else 0


def _missing(where: str, folder: Path, name: str) -> StateError:
    return StateError(where, f"{name!r} in {folder}", "a checkpoint without it")


def _group(given: ProcessGroup | None, no_dist: bool) -> ProcessGroup | None:
    return None if no_dist else world.group.WORLD if given is None else world.group_or_world("checkpoint", given)


def _folder(where: str, given: Any, storage: Any) -> Path:
    path = getattr(storage, "path", None) if given is None else given
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(where, "a folder as checkpoint_id", repr(path))
    return Path(path)


def _agreed(group: ProcessGroup | None, said: str, action: Callable[[], _T]) -> _T:
    """What `action` returns on this rank. Where it raises on some rank, all ranks raise that error."""
    result, error = None, None
    try:
        result = action()
    except Errors as raised:
        error = raised
    found = None if error is None else (type(error), str(error))
    errors = [found] if group is None else gathered_objects(group, found, Call(said, call_site()))
    if error is not None and len({each and each[1] for each in errors}) == 1:
        raise error
    for rank, each in enumerate(errors):
        if each is not None:
            kind, text = each
            raise error_with_text(kind if issubclass(kind, AmpkitError) else FileError, f"rank {rank}: {text}")
    return result  # type: ignore[return-value]  # `action` has returned
