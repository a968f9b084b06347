"""Checkpoints: the state of a run at a step, written atomically.

A checkpoint is two files. `step-00000120-<sha>.safetensors` holds the state, as `ampkit.save` writes it.
`step-00000120.json`, its manifest, holds the name, size and SHA-256 of that file, the step, the recipe, the shapes, the
size and SHA-256 of the metrics, and a SHA-256 of all this. Each is written to a temporary file, flushed and renamed,
the manifest last: a state without a manifest is ignored, and a damaged manifest or state is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from .. import nn
from ..amp.grad_scaler import GradScaler
from ..base.atomic_file import write
from ..base.errors import AmpkitError, ArgumentError, FileError
from ..core import random
from ..core.nested import tensors_in
from ..core.saved_state import is_number, need_count, need_keys
from ..serialization import decode, encode

FORMAT = 2
_MANIFEST = {"format": int, "step": int, "file": str, "bytes": int, "sha256": str, "recipe": dict, "shapes": list}
_FORMATS = {1: _MANIFEST, FORMAT: _MANIFEST | {"metrics": dict, "checksum": str}}  # format 1 has no checksum of its own


class Checkpoint(NamedTuple):
    """A checkpoint that was read.

    step: the steps done. recipe: of the run, as a dict. state: what was saved, on the CPU. path: of its manifest.
    metrics: the size and SHA-256 of the metrics log then, or None. damaged: a line for each newer checkpoint that could
    not be used.
    """

    step: int
    recipe: dict[str, Any]
    state: Any
    path: Path
    metrics: dict[str, Any] | None = None
    damaged: tuple[str, ...] = ()


class Checkpoints:
    """The checkpoints of a run in a directory of their own; the newest `keep` are kept, and those of the best steps."""

    def __init__(self, directory: str | Path, keep: int = 2):
        self.directory, self.keep = Path(directory), keep
        self.after_saving: Callable[[], None] = lambda: None  # called when a checkpoint is on the disk

    def save(
        self,
        step: int,
        state: Any,
        recipe: Mapping[str, Any],
        metrics: Mapping[str, Any] | None = None,
        best: Collection[int] = (),
    ) -> Path:
        """Write `state`, a value that `ampkit.save` takes, as the checkpoint of `step`; returns its manifest's path.

        metrics: the `bytes` and `sha256` of the rows so far. best: the steps of other checkpoints that are kept. It is
        on the disk when this returns; only then are older ones deleted. Raises FileError if it cannot be written.
        """
        data = encode(state)
        digest = hashlib.sha256(data).hexdigest()
        name = f"{_stem(step)}-{digest[:8]}.safetensors"
        shapes = [[t.dtype.name, *t.shape] for t in tensors_in(state)]
        manifest = {"format": FORMAT, "step": step, "file": name, "bytes": len(data), "sha256": digest}
        manifest |= {"recipe": dict(recipe), "shapes": shapes, "metrics": dict(metrics or {})}
        path = self.directory / f"{_stem(step)}.json"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._write_both(self.directory / name, data, path, manifest)
            _sync_directory(self.directory)
            self._delete_old(step, name, best)
        except FileError:
            raise
        except OSError as error:
            got = f"{str(self.directory)!r}: {error.strerror or error}"
            raise FileError("checkpoint", "a directory that can be written", got) from error
        self.after_saving()
        return path

    def _write_both(self, state: Path, data: bytes, path: Path, manifest: dict[str, Any]) -> None:
        new = not state.exists()
        write("checkpoint", state, data)
        manifest = json.loads(json.dumps(manifest))  # as it is read back
        try:
            write("checkpoint", path, (json.dumps(manifest | {"checksum": _checksum(manifest)}) + "\n").encode())
        except FileError:
            if new:  # without a manifest it only takes space on a disk that may be full
                state.unlink(missing_ok=True)
            raise

    def last(self) -> Checkpoint | None:
        """The newest intact checkpoint; None if there are none at all.

        Raises FileError if all of them are damaged.
        """
        damaged: list[str] = []
        for path in reversed(self._manifests()):
            try:
                return _read(path)._replace(damaged=tuple(damaged))
            except AmpkitError as error:
                damaged.append(str(error).splitlines()[0])
        if damaged:
            cure = f"remove {str(self.directory)!r} to begin at step 0"
            raise FileError(f"none of {len(damaged)} checkpoints can be used; {damaged[0]}", cure=cure)
        return None

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of a step. Raises FileError if it is missing or damaged."""
        return _read(self.directory / f"{_stem(step)}.json")

    def _manifests(self) -> list[Path]:
        return sorted(self.directory.glob("step-*.json"))

    def _delete_old(self, step: int, name: str, best: Collection[int]) -> None:
        # Up to this step all but the newest and the best; a damaged one of a later step is not part of this run.
        manifests = [path for path in self._manifests() if path.stem <= _stem(step)]
        kept = {path.stem for path in manifests[-self.keep :]} | {_stem(each) for each in best}
        _remove(path for path in manifests if path.stem not in kept)
        states = [p for p in self.directory.glob("step-*.safetensors") if p.name[: len(_stem(step))] <= _stem(step)]
        _remove(p for p in states if p.name[: len(_stem(step))] not in kept)
        _remove(p for p in states if p.name.startswith(f"{_stem(step)}-") and p.name != name)
        _remove(self.directory.glob(".step-*"))  # of an interrupted write


