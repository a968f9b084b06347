"""The Python in README and docs runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim, testing
from ampkit.core.op import ops as registry
from ampkit.core.policy import categories

ROOT = Path(__file__).parents[1]


def examples(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def surroundings():
    """What the examples take for granted."""
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    batch = ampkit.tensor(np.ones((4, 64), np.float32)), ampkit.tensor(np.arange(4))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return {"ampkit": ampkit, "ops": ops, "optim": optim, "model": model, "optimizer": optimizer, "loader": [batch] * 3}


@pytest.mark.parametrize("name", ["README.md", "docs/policy.md", "docs/scaling.md", "docs/coming-from-pytorch.md"])
def test_every_example_runs(name):
    found = examples(name)
    assert found
    for source in found:
        exec(compile(source, name, "exec"), surroundings())


def test_the_op_of_add_an_op_passes_the_checks_that_the_page_promises():
    definition, case, _ = examples("docs/add-an-op.md")
    try:
        exec(compile(definition, "docs/add-an-op.md", "exec"), {"__name__": "docs"})
        tested = eval(case.replace("# tests/cases/elementwise.py", "").strip(), vars(testing))
        testing.check(tested)
    finally:
        registry.pop("squareplus", None)
        categories.pop("squareplus", None)


def test_every_link_leads_somewhere():
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "recipes/README.md",
    ]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page}: {link}"
