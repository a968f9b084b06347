"""The command line: train, bench, ops, doctor. Exit status 0 done, 1 the run failed, 2 the user's input is wrong."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from .. import __version__, config
from ..base.errors import AmpkitError, ConfigError, FileError, NonFiniteError
from ..core.op import ops
from ..core.policy import Policy
from ..run.bench import Result, Started, bench
from ..run.loop import Row, Run, fit
from ..run.metrics_log import MetricsLog, ResumePoint, examine, read
from ..run.run_dir import RunDirectory, default_directories
from . import display, doctor
from .signals import Ended, Signals

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130  # 130: 128 + SIGINT, as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    try:
        options = _parse(arguments)
        return int(options.run(options, _console()))
    except NonFiniteError as error:
        return _say(f"failed: {error}", FAILED)
    except AmpkitError as error:
        return _say(str(error), WRONG)
    except MemoryError as error:
        cure = "lower data.batch_size, or take a smaller model"
        return _say(f"failed: out of memory{f' ({error})' if str(error) else ''}\nhelp: {cure}", FAILED)
    except KeyboardInterrupt as error:
        return _say("interrupted", error.status if isinstance(error, Ended) else INTERRUPTED)
    except OSError as error:
        return _say(f"failed: {error}", FAILED)


def _console() -> Console:
    console = display.console(sys.stdout)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120  # a file has no width: room for tables
    return console


def _say(line: str, status: int) -> int:
    display.console(sys.stderr, soft_wrap=True).print(f"ampkit: {escape(line)}")
    return status


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, like the rest of ampkit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, help=f"`{self.prog} --help` shows what there is")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse takes no positional arguments after an option: key=value may stand anywhere.
    unknown = [word for word in rest if word.startswith("-") or not hasattr(options, "overrides")]
    if unknown:
        raise _unknown(unknown[0], options.command)
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _unknown(word: str, command: argparse.ArgumentParser) -> ConfigError:
    close = difflib.get_close_matches(word.partition("=")[0], _options(command), 1)
    cure = f"did you mean {close[0]}?" if close else f"`{command.prog} --help` shows what there is"
    return ConfigError(f"unknown argument {word!r}", help=cure)


def _options(command: argparse.ArgumentParser) -> list[str]:
    return [word for action in command._actions for word in action.option_strings]


def _path(text: str) -> str:
    if not 0 < len(text) <= 4096 or "\0" in text or text.encode(errors="ignore").decode() != text:
        raise argparse.ArgumentTypeError(f"needs a path of UTF-8 without a zero byte, got {text[:60]!r}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("ampkit", description="Automatic mixed-precision training on NumPy.")
    parser.add_argument("--version", action="version", version=f"ampkit {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    train = _command(commands, "train", _train, "train a recipe")
    _recipe(train)
    train.add_argument("--device", help="where to train: cpu (default), or another device of this machine")
    train.add_argument(
        "--run-dir", type=_path, help="where config, metrics and checkpoints go: a new or empty directory"
    )
    train.add_argument("--resume", action="store_true", help="go on with the run in --run-dir from its last checkpoint")
    compare = _command(commands, "bench", _bench, "train a recipe in float32, bfloat16 and float16, side by side")
    _recipe(compare)
    compare.add_argument("--json", type=_path, metavar="FILE", help="write the results there as well")
    table = _command(commands, "ops", _ops, "every op: its category, its dtype, the kernels that run it")
    table.add_argument("--policy", default="float16", help="float16 (default) or bfloat16")
    table.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="whose kernels: cpu (default) or cuda")
    table.add_argument("--fast", action="store_true", help="the preset that stores norms and softmax in 16 bits")
    _command(commands, "doctor", _doctor, "what this machine has and what is missing")
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], what: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    command.set_defaults(run=run, command=command)
    return command


def _recipe(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", type=_path, metavar="RECIPE.toml", help="the recipe")
    what = "write over the recipe: amp.dtype=float16"
    command.add_argument("overrides", nargs="*", default=(), metavar="key=value", help=what)


def _train(options: argparse.Namespace, console: Console) -> int:
    overrides = [*options.overrides, *([f'train.device="{options.device}"'] if options.device else [])]
    recipe = config.load(options.recipe, overrides)
    with Signals() as signals, _directory(options, recipe.amp.dtype) as directory:
        run = fit(recipe, directory.checkpoints, options.resume)
        if options.resume and run.finished:
            return _finished(run, directory, console)
        return _trained(run, directory, signals, options, console)


def _directory(options: argparse.Namespace, dtype: str) -> RunDirectory:
    if options.run_dir:
        return RunDirectory(options.run_dir, options.resume)
    if options.resume:
        raise ConfigError("--resume", "the run directory to go on in", "none", "add --run-dir DIR")
    return RunDirectory.first_free(default_directories(options.recipe, dtype, datetime.now()))


def _finished(run: Run, directory: RunDirectory, console: Console) -> int:
    _show_damaged(run, console)
    metrics, (after, mark) = directory.metrics, _reached(run)
    if after is not None and (fault := examine(read(metrics), after, mark)[1]):
        console.print(escape(f"{metrics}: {fault}"), soft_wrap=True)
    said = f"{directory.path}: all {run.done} steps are done; train.steps={2 * run.done} would go on"
    console.print(escape(said), soft_wrap=True)
    return DONE


def _trained(run: Run, directory: RunDirectory, signals: Signals, options: argparse.Namespace, console: Console) -> int:
    log, rows = directory.begin(run.recipe, *_reached(run)), list[Row]()
    _show_start(run, directory, options.resume, console)
    where, onward = f"metrics are in {directory.metrics}", f"to go on: {_command_to_go_on(options, directory.path)}"
    try:
        for row in _rows(run, log, signals, console):
            rows.append(row)
    except NonFiniteError as error:
        return _say(f"failed: {error}" + (f"\n{where}" if log.size else ""), FAILED)
    except FileError as error:  # of a disk that is full, or of a sample that cannot be read
        return _say(f"failed: {error}" + (f"\nhelp: {onward}" if log.size else ""), FAILED)
    if run.stopping and not run.finished:
        line = f"interrupted after step {run.done} of {run.steps}; {where}"
        return _say(f"{line}\nhelp: {onward}", signals.status)
    console.print(display.summary(run.recipe, rows, run.per_step, run.unit, str(directory.path)))
    return DONE


def _reached(run: Run) -> tuple[ResumePoint | None, dict[str, Any] | None]:
    """Where the run goes on, and what its checkpoint recorded of the metrics; nothing for one that starts."""
    return (None, None) if run.resumed is None else (ResumePoint(run.done, run.evaluated), run.resumed.metrics)


def _show_damaged(run: Run, console: Console) -> None:
    for line in run.resumed.damaged if run.resumed else ():
        console.print(f"passed over: {escape(line)}", soft_wrap=True)


def _show_start(run: Run, directory: RunDirectory, resume: bool, console: Console) -> None:
    """Say what was damaged, and where a run that was to go on begins."""
    _show_damaged(run, console)
    for line in directory.notices:
        console.print(escape(line), soft_wrap=True)
    if run.resumed is not None:
        said = f"going on after step {run.done} of {run.steps}, from {run.resumed.path}"
        console.print(escape(said), soft_wrap=True)
    elif resume:
        said = f"{directory.path} holds no checkpoint to resume from: starting at step 1"
        console.print(escape(said), soft_wrap=True)


def _rows(run: Run, log: MetricsLog, signals: Signals, console: Console) -> Iterator[Row]:
    """The rows of a run, written and shown; a signal ends it after the step under way, a second one at once."""
    run.before_saving, signals.stop = log.sync, run.stop
    meter = display.Meter(console, run.recipe.amp.dtype, run.steps, run.per_step, run.unit)
    with log, meter:
        try:
            for row in run:
                log.write(row)
                meter.show(row)
                yield row
        except KeyboardInterrupt:
            run.stop()


def _command_to_go_on(options: argparse.Namespace, directory: Path) -> str:
    device = ["--device", options.device] if options.device else []
    words = ["ampkit", "train", options.recipe, *options.overrides, *device, "--resume", "--run-dir", str(directory)]
    return shlex.join(words)


def _bench(options: argparse.Namespace, console: Console) -> int:
    recipe = config.load(options.recipe, options.overrides)
    if options.json:
        _need_writable(Path(options.json))
    results: list[Result] = []
    with ExitStack() as stack:
        for event in bench(recipe):
            if isinstance(event, Started):
                what = (event.dtype, event.steps, event.per_step, event.unit)
                meter = stack.enter_context(display.Meter(console, *what, every=max(1, event.steps // 10)))
            elif isinstance(event, Result):
                stack.close()
                results.append(event)
            else:
                meter.show(event)
    _write_results(options, results)
    console.print(display.comparison(f"{Path(options.recipe).name}, {platform.machine()}", results))
    for result in (result for result in results if result.error):
        _say(f"{result.dtype} failed: {result.error}", FAILED)
    console.print(f"whole time: {sum(result.wall_seconds or 0 for result in results):.1f} s")
    return FAILED if any(result.error for result in results) else DONE


def _need_writable(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise FileError("--json", "a file that can be written", f"{str(path)!r}: {error.strerror}") from None


def _write_results(options: argparse.Namespace, results: list[Result]) -> None:
    if options.json:
        content = {"recipe": options.recipe, "overrides": options.overrides, "results": [asdict(r) for r in results]}
        Path(options.json).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _ops(options: argparse.Namespace, console: Console) -> int:
    policy = (Policy.fast if options.fast else Policy)(options.policy)
    console.print(display.policy_table(policy, ops.values(), options.device))
    return DONE


def _doctor(options: argparse.Namespace, console: Console) -> int:
    console.print(display.findings(doctor.examine()))
    return DONE