def state_of(model: nn.Module, optimizer: Any, schedule: Any, scaler: GradScaler) -> dict[str, Any]:
    """The state of training between two steps: of each argument, and of the default random stream."""
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
    """Load a state of `state_of`. Without same_length the schedule keeps the constants of its constructor.

    average: an AveragedModel, if the state holds one as `average`. Raises StateError, ArgumentError or DTypeError for a
    state of another form or of other arguments; all arguments are then unchanged.
    """
    averages = {} if average is None else {"average": average}
    need_keys("restore", state, ("model", "optimizer", "schedule", "scaler", "guard", "random", *averages))
    need_keys("restore", state["schedule"], ("last_epoch", "_pending"))
    now = state_of(model, optimizer, schedule, scaler)
    before = deepcopy(now | {name: each.state_dict() for name, each in averages.items()})

    def load(state: Mapping[str, Any], same_length: bool) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        scaler.monitor.restore(state["guard"])
        progress = {name: state["schedule"][name] for name in ("last_epoch", "_pending")}
        schedule.load_state_dict(state["schedule"] if same_length else {**schedule.state_dict(), **progress})
        if not same_length:
            for group, values in zip(optimizer.param_groups, schedule.values(progress["last_epoch"]), strict=True):
                group.update(values)
        random.default.restore(state["random"])
        for name, each in averages.items():
            each.load_state_dict(state[name])

    try:
        load(state, same_length)
    except BaseException:
        load(before, same_length=True)
        raise


def _stem(step: int) -> str:
    return f"step-{step:08d}"


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    # New file names are on the disk once their directory is synced; Windows cannot open a directory.
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _read(path: Path) -> Checkpoint:
    manifest = _manifest(path)
    try:
        data = (path.parent / manifest["file"]).read_bytes()
    except OSError as error:
        raise _damaged(path, f"{manifest['file']}: {error.strerror or error}") from None
    if len(data) != manifest["bytes"]:
        raise _damaged(path, f"{manifest['file']} of {len(data)} bytes instead of {manifest['bytes']}")
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        raise _damaged(path, f"{manifest['file']} with other bytes than were written")
    state = decode(data, path.parent / manifest["file"])
    return Checkpoint(manifest["step"], manifest["recipe"], state, path, manifest.get("metrics") or None)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise _damaged(path, "a manifest that is no JSON") from None
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise _damaged(path, "a manifest of another format")
    if manifest["format"] not in _FORMATS:
        raise _damaged(path, f"format {manifest['format']}, but this ampkit reads {' and '.join(map(str, _FORMATS))}")
    if faults := list(_faults(manifest, path)):
        raise _damaged(path, f"a manifest {', '.join(faults)}")
    return manifest


def _faults(manifest: dict[str, Any], path: Path) -> Iterator[str]:
    """The defects of a manifest: missing or unknown keys, wrong types, another step, changed content."""
    kinds = _FORMATS[manifest["format"]]
    yield from (f"without {key}" for key, kind in kinds.items() if type(manifest.get(key)) is not kind)
    if manifest.keys() - kinds:
        yield "with further keys"
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    if "checksum" in kinds and manifest.get("checksum") != _checksum(content):
        yield "with other content than was written"
    if type(manifest.get("step")) is int and path.stem != _stem(manifest["step"]):
        yield "of another step than its name"
    name = manifest.get("file")
    if isinstance(name, str) and (Path(name).name != name or "\0" in name):
        yield "whose file is not beside it"


def _checksum(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _damaged(path: Path, got: str) -> FileError:
    return FileError(str(path), "a whole checkpoint of ampkit", got)


def need_counts(where: str, counts: Any) -> dict[str, Any]:
    """The counts of a state, checked: steps done, evaluated and skipped, seconds. Raises ArgumentError for others."""
    need_keys(where, counts, ("done", "evaluated", "skipped", "seconds"), exactly=True)
    done = need_count(where, "done", counts["done"])
    for name in ("evaluated", "skipped"):
        need_count(where, name, counts[name], 0, done)
    if not is_number(counts["seconds"]) or counts["seconds"] < 0:
        raise ArgumentError(where, "seconds as a number from 0", repr(counts["seconds"]))
    return dict(counts)
