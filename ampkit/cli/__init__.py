"""The command line. Exit status 0: done, 1: the run failed, 2: the user's input is wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Console

from ampkit_cli.arguments import parser
from ampkit_cli.parser import MistakeError, Parser

from ..base.errors import AmpkitError, ConfigError
from ..config.suggestions import did_you_mean, is_key, keys_named
from ..core.op import ops
from ..core.policy import Policy
from ..distributed.environment import BY_MACHINE, launched
from ..run import doctor
from . import (
    bench,
    completion,
    display,
    init,
    keys,
    lab,
    launch,
    plan,
    quantize,
    report,
    summary,
    train,
    tune,
    use,
)  # fmt: skip

DONE, INTERRUPTED, CLOSED_PIPE = 0, 130, 141  # 128 + SIGINT and SIGPIPE, as in shells


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    try:
        options = _parse(arguments)
        _need_one_process(options)
        return int(_RUN[options.command](options, _console()))
    except KeyboardInterrupt as error:
        return display.print_error("interrupted", error.status if isinstance(error, train.Ended) else INTERRUPTED)
    except BrokenPipeError:  # what reads the output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails again at its end
        return CLOSED_PIPE
    except (AmpkitError, MemoryError, OSError) as error:
        return display.print_error(*display.failure(error))


def _console() -> Console:
    # A command in a notebook's cell has a terminal on which no cursor moves up, and a bar would be a line per update.
    console = display.console(sys.stdout, force_terminal=False if "JPY_PARENT_PID" in os.environ else None)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120  # a file has no width: room for tables
    return console


def _need_one_process(options: argparse.Namespace) -> None:
    # Rank 0 goes on: a batch script of SLURM is one too, and the launcher ends it where there are others.
    if options.command != "train" and (found := launched()).rank and found.launcher not in BY_MACHINE:
        got = f"rank {found.rank} of {found.world_size}"
        raise ConfigError(options.command, "one process", got, "start it without a launcher")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    try:
        options, rest = parser().parse_known_args(arguments)
    except MistakeError as error:
        cutoff = 0.75 if error.word.startswith("-") else 0.6  # the mistake may be another one than the unknown option
        near = did_you_mean(error.word, error.choices, cutoff=cutoff)
        raise ConfigError(str(error), cure=near or error.cure) from None
    # argparse takes no positional arguments after an option: key=value may stand anywhere.
    unknown = [word for word in rest if word.startswith("-") or not hasattr(options, "overrides")]
    if unknown:
        raise ConfigError(f"unknown argument {unknown[0]!r}", cure=_cure_of(unknown[0], rest, options.parser))
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _cure_of(word: str, rest: Sequence[str], command: Parser) -> str:
    """What an unknown argument probably meant: a key of the recipe, or the nearest option."""
    name, _, value = word.lstrip("-").partition("=")
    after = rest[rest.index(word) + 1 :]
    value = value or (after[0] if after and not after[0].startswith("-") else "...")
    if found := ([name] if is_key(name) else keys_named(name)):
        if not command.takes_keys():
            return f"`{command.prog}` takes no keys of a recipe; `{command.prog} --help` lists what it takes"
        return f"keys of a recipe are written {' or '.join(f'{key}={value}' for key in found)}"
    return did_you_mean(word.partition("=")[0], command.flags()) or f"`{command.prog} --help` lists them"


def _ops(options: argparse.Namespace, console: Console) -> int:
    policy = (Policy.fast if options.fast else Policy)(options.policy)
    console.print(display.policy_table(policy, ops.values(), options.device))
    return DONE


def _doctor(options: argparse.Namespace, console: Console) -> int:
    console.print(display.findings(doctor.examine()))
    return DONE


_RUN: Mapping[str, Callable[[argparse.Namespace, Console], int]] = {
    "init": init.run, "train": train.run, "launch": partial(launch.run, parse=_parse), "bench": bench.run,
    "summary": summary.run, "plan": plan.run, "tune": tune.run, "lab": lab.run, "report": report.run,
    "evaluate": use.evaluate, "predict": use.predict, "generate": use.generate, "export": use.export,
    "quantize": quantize.run, "keys": keys.run, "completion": completion.run, "ops": _ops, "doctor": _doctor,
}  # fmt: skip
