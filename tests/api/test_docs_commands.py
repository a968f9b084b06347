"""Commands of README and the documentation are ones that ampkit takes, with recipes and keys that there are.

test_docs_commands_run.py runs them.
"""

from __future__ import annotations

import re
import shlex
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
