"""Checkpoints: what a run is at a step, on disk, whole or not there.

A checkpoint is two files. `step-00000120-<sha>.safetensors` holds the state, as `ampkit.save` writes it;
`step-00000120.json`, its head, says which file that is, its size and SHA-256, the step, the recipe, the shapes, how
long the metrics were and their SHA-256, and the SHA-256 of all that. Each is written beside its place, brought to the
disk and moved there, the head last: without its head a checkpoint is none, and a head that was changed, or that no
longer fits its file, is found out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from .. import nn
from ..amp.grad_scaler import GradScaler
from ..base.errors import AmpkitError, FileError
from ..core import random
from ..core.nested import tensors_in
from ..core.saved_state import need_keys
from ..serialization import decode, encode, write

FORMAT = 2
_HEAD = {"format": int, "step": int, "file": str, "bytes": int, "sha256": str, "recipe": dict, "shapes": list}
_HEADS = {1: _HEAD, FORMAT: _HEAD | {"metrics": dict, "checksum": str}}  # format 1 has no checksum of its own


class Checkpoint(NamedTuple):
    """A checkpoint that was read.

    step: of its head. recipe: what it was trained with, as a dict. state: what was saved, on the CPU. path: of its
    head. metrics: what `save` was told of them, or None. damaged: of each newer one that could not be used, a line that
    says why.
    """

    step: int
    recipe: dict[str, Any]
    state: Any
    path: Path
    metrics: dict[str, Any] | None = None
    damaged: tuple[str, ...] = ()


class Checkpoints:
    """The checkpoints of a run in a directory of their own, of which the newest `keep` stay."""

    def __init__(self, directory: str | Path, keep: int = 2):
        self.directory, self.keep = Path(directory), keep

    def save(self, step: int, state: Any, recipe: Mapping[str, Any], metrics: Mapping[str, Any] | None = None) -> Path:
        """Write `state`, what `ampkit.save` takes, as the checkpoint of `step`; returns the path of its head.

        metrics: the `bytes` and `sha256` of the rows so far. On the disk when this returns; before that, the older ones
        are untouched. Raises FileError if it cannot be.
        """
        data = encode(state)
        digest = hashlib.sha256(data).hexdigest()
        name = f"{_stem(step)}-{digest[:8]}.safetensors"
        shapes = [[t.dtype.name, *t.shape] for t in tensors_in(state)]
        head = {"format": FORMAT, "step": step, "file": name, "bytes": len(data), "sha256": digest}
        head |= {"recipe": dict(recipe), "shapes": shapes, "metrics": dict(metrics or {})}
        path = self.directory / f"{_stem(step)}.json"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._write_both(self.directory / name, data, path, head)
            _settle(self.directory)
            self._clear(step, name)
        except FileError:
            raise
        except OSError as error:
            got = f"{str(self.directory)!r}: {error.strerror or error}"
            raise FileError("checkpoint", "a directory that can be written", got) from error
        return path

    def _write_both(self, state: Path, data: bytes, path: Path, head: dict[str, Any]) -> None:
        new = not state.exists()
        write("checkpoint", state, data)
        head = json.loads(json.dumps(head))  # as it is read back
        try:
            write("checkpoint", path, (json.dumps(head | {"checksum": _checksum(head)}) + "\n").encode())
        except FileError:
            if new:  # without a head it only takes room on a disk that may be full
                state.unlink(missing_ok=True)
            raise

    def last(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none at all.

        Raises FileError if there are some and none can be used.
        """
        damaged: list[str] = []
        for path in reversed(self._heads()):
            try:
                return _read(path)._replace(damaged=tuple(damaged))
            except AmpkitError as error:
                damaged.append(str(error).splitlines()[0])
        if damaged:
            cure = f"remove {str(self.directory)!r} to begin at step 0"
            raise FileError(f"none of {len(damaged)} checkpoints can be used; {damaged[0]}", help=cure)
        return None

    def _heads(self) -> list[Path]:
        return sorted(self.directory.glob("step-*.json"))

    def _clear(self, step: int, name: str) -> None:
        # What the newest `keep` up to this step do not need; one with a later step, damaged, is not of this run's past.
        heads = [path for path in self._heads() if path.stem <= _stem(step)]
        _remove(heads[: -self.keep])
        kept = {path.stem for path in heads[-self.keep :]}
        states = [p for p in self.directory.glob("step-*.safetensors") if p.name[: len(_stem(step))] <= _stem(step)]
        _remove(p for p in states if p.name[: len(_stem(step))] not in kept)
        _remove(p for p in states if p.name.startswith(f"{_stem(step)}-") and p.name != name)
        _remove(self.directory.glob(".step-*"))  # of a write that was cut off


