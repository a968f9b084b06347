"""Notebooks from the pages of the docs, executed: `python -m tests.api.notebooks` writes docs/notebooks/*.ipynb.

A block of Python is a cell, what stands between is text, and what a page shows as output is left out: the cell has its
own. The cells run in this process, one after the other, in an empty folder.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ampkit

ROOT = Path(__file__).parents[2]
PAGES = ("quickstart", "tutorial", "debugging")
FOLDER = ROOT / "docs/notebooks"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n^```\n.*?^```\n)?", re.DOTALL | re.MULTILINE)


def cells(page: str) -> list[dict[str, Any]]:
    """The cells of a page, not executed."""
    parts = _BLOCK.split((ROOT / f"docs/{page}.md").read_text())
    kinds = ("markdown", "code")
    made = [_cell(kinds[i % 2], text.strip("\n"), f"{page}{i}") for i, text in enumerate(parts) if text.strip()]
    note = f"This notebook is the page [{page}](../{page}.md), executed."
    return [_cell("markdown", note, page), *made]


def _cell(kind: str, text: str, name: str) -> dict[str, Any]:
    if kind == "markdown":
        text = re.sub(r"\]\((?!\w+:|#|\.\.)([^)]+)\)", r"](../\1)", text)
    cell = {"cell_type": kind, "id": hashlib.sha256(name.encode()).hexdigest()[:8], "metadata": {}, "source": text}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def execute(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with their outputs: what they print, and the value of a last line that is an expression."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in found if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, 1):
        cell |= {"execution_count": count, "outputs": _run(cell["source"], f"In[{count}]", names, count)}
    return found


def _named(file: str) -> tuple[str, str] | None:
    # As IPython's compiler: the kind and the number of a cell, by the name of the file that it was compiled under.
    return ("Cell", file) if file.startswith("In[") else None


_SHELL = SimpleNamespace(compile=SimpleNamespace(format_code_name=_named))
_IPYTHON = SimpleNamespace(get_ipython=lambda: _SHELL)


def _run(source: str, where: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree, value, last = ast.parse(source), None, None
    if isinstance(end := tree.body[-1], ast.Expr):
        last = ast.Expression(end.value)
        tree.body.pop()
    ipython = mock.patch.dict(sys.modules, {"IPython": _IPYTHON})
    with ipython, contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), names)
        value = None if last is None else eval(compile(last, where, "eval"), names)
    text = printed.getvalue()
    outputs: list[dict[str, Any]] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []
    if value is not None:
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
    return outputs


def notebook(found: list[dict[str, Any]]) -> str:
    """The file of a notebook with these cells."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": found, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def executed(page: str) -> list[dict[str, Any]]:
    """The cells of a page, executed in an empty folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        ampkit.manual_seed(0)
        return execute(cells(page))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page in sys.argv[1:] or PAGES:
        os.environ.pop("COLUMNS", None)
        (FOLDER / f"{page}.ipynb").write_text(notebook(executed(page)))
