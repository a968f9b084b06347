"""The house: which file may import which, held here once and checked by parsing every import."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "ampkit"

# From the ground up. A file imports from rows above its own in this list and from its own
# row. A name is a module, or a package with all in it that has no row of its own.
ROWS = [
    ("words", {"core.dtypes", "core.errors", "core.files", "core.observe", "core.version"}),
    ("machines", {"backends"}),
    ("one call", {"core"}),
    ("ops", {"ops"}),
    (
        "parts",
        {"arena", "flat", "slot", "lossscale", "overflow", "scaledloss", "scaler", "optim"}
        | {"nn", "models", "data", "utils", "serialize", "testing", "amp", "autograd", "cuda", "linalg", "special"},
    ),
    ("bodies", {"backends.cuda.mapped", "backends.cuda.pooling"}),  # backends/<name>/<stem>.py: see is_body
    ("services", {"config", "doctor", "capture", "profiler", "checkpoint", "lock"}),
    ("a run", {"metrics", "tasks", "feeds", "build", "steps", "train", "journal", "rundir", "bench"}),
    ("doors", {"cli", "display", "signals", "__main__", ""}),
]
DOORS_ALONE = {"rich", "argparse"}
FOREIGN = {"torch", "jax", "tensorflow", "scipy", "sklearn"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def is_body(name: str) -> bool:
    """Whether a module is backends/<name>/<stem>.py for the stem of a file whose primitives it makes faster."""
    folder, _, stem = name.rpartition(".")
    stems = {other.rpartition(".")[2] for other in MODULES if other.partition(".")[0] != "backends"}
    return folder.startswith("backends.") and stem in stems


def row_of(name: str) -> int:
    """The row of a module: by its own name, or by the nearest package around it."""
    if is_body(name):
        return [row for row, _ in ROWS].index("bodies")
    row = next((i for i, (_, names) in enumerate(ROWS) if name in names), None)
    if row is None:
        assert "." in name, f"{name}: a file in no row"
        return row_of(name.rpartition(".")[0])
    return row


def imports(name: str, lazy: bool = True) -> set[str]:
    """The ampkit modules that a module imports; without `lazy`, only those it needs in order to load."""
    found = set()
    for node in statements(parsed(name), lazy):
        if isinstance(node, ast.ImportFrom):
            base = absolute(node, name)
            if base is not None:
                found |= {known(f"{base}.{alias.name}".strip("."), base) for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "ampkit"]
            found |= {known(n.partition(".")[2], "") for n in names}
    return found - {name}


def statements(tree: ast.AST, lazy: bool):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        yield from statements(node, lazy)


def absolute(node: ast.ImportFrom, importer: str) -> str | None:
    """The module a `from` statement names, inside ampkit; None for others."""
    if node.level == 0:
        top, _, rest = (node.module or "").partition(".")
        return rest if top == "ampkit" else None
    package = importer if MODULES[importer].stem == "__init__" else importer.rpartition(".")[0]
    parts = package.split(".") if package else []
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def known(name: str, otherwise: str) -> str:
    return name if name in MODULES else otherwise


def top_packages(name: str) -> set[str]:
    """The top names of all absolute imports of a module."""
    found = set()
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name or "ampkit")
def test_a_file_imports_only_from_rows_above_it_and_its_own(name):
    below = {other for other in imports(name) if row_of(other) > row_of(name)}
    assert not below, f"{name} ({ROWS[row_of(name)][0]}) imports {sorted(below)}, of rows below"


def test_no_import_runs_in_a_circle():
    graph = {
        name: {other for other in imports(name, lazy=False) if not name.startswith(f"{other}.")} for name in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_nobody_imports_the_bodies_of_a_backend():
    bodies = set(filter(is_body, MODULES))
    assert not {name: found for name in MODULES if (found := imports(name) & bodies)}


def test_only_the_doors_know_the_terminal():
    doors = ROWS[-1][1]
    assert not {name for name in MODULES if name not in doors and top_packages(name) & DOORS_ALONE}


def test_no_other_framework_is_imported():
    assert not {name: found for name in MODULES if (found := top_packages(name) & FOREIGN)}


def test_no_module_bears_the_name_of_a_public_function():
    import ampkit

    functions = {name for name in ampkit.__all__ if callable(getattr(ampkit, name)) and "." not in name}
    assert not functions & set(MODULES)
