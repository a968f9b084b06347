"""`ampkit init`: ask what to train on what, and write a recipe in which every key is explained."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from ..base.errors import ConfigError, FileError
from ..config import draft
from ..config.suggestions import did_you_mean
from .display import print_line

_PRECISIONS = ["bfloat16", "float16", "float32"]


def run(options: argparse.Namespace, console: Console) -> int:
    """Ask for what the command line leaves open, and write the recipe."""
    path = Path(options.name if options.name.endswith(".toml") else f"{options.name}.toml")
    if path.exists():
        raise FileError("init", "the name of a new recipe", f"{str(path)!r}, which exists", "give another name")
    answers = _Answers(options.overrides, console, options.yes)
    text = draft.text(_tables(answers), path.stem)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise FileError("init", "a file that can be written", f"{str(path)!r}: {error.strerror}") from None
    print_line(console, f"wrote {path}\nto train it: ampkit train {path}")
    return 0


class _Answers:
    """What is known so far, as overrides; `ask` adds what a user types, or what is proposed where none is asked."""

    def __init__(self, given: Iterable[str], console: Console, quiet: bool):
        self.given, self.console, self.quiet = [*given], console, quiet

    def of(self, key: str) -> str | None:
        """What was given for a key."""
        found = [each.partition("=")[2].strip() for each in self.given if each.partition("=")[0].strip() == key]
        return found[-1].strip("\"'") if found else None

    def ask(self, key: str, question: str, proposed: str | None = None, choices: Sequence[str] = ()) -> str:
        """The answer for a key: given, typed or proposed. Raises ConfigError where there is none."""
        answer = self.of(key)
        if answer is None:
            answer = self._typed(key, question, proposed)
            self.given.append(f"{key}={answer}")
        if choices and answer not in choices:
            raise ConfigError(
                f"init: {key}", f"one of {', '.join(choices)}", repr(answer), did_you_mean(answer, choices)
            )
        return answer

    def _typed(self, key: str, question: str, proposed: str | None) -> str:
        answer = "" if self.quiet else self._line(f"{question}{f' [{proposed}]' if proposed is not None else ''}: ")
        if not answer and proposed is None:
            raise ConfigError("init", f"{key}, {question}", "no answer", f"give it as {key}=...")
        return answer or proposed or ""

    def _line(self, prompt: str) -> str:
        try:
            return self.console.input(prompt, markup=False).strip()
        except EOFError:
            cure = "answer as key=value, or take what is proposed by --yes"
            raise ConfigError("init", "an answer", "the end of the input", cure) from None


def _tables(answers: _Answers) -> draft.Tables:
    kinds = draft.data_choices()
    if answers.of("data.name") is None and not answers.quiet:
        for name, what in kinds.items():
            print_line(answers.console, f"  {name:18}{what}")
    data = answers.ask("data.name", "what to train on", "digits", [*kinds])
    models = draft.models_for(data)
    model = answers.ask("model.name", f"the model ({', '.join(models)})", models[0], models)
    _ask_open_keys(data, model, answers)
    answers.ask("amp.dtype", f"the precision ({', '.join(_PRECISIONS)})", _PRECISIONS[0], _PRECISIONS)
    tables = draft.draft(data, model, answers.given)
    length = "steps" if "steps" in tables["train"] else "epochs"
    answers.ask(f"train.{length}", f"{length} to train", str(tables["train"][length]))
    return draft.draft(data, model, answers.given)


def _ask_open_keys(data: str, model: str, answers: _Answers) -> None:
    while True:
        tables = draft.draft(data, model, answers.given)
        left = {key: proposed for key, proposed in draft.open_keys(tables).items() if answers.of(key) is None}
        if not left:
            return
        dotted, proposed = next(iter(left.items()))
        key = draft.key_of(dotted, tables)
        answers.ask(dotted, f"{key.meaning or key.name} ({key.type})", proposed)