def state_of(model: nn.Module, optimizer: Any, schedule: Any, scaler: GradScaler) -> dict[str, Any]:
    """What training goes on from, between two steps: the state of each part, and of the default random stream."""
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    states = {name: part.state_dict() for name, part in parts.items()}
    return {**states, "guard": scaler.monitor.state(), "random": random.default.state()}


def restore(
    state: Mapping[str, Any],
    model: nn.Module,
    optimizer: Any,
    schedule: Any,
    scaler: GradScaler,
    same_length: bool = True,
    average: nn.Module | None = None,
) -> None:
    """Bring the parts to a state of `state_of`. Without same_length the schedule keeps the constants it was made with.

    average: an AveragedModel, if the state holds one as `average`. Raises StateError, ArgumentError or DTypeError for a
    state of another form or of other parts; all parts are then as they were.
    """
    parts = (model, optimizer, schedule, scaler)
    averages = {} if average is None else {"average": average}
    need_keys("restore", state, ("model", "optimizer", "schedule", "scaler", "guard", "random", *averages))
    need_keys("restore", state["schedule"], ("last_epoch", "_pending"))
    before = deepcopy(state_of(*parts) | {name: each.state_dict() for name, each in averages.items()})
    try:
        _restore(state, *parts, same_length=same_length)
        for name, each in averages.items():
            each.load_state_dict(state[name])
    except BaseException:
        _restore(before, *parts, same_length=True)
        for name, each in averages.items():
            each.load_state_dict(before[name])
        raise


def _restore(
    state: Mapping[str, Any], model: nn.Module, optimizer: Any, schedule: Any, scaler: GradScaler, same_length: bool
) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    scaler.monitor.restore(state["guard"])
    place = {name: state["schedule"][name] for name in ("last_epoch", "_pending")}
    schedule.load_state_dict(state["schedule"] if same_length else {**schedule.state_dict(), **place})
    if not same_length:
        for group, values in zip(optimizer.param_groups, schedule.values(place["last_epoch"]), strict=True):
            group.update(values)
    random.default.restore(state["random"])


def _stem(step: int) -> str:
    return f"step-{step:08d}"


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _settle(directory: Path) -> None:
    # The names of new files reach the disk with their directory; Windows cannot open one.
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _read(path: Path) -> Checkpoint:
    head = _head(path)
    try:
        data = (path.parent / head["file"]).read_bytes()
    except OSError as error:
        raise _unfit(path, f"{head['file']}: {error.strerror or error}") from None
    if len(data) != head["bytes"]:
        raise _unfit(path, f"{head['file']} of {len(data)} bytes instead of {head['bytes']}")
    if hashlib.sha256(data).hexdigest() != head["sha256"]:
        raise _unfit(path, f"{head['file']} with other bytes than were written")
    state = decode(data, path.parent / head["file"], "cpu")
    return Checkpoint(head["step"], head["recipe"], state, path, head.get("metrics") or None)


def _head(path: Path) -> dict[str, Any]:
    try:
        head = json.loads(path.read_bytes())
    except OSError as error:
        raise _unfit(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise _unfit(path, "a head that is no JSON") from None
    if not isinstance(head, dict) or type(head.get("format")) is not int:
        raise _unfit(path, "a head of another kind")
    if head["format"] not in _HEADS:
        raise _unfit(path, f"format {head['format']}, where this ampkit knows {' and '.join(map(str, _HEADS))}")
    if faults := list(_faults(head, path)):
        raise _unfit(path, f"a head {', '.join(faults)}")
    return head


def _faults(head: dict[str, Any], path: Path) -> Iterator[str]:
    """What is wrong with a head: keys that its format does not have, other types, another step, other content."""
    kinds = _HEADS[head["format"]]
    yield from (f"without {key}" for key, kind in kinds.items() if type(head.get(key)) is not kind)
    if head.keys() - kinds:
        yield "with further keys"
    if "checksum" in kinds and head.get("checksum") != _checksum({k: v for k, v in head.items() if k != "checksum"}):
        yield "with other content than was written"
    if type(head.get("step")) is int and path.stem != _stem(head["step"]):
        yield "of another step than its name"
    if isinstance(head.get("file"), str) and (Path(head["file"]).name != head["file"] or "\0" in head["file"]):
        yield "whose file is not beside it"


def _checksum(head: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _unfit(path: Path, got: str) -> FileError:
    return FileError(str(path), "a whole checkpoint of ampkit", got)
