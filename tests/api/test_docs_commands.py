"""Commands of README and the documentation are ones that ampkit takes, with recipes and keys that there are.

test_docs_commands_run.py runs them. Programs of `tests/` that measure for hours are not run: they have to take the
arguments that a page gives.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ampkit import config
from ampkit.base.errors import AmpkitError
from ampkit.cli import _parse
from ampkit.cli.train import overrides

ROOT = Path(__file__).parents[2]
# The commands of each name what the page itself defines; other tests run these.
OWN_NAMES = {ROOT / f"docs/{name}.md" for name in ("add-a-model", "add-a-dataset", "tables-and-text", "command-line")}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "recipes/README.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:\$ |.*&& |mpiexec .*?(?=ampkit))?(ampkit [a-z]+\b.*)$", re.MULTILINE)
PROGRAM = re.compile(r"`(?:[A-Z_]+=\S+ )*python (?:-m\s)?(tests[./][^`]+)`")
# Runs programs up to where they have parsed their arguments; a program may need PyTorch to come so far.
PARSE = """
import argparse, json, runpy, sys

class Parsed(Exception): ...

def parsed(parser, *given, take=argparse.ArgumentParser.parse_args):
    take(parser, *given)
    raise Parsed

argparse.ArgumentParser.parse_args = parsed
for program, *arguments in json.load(sys.stdin):
    before = set(sys.modules)
    sys.argv, sys.path[0] = [program, *arguments], program.rpartition("/")[0] or "."
    try:
        (runpy.run_path if "/" in program else runpy.run_module)(program, run_name="__main__")
        sys.exit(f"{program} does not parse {arguments}")
    except Parsed: ...
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    for name in set(sys.modules) - before: # modules beside a script: those of another may have the same names
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(sys.path[0] + "/"):
            del sys.modules[name]
"""


def commands(page):
    """The arguments of each `ampkit` command in the blocks of a page."""
    for language, block in BLOCK.findall(page.read_text()):
        for line in COMMAND.findall(block) if language in ("", "bash") else ():
            words = shlex.shlex(line, posix=True, punctuation_chars=";&|>")
            words.whitespace_split = True
            found = [[]]
            for word in words:
                found[-1].append(word) if word.strip(";&|>") else found.append([])
            yield from (each[1:] for each in found if each and each[0] == "ampkit")


def check(arguments):
    """Parse a command, and read its recipe; raises AmpkitError for what `ampkit` would not take."""
    options = _parse(arguments)
    inner = getattr(options, "arguments", None)
    if inner:
        return check(inner)
    if hasattr(options, "recipe") and "..." not in options.overrides:
        config.load(options.recipe, overrides(options))
    return None


WITH_COMMANDS = [page for page in PAGES if page not in OWN_NAMES and any(commands(page))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_ampkit_takes(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for arguments in commands(page):
        check(arguments)


def test_commands_are_found_and_a_wrong_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = tmp_path / "page.md"
    lines = (
        "```bash",
        "$ ampkit ops; ampkit doctor  # both",
        "mpiexec -n 2 ampkit train digits_mlp",
        "```",
        "`ampkit x`",
    )
    page.write_text("\n".join(lines))
    assert list(commands(page)) == [["ops"], ["doctor"], ["train", "digits_mlp"]]
    for wrong in (["trian", "digits_mlp"], ["train", "digits_mlp", "optimizer.rate=1"], ["plan", "no_recipe"]):
        with pytest.raises(AmpkitError):
            check(wrong)


def programs(page):
    """Each program of `tests/` that the text of a page names with arguments."""
    for line in PROGRAM.findall(BLOCK.sub("", page.read_text())):
        program, *arguments = shlex.split(line.replace("\n> ", " "))
        path = ROOT / program if program.endswith(".py") else ROOT / program.replace(".", "/")
        file = (
            path
            if path.suffix
            else path.with_suffix(".py")
            if path.with_suffix(".py").exists()
            else path / "__main__.py"
        )
        assert file.exists(), line
        if arguments and "argparse" in file.read_text():
            yield [program, *(re.sub("^[A-Z]$", "1", word) for word in arguments)]  # `--seed S` stands for a number


def parse(found):
    environment, command = os.environ | {"PYTHONPATH": str(ROOT)}, [sys.executable, "-c", PARSE]
    return subprocess.run(command, input=json.dumps(found), capture_output=True, text=True, cwd=ROOT, env=environment)


def test_programs_take_the_arguments_that_pages_give():
    found = [each for page in PAGES if page.name != "CHANGELOG.md" for each in programs(page)]
    assert len(found) > 30
    done = parse(found)
    assert done.returncode == 0, done.stderr
    wrong = parse([["tests.bench.recipe_losses", "--recipes", "current", "train.threads=1"]])
    assert wrong.returncode == 2 and "invalid choice" in wrong.stderr
