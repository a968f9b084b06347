"""The page and the file of its figures."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from .measures import MEASURES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
FIGURES = ROOT / "tests" / "golden" / "reliability.json"
WIDTH = 120


def load() -> dict[str, dict[str, Any]]:
    """The figures of each measure by its name."""
    found: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text())
    return found


def save(figures: dict[str, dict[str, Any]]) -> None:
    """Write the file of figures, and the page from it."""
    FIGURES.write_text(json.dumps({name: figures[name] for name in MEASURES if name in figures}, indent=1) + "\n")
    PAGE.write_text(rewritten(PAGE.read_text(), figures))


def rewritten(text: str, figures: dict[str, dict[str, Any]]) -> str:
    """The page `text` with its measured paragraphs written from `figures`, but those that have none yet."""

    def paragraph(found: re.Match[str]) -> str:
        name = found[1]
        if name not in figures:
            return found[0]
        return f"<!-- measured: {name} -->\n{wrapped(MEASURES[name].says(figures[name]))}\n<!-- end -->"

    return re.sub(r"<!-- measured: (\w+) -->\n.*?<!-- end -->", paragraph, text, flags=re.DOTALL)


def wrapped(text: str) -> str:
    """`text` with its paragraphs wrapped, but not its tables."""
    fill = partial(textwrap.fill, width=WIDTH, break_on_hyphens=False, break_long_words=False)
    return "\n\n".join(part if part.startswith("|") else fill(part) for part in text.split("\n\n"))


def date_and_commit() -> dict[str, str]:
    """Of today and of the checkout, with a plus sign after a commit beside which files of the library are changed."""
    commit = _git("rev-parse", "--short=8", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "ampkit", "tests", "recipes", ":!tests/golden")
    return {"date": date.today().isoformat(), "commit": commit + "+" * bool(changed)}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
