"""The commands of docs/command-line.md run as printed, one after the other, and every command stands there."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from ampkit import cli
from ampkit_cli.arguments import parser

PAGE = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
COMMANDS = [
    shlex.split(line.partition(" > ")[0], comments=True)
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.cpu
def test_the_commands_run_as_the_page_prints_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in COMMANDS:
        if words[0] == "ampkit":
            assert cli.main(words[1:]) == 0, (words, capsys.readouterr().err)


@pytest.mark.cpu
def test_the_python_of_the_page_runs(capsys):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(source, "docs/command-line.md", "exec"), {})
    step, loss = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert step > 0 and loss < 2


def test_the_page_names_every_command():
    assert [name for name in parser().commands() if f"ampkit {name}" not in PAGE and f"`{name}`" not in PAGE] == []
