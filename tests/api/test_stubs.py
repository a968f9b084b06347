"""The type stubs match the run-time signatures; the examples of README and docs pass mypy's strict checks."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api import stubs

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]

# What the examples of README and docs leave out, with its types.
PRELUDE = """
# mypy: warn-return-any
import ampkit
from collections.abc import Iterable
from ampkit import Tensor, nn, ops, optim
from ampkit.testing import Case, normal
model: nn.Module
optimizer: optim.Optimizer
scaler: ampkit.GradScaler
loader: Iterable[tuple[Tensor, Tensor]]
x: Tensor
y: Tensor
"""

# Pages that define ops and kernels, which are annotated as far as `@op` reads them.
DEFINE_OPS = {f"docs/add-{name}.md" for name in ("an-op", "a-kernel", "a-backend", "an-optimizer")}
LAX = ["# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-calls=False"]

USES = """
x = ampkit.zeros(3, 4)
total: Tensor = x.sum() + 1 - 2.0 * x.mean(dim=(0, 1), keepdim=True) @ x.T
first: Tensor = x[0].float().add_(1).reshape(-1)
hidden: Tensor = ops.linear(x, x, out=None).to("cpu", dtype=ampkit.bfloat16)
values, indices = x.topk(2)
clamped: Tensor = x.clamp(0.0, max=1)
number: float = x.exp().item()
same: Tensor = nn.functional.relu(x)
layer: nn.Linear = nn.Linear(4, 4)
missing = x.no_such_method()
wrong: str = x.relu()
"""


@pytest.mark.cpu
@pytest.mark.parametrize("path", stubs.written(), ids=lambda path: path.relative_to(ROOT / "ampkit").as_posix())
def test_a_stub_is_what_the_signatures_say(path):
    assert path.read_text() == stubs.written()[path], "run python -m tests.api.stubs"


def checked(files):
    """What mypy prints about files: strict by pyproject.toml, so that a run of `mypy` has left it a cache."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: pip install -e '.[dev]'")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *files]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout


def parses(source):
    """Whether an example is a program; the others are quotes of the library's source (see tests/api/test_docs.py)."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


@pytest.mark.cpu
def test_examples_of_readme_and_docs_pass_mypy_strict(tmp_path):
    files = []
    for page in PAGES:
        path = tmp_path / f"{re.sub(r'[^a-z]', '_', page.lower())}.py"
        found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        path.write_text("\n".join([*(LAX if page in DEFINE_OPS else []), PRELUDE, *filter(parses, found)]))
        files.append(str(path))
    errors = checked(files).replace(f"{tmp_path}/", "")
    if errors:
        pytest.fail(errors)


@pytest.mark.cpu
def test_methods_operators_and_functions_of_tensors_have_types(tmp_path):
    path = tmp_path / "uses.py"
    path.write_text(PRELUDE + USES)
    errors = checked([str(path)]).splitlines()
    assert [error.rpartition("[")[2] for error in errors] == ["attr-defined]", "assignment]"], errors
