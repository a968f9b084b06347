"""The command line. Exit status 0: done, 1: the run failed, 2: the user's input is wrong."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from rich.console import Console

from .. import __version__
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
        return int(options.run(options, _console()))
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
    if options.run is not train.run and (found := launched()).rank and found.launcher not in BY_MACHINE:
        got = f"rank {found.rank} of {found.world_size}"
        raise ConfigError(options.command.prog.split()[-1], "one process", got, "start it without a launcher")


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as a ConfigError, with the nearest valid word."""

    def error(self, message: str) -> NoReturn:
        cure = f"`{self.prog} --help` lists what there is"
        if match := re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            what, word, choices = match[1], match[2], re.findall(r"[\w-]+", match[3])
            raise ConfigError(f"unknown {what} {word!r}", cure=did_you_mean(word, choices) or cure)
        raise ConfigError(message, cure=self._misspelt_option() or cure)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse says only which argument is missing, not which of those given it did not know.
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def _misspelt_option(self) -> str | None:
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = [word for word in self._given if word.startswith("-") and word.partition("=")[0] not in flags]
        return did_you_mean(unknown[0], flags, cutoff=0.75) if unknown else None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    # argparse takes no positional arguments after an option: key=value may stand anywhere.
    unknown = [word for word in rest if word.startswith("-") or not hasattr(options, "overrides")]
    if unknown:
        raise ConfigError(f"unknown argument {unknown[0]!r}", cure=_cure_of(unknown[0], rest, options.command))
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _cure_of(word: str, rest: Sequence[str], command: argparse.ArgumentParser) -> str:
    """What an unknown argument probably meant: a key of the recipe, or the nearest option."""
    name, _, value = word.lstrip("-").partition("=")
    after = rest[rest.index(word) + 1 :]
    value = value or (after[0] if after and not after[0].startswith("-") else "...")
    if found := ([name] if is_key(name) else keys_named(name)):
        return f"keys of a recipe are written {' or '.join(f'{key}={value}' for key in found)}"
    flags = [flag for action in command._actions for flag in action.option_strings]
    return did_you_mean(word.partition("=")[0], flags) or f"`{command.prog} --help` lists them"


def _path(text: str) -> str:
    if not 0 < len(text) <= 4096 or "\0" in text or text.encode(errors="ignore").decode() != text:
        raise argparse.ArgumentTypeError(f"needs a path of UTF-8 without a zero byte, got {text[:60]!r}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("ampkit", description="Automatic mixed-precision training on NumPy and CuPy.")
    parser.add_argument("--version", action="version", version=f"ampkit {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    what = "ask what to train on what, and write a recipe with a comment for every key"
    init.add_arguments(_command(commands, "init", init.run, what), _path)
    training = _command(commands, "train", train.run, "train a recipe")
    _recipe(training)
    training.add_argument("--run-dir", type=_path, help="directory for config, metrics and checkpoints: new or empty")
    training.add_argument("--resume", action="store_true", help="resume the run in --run-dir from its last checkpoint")
    what = "train a recipe, or run a script, on several ranks; restart it when one dies"
    launch.add_arguments(_command(commands, "launch", partial(launch.run, parse=_parse), what))
    compare = _command(commands, "bench", bench.run, "train a recipe in float32, bfloat16 and float16, side by side")
    _recipe(compare)
    bench.add_arguments(compare, _path)
    _recipe(_command(commands, "summary", summary.run, "list the layers of a recipe, its parameters, FLOPs and memory"))
    planned = _command(commands, "plan", plan.run, "show in which dtype each op of a recipe runs, why, and its casts")
    _recipe(planned)
    plan.add_arguments(planned, _path)
    tuned = _command(commands, "tune", tune.run, "search the fastest policy of a recipe whose loss is near float32's")
    _recipe(tuned)
    tune.add_arguments(tuned, _path)
    what = "measure which layers of a recipe survive which format below 16 bits, and what the loss becomes"
    laboratory = _command(commands, "lab", lab.run, what)
    _recipe(laboratory)
    lab.add_arguments(laboratory, _path)
    shown = _command(commands, "report", report.run, "write a page of charts that shows runs and compares them")
    report.add_arguments(shown, _path)
    what = "print the scores of a trained run's model on its held-out data"
    use.add_evaluate(_command(commands, "evaluate", use.evaluate, what), _path)
    predicted = _command(commands, "predict", use.predict, "print which classes a trained run's model sees in images")
    use.add_predict(predicted, _path)
    generated = _command(commands, "generate", use.generate, "continue a text with a trained run's language model")
    use.add_generate(generated, _path)
    what = "write a trained run's model as safetensors with its recipe and a model card, or as ONNX"
    use.add_export(_command(commands, "export", use.export, what), _path)
    what = "convert a trained run's layers to int8 for inference, and show what that loses and saves"
    quantize.add_arguments(_command(commands, "quantize", quantize.run, what), _path)
    keys.add_arguments(_command(commands, "keys", keys.run, "list the keys of a recipe: type, default, meaning"))
    shells = partial(completion.run, parser=parser)
    what = "print a script that completes commands, recipes and keys in a shell"
    completion.add_arguments(_command(commands, "completion", shells, what))
    table = _command(commands, "ops", _ops, "list every op: cast category, dtype, kernels")
    table.add_argument("--policy", default="float16", help="float16 (default) or bfloat16")
    table.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="whose kernels: cpu (default) or cuda")
    table.add_argument("--fast", action="store_true", help="the policy that stores norms and softmax in 16 bits")
    _command(commands, "doctor", _doctor, "show what this machine has for mixed precision, and what is missing")
    return parser


def _command(commands: Any, name: str, run: Callable[..., int], what: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what)
    command.set_defaults(run=run, command=command)
    return command


def _recipe(command: argparse.ArgumentParser) -> None:
    what = "a TOML file, or the name of a recipe that comes with ampkit: digits_cnn"
    command.add_argument("recipe", type=_path, metavar="RECIPE", help=what)
    what = "replace a key of the recipe: amp.dtype=float16"
    command.add_argument("overrides", nargs="*", default=(), metavar="key=value", help=what)
    command.add_argument("--device", help="where to train: cpu (default), cuda or cuda:<index>")


def _ops(options: argparse.Namespace, console: Console) -> int:
    policy = (Policy.fast if options.fast else Policy)(options.policy)
    console.print(display.policy_table(policy, ops.values(), options.device))
    return DONE


def _doctor(options: argparse.Namespace, console: Console) -> int:
    console.print(display.findings(doctor.examine()))
    return DONE
