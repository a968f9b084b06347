"""Notebooks: what they show of an object, small HTML without scripts in the colors of the page, and their cells."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def preformatted(text: str) -> str:
    """Text in columns, as it is printed."""
    return f'<pre style="line-height:1.25;overflow-x:auto">{escape(text)}</pre>'


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of text, which is scrolled where it is wider than the page; without a head, no line is above it."""
    first = "".join(f'<th style="text-align:left">{escape(str(cell))}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    top = f"<thead><tr>{first}</tr></thead>" if first else ""
    return f'<div style="overflow-x:auto"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    return f'<td style="text-align:left">{escape(str(value))}</td>'


def heading(title: str) -> str:
    """A title above other parts."""
    return f"<b>{escape(title)}</b>"


def facts(title: str, named: Mapping[str, Any]) -> str:
    """A title above a table of names and values."""
    return heading(title) + table((), named.items())


def folded(title: str, text: str) -> str:
    """A line that opens into a longer text."""
    return f"<details><summary>{escape(title)}</summary>{preformatted(text)}</details>"


class ShowsItsText:
    """The repr is what `str` gives: text in columns, in a notebook in a font that keeps them."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return preformatted(str(self))


class ShownText(ShowsItsText, str):
    """A string of text in columns."""


def cell_of(file: str) -> str | None:
    """The cell that was compiled under the name `file`, as IPython numbers it: `cell In[2]`; None for other code.

    IPython compiles a cell under the name of a file that does not exist.
    """
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    found = None if shell is None else shell.compile.format_code_name(file)
    return None if found is None else f"cell {found[1]}"
