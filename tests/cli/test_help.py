"""What `ampkit --help` says, and what it and `--version` load."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ampkit
from ampkit.debug.policy_search.formats import FORMATS
from ampkit_cli import arguments
from ampkit_cli.arguments import parser
from ampkit_cli.parser import MistakeError

pytestmark = pytest.mark.cpu
COMMANDS = parser().commands()
LOADED = """
import sys, ampkit_cli
sys.argv = ["ampkit", *sys.argv[1:]]
try:
    ampkit_cli.main()
except SystemExit as end:
    print(end.code, sorted({name.partition(".")[0] for name in sys.modules} & {"ampkit", "numpy", "pydantic", "rich"}))
"""


@pytest.mark.parametrize("words", [["--version"], ["train", "x", "--help"]], ids="{0[0]}".format)
def test_help_and_version_load_no_library(words):
    command = [sys.executable, "-c", LOADED, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert done.stdout.startswith(f"ampkit {ampkit.__version__}\n" if words == ["--version"] else "usage: ampkit train")


def test_help_beside_a_mistake_is_left_to_what_names_the_mistake(monkeypatch):
    import ampkit_cli

    monkeypatch.setattr(sys, "argv", ["ampkit", "tranin", "--help"])
    ampkit_cli._answer_help()  # does not exit
    with pytest.raises(MistakeError, match="unknown command 'tranin'"):
        parser().parse_known_args()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_prints_what_each_argument_is_and_examples_that_it_takes(name):
    command = COMMANDS[name]
    what, _, more = command.description.partition(". ")
    assert what and more.endswith(".")
    for action in command._actions:
        assert action.help and len(action.help) > 10, action.dest
        if not isinstance(action, argparse._StoreTrueAction | argparse._HelpAction | argparse._StoreAction):
            assert action.metavar, action.dest
    first, *examples = command.epilog.splitlines()
    assert first in ("example:", "examples:") and examples
    for line in examples:
        words = shlex.split(line.partition(" > ")[0].partition(" | ")[0])
        assert words[:2] == ["ampkit", name]
        options, rest = parser().parse_known_args(words[1:])
        assert (options.command, [word for word in rest if "=" not in word]) == (name, [])


def test_the_help_names_the_formats_and_observers_that_there_are():
    from ampkit.nn.quantization import observers

    assert arguments.FORMATS.split(",") == [*FORMATS]
    assert set(arguments.OBSERVERS) == set(observers.OBSERVERS)
