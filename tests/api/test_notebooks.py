"""The notebooks of the docs are their pages, executed: `python -m tests.api.notebooks` writes them."""

from __future__ import annotations

import json
import re

import pytest
from api.notebooks import FOLDER, PAGES, cells, executed


def stored(page):
    return json.loads((FOLDER / f"{page}.ipynb").read_text())


def text_of(cell):
    """What a cell printed, but for the numbers, which the last bits decide."""
    return [re.sub(r"[-+.e\d]+", "#", json.dumps(output)) for output in cell.get("outputs", ())]


def test_every_notebook_has_a_page():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_notebook_is_its_page_and_every_cell_was_executed(page):
    found = stored(page)["cells"]
    bare = [{**cell, "execution_count": None, "outputs": []} if "outputs" in cell else cell for cell in found]
    assert bare == cells(page), "run `python -m tests.api.notebooks`"
    code = [cell for cell in found if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert len(json.dumps(found)) < 40_000


@pytest.mark.cpu
@pytest.mark.parametrize("page", ["quickstart", "tutorial"])
def test_the_cells_print_what_the_notebook_shows(page):
    assert list(map(text_of, executed(page))) == list(map(text_of, stored(page)["cells"]))
