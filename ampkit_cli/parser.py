"""The parser of the command line, which raises its mistakes, and the types of arguments."""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import Any, NoReturn

_FEW = 5  # choices that a message lists


class MistakeError(Exception):
    """What is wrong with a command line; `choices` are the words that could have stood in place of `word`."""

    def __init__(self, message: str, word: str = "", choices: tuple[str, ...] = (), cure: str = ""):
        super().__init__(message)
        self.word, self.choices, self.cure = word, choices, cure


class Help(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # Each line by itself; those that are indented, which are commands, as they are.
        lines = [line if line.startswith(" ") else super(Help, self)._fill_text(line, width, indent)
                 for line in text.splitlines()]  # fmt: skip
        return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    """Raises a MistakeError for what it cannot parse."""

    def error(self, message: str) -> NoReturn:
        cure = f"`{self.prog} --help` lists what there is"
        if match := re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            what, word, choices = match[1], match[2], tuple(re.findall(r"[\w-]+", match[3]))
            few = f"one of {', '.join(choices)}" if len(choices) <= _FEW else cure
            raise MistakeError(f"unknown {what} {word!r}", word, choices, few)
        word, known = self._unknown_option()
        if word and self._subparsers is not None:  # no command was found, since an option stands in its place
            message = f"unknown argument {word!r}"
        raise MistakeError(message, word, known, cure)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse says only which argument is missing, not which of those given it did not know.
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def flags(self) -> tuple[str, ...]:
        """The options."""
        return tuple(flag for action in self._actions for flag in action.option_strings)

    def commands(self) -> dict[str, Parser]:
        """The commands by name."""
        found = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return dict(next(found).choices)

    def takes_recipe(self) -> bool:
        """Whether this is a command with a recipe and its keys."""
        return any(action.dest == "recipe" for action in self._actions)

    def takes_keys(self) -> bool:
        """Whether keys of a recipe may be given."""
        return any(action.dest == "overrides" for action in self._actions)

    def _unknown_option(self) -> tuple[str, tuple[str, ...]]:
        known = self.flags()
        unknown = [word for word in self._given if word.startswith("-") and word.partition("=")[0] not in known]
        return (unknown[0], known) if unknown else ("", ())


def path(text: str) -> str:
    """A path, as an argument."""
    if not 0 < len(text) <= 4096 or "\0" in text or text.encode(errors="ignore").decode() != text:
        raise argparse.ArgumentTypeError(f"needs a path of UTF-8 without a zero byte, got {text[:60]!r}")
    return text


def share(text: str) -> float:
    """A number above 0, as an argument."""
    value = _number(text, float)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"needs a number above 0, got {text}")
    return value


def count(text: str) -> int:
    """A number from 1, as an argument."""
    value: int = _number(text, int)
    if value < 1:
        raise argparse.ArgumentTypeError(f"needs a number from 1, got {text}")
    return value


def _number(text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"needs {what}, got {text[:60]!r}") from None


def integer(text: str) -> int:
    """A whole number, as an argument."""
    value: int = _number(text, int)
    return value


def number(text: str) -> float:
    """A number, as an argument."""
    value: float = _number(text, float)
    return value
