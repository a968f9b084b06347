"""`ampkit train`: run a recipe in a run directory, show its rows, and end well on a signal."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import config
from ..base.byte_sizes import bytes_in_words
from ..base.errors import AmpkitError, ConfigError, FileError, NonFiniteError
from ..distributed.resilient import RankLostError
from ..run.loggers import Loggers, Start
from ..run.loggers.ranges_log import RangesLog
from ..run.loop import Row, Run, fit
from ..run.metrics_log import MetricsLog, ResumePoint, examine, read
from ..run.ranks import Ranks
from ..run.run_dir import RunDirectory, bytes_of, bytes_of_runs, default_directories
from ..run.trainer.object_store import StoredRunDirectory, fetched, is_url
from ..run.trainer.signals import Ended as Ended
from ..run.trainer.signals import Signals as Signals
from . import display, use
from .contention import Contention
from .progress import ProgressMeter, status

_MUCH = 2 * 2**30  # bytes of runs in a folder, which are mentioned


def overrides(options: argparse.Namespace) -> list[str]:
    """The overrides of the command line, --device among them."""
    return [*options.overrides, *([f'train.device="{options.device}"'] if options.device else [])]


def run(options: argparse.Namespace, console: Console) -> int:
    """Train the recipe of the command line, on all ranks that a launcher has started; returns the exit status."""
    ranks = Ranks.of_launcher()
    while True:
        try:
            status = _attempt(options, ranks, console)
            ranks.agree_on_the_end()
            return status
        except RankLostError:
            ranks, died = Ranks.that_are_left()
            options.resume = options.resume or bool(options.run_dir)
            if ranks.rank == 0:
                who = f"rank{'s' if len(died) > 1 else ''} {', '.join(map(str, died))}"
                left = f"{ranks.size} rank{'s' if ranks.size > 1 else ''}"
                display.print_line(console, f"{who} died: going on with {left} from the last checkpoint")


def _attempt(options: argparse.Namespace, ranks: Ranks, console: Console) -> int:
    try:
        return _lead(options, ranks, console) if ranks.rank == 0 else _follow(options, ranks)
    except (AmpkitError, OSError, MemoryError) as error:
        if ranks.rank and ranks.in_agreement:
            return display.failure(error)[1]  # rank 0 says why
        raise


def _lead(options: argparse.Namespace, ranks: Ranks, console: Console) -> int:
    recipe = ranks.agreed(lambda: config.load(options.recipe, overrides(options)))
    with Signals() as signals, ExitStack() as stack:
        directory = ranks.agreed(lambda: stack.enter_context(_directory(options, recipe.amp.precision)))
        ranks.of_first(directory.checkpoints)
        if is_url(options.run_dir):  # the others read a copy each
            ranks.agreed(lambda: None)
        options.run_dir = directory.name
        with status(console, f"building {recipe.model.name} and reading {recipe.data.name}"):
            training = ranks.agreed(lambda: fit(recipe, directory.checkpoints, options.resume, ranks))
        if options.resume and training.finished:
            return _print_finished(training, directory, console)
        if isinstance(directory, StoredRunDirectory) and training.checkpoints is not None:
            training.checkpoints.after_saving = directory.upload
        return _train(training, directory, signals, options, console)


def _follow(options: argparse.Namespace, ranks: Ranks) -> int:
    """The part of the ranks above 0, which print and write nothing: the same collectives in the same order."""
    recipe = ranks.agreed(lambda: config.load(options.recipe, overrides(options)))
    with Signals() as signals, ExitStack() as stack:
        ranks.agreed(lambda: None)
        checkpoints = ranks.of_first(Path())
        if is_url(options.run_dir):
            checkpoints = ranks.agreed(lambda: stack.enter_context(fetched(options.run_dir))) / checkpoints.name
        else:
            options.run_dir = str(checkpoints.parent)  # should this rank come to lead
        training = ranks.agreed(lambda: fit(recipe, checkpoints, options.resume, ranks))
        if options.resume and training.finished:
            return 0
        ranks.agreed(lambda: None)
        signals.stop = training.stop
        try:
            with ranks.raising_alike():
                for _ in training:
                    pass
        except FileError as error:
            return 1 if ranks.in_agreement else display.print_error(f"failed: {error}", 1)
        return signals.status if training.stopping and not training.finished else 0


def _directory(options: argparse.Namespace, dtype: str) -> RunDirectory:
    if is_url(options.run_dir):
        return StoredRunDirectory(options.run_dir, options.resume)
    if options.run_dir:
        return RunDirectory(options.run_dir, options.resume)
    if options.resume:
        raise ConfigError("--resume", "the run directory to resume", "none", "add --run-dir DIR")
    return RunDirectory.first_free(default_directories(options.recipe, dtype, datetime.now()))


def _print_finished(run: Run, directory: RunDirectory, console: Console) -> int:
    _print_damaged(run, console)
    metrics, (after, mark) = directory.metrics, _resume_point(run)
    if after is not None and (fault := examine(read(metrics), after, mark)[1]):
        display.print_line(console, f"{metrics}: {fault}")
    onward = f"all {run.done} steps are done; train.steps={2 * run.done} would continue"
    if run.early_end:
        onward = f"{run.early_end}; train.patience={2 * (run.recipe.train.patience or 1)} would continue"
    line = f"{directory.name}: {onward}"
    display.print_line(console, line)
    return 0


def _train(run: Run, directory: RunDirectory, signals: Signals, options: argparse.Namespace, console: Console) -> int:
    rows: list[Row] = []
    log, ranges_log = run.ranks.agreed(lambda: _logs(run, directory))
    directory.notices += ranges_log.notices
    _print_start(run, directory, options.resume, console)
    where = f"metrics are in {_shown(directory, directory.metrics)}"
    onward = f"to resume: {_resume_command(options, directory.name, run.ranks)}"
    start = Start(directory.path, run.recipe.model_dump(mode="json"), run.done)
    loggers = Loggers(run.recipe.train.loggers, start, partial(display.print_line, console))
    try:
        with loggers, run.ranks.raising_alike():
            for row in _rows(run, log, ranges_log, signals, console):
                loggers.write(row)
                rows.append(row)
    except NonFiniteError as error:
        return display.print_error(f"failed: {error}" + (f"\n{where}" if log.size else ""), 1)
    except FileError as error:  # a full disk, or a sample that cannot be read
        saved = run.checkpoints is not None and any(run.checkpoints.directory.glob("step-*.json"))
        onward = onward if saved else f"no checkpoint was saved before it; {onward}, from step 1"
        return display.print_error(f"failed: {error}" + (f"\nhelp: {onward}" if log.size else ""), 1)
    if run.stopping and not run.finished:
        line = f"interrupted after step {run.done} of {run.steps}; {where}"
        return display.print_error(f"{line}\nhelp: {onward}", signals.status)
    size = bytes_of(directory.path)
    done = run.done, run.seconds
    console.print(display.summary(run.recipe, rows, run.per_step, run.unit, directory.name, size, done))
    if run.early_end:
        display.print_line(console, run.early_end)
    if not is_url(directory.name):
        display.print_line(console, use.hint(run.recipe, directory.name))
        if text := _disk_use(directory.path.absolute().parent):
            display.print_line(console, text)
    for advice in run.ranges.recommendations() if run.ranges is not None else ():
        display.print_line(console, f"- {advice}")
    return 0


def _shown(directory: RunDirectory, path: Path) -> str:
    """A file of a run, as users know it."""
    return f"{directory.name}/{path.relative_to(directory.path)}" if is_url(directory.name) else str(path)


def _disk_use(folder: Path) -> str:
    """What to say of a folder of runs that takes much space; "" of others."""
    count, size = bytes_of_runs(folder)
    if size < _MUCH:
        return ""
    what = f"{folder} holds {count} run{'s' * (count > 1)} of {bytes_in_words(size)}"
    return f"{what}: delete those that are not needed; train.keep=1 keeps fewer checkpoints of each"


def _logs(run: Run, directory: RunDirectory) -> tuple[MetricsLog, RangesLog]:
    after, mark = _resume_point(run)
    dtypes = run.precisions().named()
    about = {"ranks": run.ranks.size, "per_step": run.per_step, "unit": run.unit, "precisions": dtypes}
    log = directory.begin(run.recipe, after, mark, about)
    return log, RangesLog(directory.path / "ranges.jsonl", run.ranges, after)


def _resume_point(run: Run) -> tuple[ResumePoint | None, dict[str, Any] | None]:
    """Where the run resumes, and what its checkpoint recorded of the metrics; None for a run that starts."""
    return (None, None) if run.resumed is None else (ResumePoint(run.done, run.evaluated), run.resumed.metrics)


def _print_damaged(run: Run, console: Console) -> None:
    for line in run.resumed.damaged if run.resumed else ():
        display.print_line(console, f"skipped a damaged checkpoint: {line}")


def _print_start(run: Run, directory: RunDirectory, resume: bool, console: Console) -> None:
    """Print what was found damaged, and from which step a run with --resume continues."""
    _print_damaged(run, console)
    if (size := run.ranks.size) > 1:
        threads = run.recipe.train.threads
        console.print(f"training on {size} ranks, this one with {threads} thread{'s' if threads != 1 else ''}")
    for line in (*directory.notices, *run.notes):
        display.print_line(console, line)
    for line in run.precisions().lines():
        display.print_line(console, line)
    if run.pretrained is not None:
        display.print_line(console, f"starting from {run.pretrained}")
    if run.resumed is not None:
        display.print_line(
            console, f"resuming after step {run.done} of {run.steps}, from {_shown(directory, run.resumed.path)}"
        )
    elif resume:
        display.print_line(console, f"{directory.name} holds no checkpoint to resume from: starting at step 1")


def _rows(run: Run, log: MetricsLog, ranges: RangesLog, signals: Signals, console: Console) -> Iterator[Row]:
    """The rows of a run, written and shown; a signal ends it after the current step, a second one at once."""
    what = run.recipe.amp.precision, run.steps, run.per_step, run.unit
    meter = ProgressMeter(console, *what, done=lambda: run.done)

    def stop() -> None:
        run.stop()
        meter.notice("stopping after this step, with a checkpoint; Ctrl-C again stops at once")

    def sync() -> Mapping[str, Any]:
        ranges.sync()
        return log.sync()

    run.before_saving, signals.stop = sync, stop
    run.notice = partial(display.print_line, console)
    contention = Contention(run.recipe.train.threads or 1)
    with log, ranges, meter:
        try:
            for row in run:
                log.write(row)
                ranges.write()
                meter.show(row)
                if line := contention.notice():
                    display.print_line(console, line)
                yield row
        except KeyboardInterrupt:
            run.stop()


def _resume_command(options: argparse.Namespace, directory: str, ranks: Ranks) -> str:
    launcher = ["launch", "-n", str(ranks.size)] if ranks.size > 1 else []
    device = ["--device", options.device] if options.device else []
    recipe = ["train", options.recipe, *options.overrides]
    return shlex.join(["ampkit", *launcher, *recipe, *device, "--resume", "--run-dir", directory])
