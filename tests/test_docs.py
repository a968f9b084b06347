"""The Python in README and docs runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import pytorch_page

import ampkit
from ampkit import nn, ops, optim, testing
from ampkit.backends.cpu.onednn.library import library
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


@pytest.mark.cpu
def test_the_kernels_of_add_a_backend_are_picked_and_precise():
    kernel, door = examples("docs/add-a-backend.md")
    square = ops.square
    before = [(p, list(p.of("cpu"))) for p in (square.forward, square.backward_primitive)]
    try:
        exec(compile(kernel, "docs/add-a-backend.md", "exec"), {"__name__": "docs"})
        for dtype in (ampkit.float32, ampkit.bfloat16):
            case = testing.Case("square", testing.normal(100, 100))
            testing.check_precision(case, dtype)
            if library() is not None:
                assert case(*case.tensors(dtype))[0].node.kernel.name == "square_cpu"
        if library() is not None:
            exec(compile(door, "docs/add-a-backend.md", "exec"), {"__name__": "docs"})
    finally:
        for primitive, kernels in before:
            primitive.kernels["cpu"][:] = kernels


@pytest.mark.cpu
def test_the_page_for_pytorchs_users_lists_what_there_is():
    assert pytorch_page.PAGE.read_text() == pytorch_page.page(), "run python -m tests.pytorch_page"


def test_every_link_leads_somewhere():
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "recipes/README.md",
    ]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page}: {link}"


def test_what_the_page_on_kernels_quotes_is_there():
    page = (ROOT / "docs/add-a-kernel.md").read_text()
    quotes = re.findall(r"```(?:cuda|python)\n(.*?)```", page, re.DOTALL)
    sources = [path.read_text() for path in (ROOT / "ampkit/backends/cuda").rglob("*") if path.suffix in (".cu", ".py")]
    assert len(quotes) == 4
    for quote in quotes:
        assert any(quote in source for source in sources), quote
