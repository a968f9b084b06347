"""The directory of a Trainer: metrics.jsonl, checkpoints, a lock while it trains; and its loggers."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...base.errors import ArgumentError, FileError, one_of
from ...base.file_lock import LOCK_NAME, Lock
from ..checkpoint import Checkpoint, Checkpoints
from ..loggers import LOGGERS, Loggers, Start
from ..metrics_log import MetricsLog, ResumePoint
from .callbacks import ModelCheckpoint
from .rows import Row

Logger = str | Callable[[dict[str, Any]], Any]  # the name of one, or a function of a row
_WHERE = "default_root_dir"


def warn(text: str) -> None:
    """What a Trainer does with a notice, as the library prints nothing: a RuntimeWarning."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class Directory:
    """Where the rows and checkpoints of a training go. path: None writes no file.

    logger: names of loggers and functions of a row. checkpointing: says where checkpoints go and which are kept.
    notice: called with a line when a logger fails. writes: whether this process is the one that writes.
    """

    def __init__(
        self,
        path: str | Path | None,
        logger: Logger | Sequence[Logger],
        checkpointing: ModelCheckpoint,
        notice: Callable[[str], None],
        writes: bool = True,
    ):
        self.writes = writes
        self.path = None if path is None else Path(path)
        chosen = [logger] if isinstance(logger, str) or callable(logger) else list(logger)
        self._names = [each for each in chosen if isinstance(each, str)]
        self._functions = [each for each in chosen if not isinstance(each, str)]
        _check(self._names, self._functions, self.path)
        if checkpointing.dirpath is None and self.path is not None:
            checkpointing.dirpath = self.path / "checkpoints"
        folder = checkpointing.dirpath
        self.checkpoints = None if folder is None else Checkpoints(folder, checkpointing.keep)
        self._checkpointing, self._notice = checkpointing, notice
        self._log: MetricsLog | None = None
        self._loggers: Loggers | None = None

    @contextmanager
    def locked(self, continues: bool) -> Iterator[None]:
        """The directory, made and locked. Raises FileError if it holds a run that is not to be continued."""
        if self.path is None or not self.writes:
            yield
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = Lock(self.path / LOCK_NAME, _WHERE)
        except FileError:
            raise
        except OSError as error:
            got = f"{str(self.path)!r}: {error.strerror or error}"
            raise FileError(_WHERE, "a directory that can be written", got) from error
        try:
            self._need_own(continues)
            yield
        finally:
            lock.release()

    def _need_own(self, continues: bool) -> None:
        assert self.path is not None and self.checkpoints is not None
        if not continues and any(self.checkpoints.directory.glob("step-*.json")):
            cure = 'give another one, or continue it: fit(..., ckpt_path="last")'
            raise FileError(_WHERE, "a new directory", f"{str(self.path)!r}, which holds a run", cure)

    def checkpoint(self, path: str | Path) -> Checkpoint | None:
        """The checkpoint "last" or "best", or of one of its two files; None for "last" where there is none."""
        if str(path) not in ("last", "best"):
            manifest = Path(path)
            return Checkpoints(manifest.parent).at(_step_of(manifest))
        if self.checkpoints is None:
            raise ArgumentError("Trainer.fit", f"default_root_dir for ckpt_path={path!r}", "none")
        found = self.checkpoints.last()
        if path == "last":
            return found
        best = None if found is None else found.state.get("best")
        if best is None:
            raise FileError("Trainer.fit", "a run that was evaluated", f"{str(self.path)!r}, which was not")
        return self.checkpoints.at(best[0])

    @contextmanager
    def written(
        self, resumed: Checkpoint | None, after: ResumePoint | None
    ) -> Iterator[Callable[[], Mapping[str, Any] | None]]:
        """The metrics log and the loggers, open; gives the function that flushes the log."""
        with ExitStack() as stack:
            if self.path is not None and self.writes:
                mark = None if resumed is None else resumed.metrics
                log = stack.enter_context(MetricsLog(self.path / "metrics.jsonl", after, mark))
                for line in log.notices:
                    self._notice(line)
                start = Start(self.path, {}, 0 if after is None else after.done)
                self._log, self._loggers = log, stack.enter_context(Loggers(self._names, start, self._notice))
            try:
                yield self._sync
            finally:
                self._log = self._loggers = None

    def _sync(self) -> Mapping[str, Any] | None:
        return None if self._log is None else self._log.sync()

    def note(self, about: Mapping[str, Any], done: int) -> None:
        """Append a start after `done` steps to environment.jsonl, where reports find it."""
        if self.path is not None and self.writes:
            from ..run_dir import start  # only here: recipes take as long to import as all else

            try:
                with (self.path / "environment.jsonl").open("a") as file:
                    file.write(json.dumps(start(done, about)) + "\n")
            except OSError as error:
                got = f"{str(self.path)!r}: {error.strerror or error}"
                raise FileError(_WHERE, "a directory that can be written", got) from error

    def record(self, row: Row | Mapping[str, Any]) -> None:
        """Write a row everywhere."""
        if self._log is not None and self._loggers is not None:
            self._log.write(row)
            self._loggers.write(row)
        for function in self._functions if self.writes else ():
            function(dict(row) if isinstance(row, Mapping) else row.values())


def _check(names: Sequence[str], functions: Sequence[Any], path: Path | None) -> None:
    for name in names:
        if name not in LOGGERS:
            raise ArgumentError("logger", f"{one_of(LOGGERS)}, or a function of a row", repr(name))
    for function in functions:
        if not callable(function):
            raise ArgumentError("logger", "names, and functions of a row", f"a {type(function).__name__}")
    if names and path is None:
        raise ArgumentError("logger", f"{_WHERE}, where {names[0]} writes", "none")


def _step_of(manifest: Path) -> int:
    found = re.match(r"step-(\d{8,})(-|$)", manifest.stem)
    if found is None:
        needs = '"last", "best", or a file of a checkpoint, such as step-00000120.json'
        raise ArgumentError("Trainer.fit", f"ckpt_path to be {needs}", repr(str(manifest)))
    return int(found[1])
