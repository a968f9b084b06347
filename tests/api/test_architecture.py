"""Which file may import which, declared here once and checked by parsing every import."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "ampkit"

# A file imports from rows above its own, from its own row, and nothing else. A name is a module, or a package with all
# in it that has no row of its own.
ROWS = [
    ("base", {"base"}),
    ("backends", {"backends"}),
    ("core", {"core"}),
    ("ops", {"ops"}),
    (
        "training",
        {
            "amp",
            "autograd",
            "cuda",
            "data",
            "distributed",
            "distributions",
            "func",
            "linalg",
            "models",
            "nn",
            "optim",
            "serialization",
            "special",
        }
        | {"testing", "utils"},
    ),
    ("kernels", {"kernels"}),
    ("services", {"config", "debug"}),
    ("run", {"run"}),
    ("command line", {"cli", "__main__", ""}),
    ("alias", {"as_torch"}),
]
TERMINAL = {"rich", "argparse"}
FOREIGN = {"torch", "jax", "tensorflow", "scipy", "sklearn"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def row_of(name: str) -> int:
    """The row of a module: by its own name, or by the nearest package around it."""
    row = next((i for i, (_, names) in enumerate(ROWS) if name in names), None)
    if row is None:
        assert "." in name, f"{name}: a file in no row"
        return row_of(name.rpartition(".")[0])
    return row


def imports(name: str, lazy: bool = True) -> set[str]:
    """The ampkit modules that a module imports, in functions and for type checkers too; without `lazy`, only those it
    needs in order to load."""
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
        if not lazy and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
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


def is_kernel(name: str) -> bool:
    return name.split(".")[0] == "kernels"


def test_only_kernels_import_kernels():
    kernels = set(filter(is_kernel, MODULES))
    assert not {name: found for name in MODULES if not is_kernel(name) and (found := imports(name) & kernels)}


def test_a_kernel_family_has_the_name_of_a_family_that_it_makes_faster():
    families = {name.split(".")[2] for name in filter(is_kernel, MODULES) if name.count(".") > 2}
    assert not {f for f in families if not {f, f"ops.{f}", f"core.{f}"} & set(MODULES)}


def test_no_folder_has_more_than_25_entries():
    # but the package itself, whose entries are public names
    folders = [path for path in ROOT.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    large = {path: n for path in folders if (n := sum(map(is_entry, path.iterdir()))) > 25}
    assert not large


def test_the_package_holds_no_file_of_an_unknown_kind():
    known = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh", ".html", ".css", ".js", ".json", ".md", ".npz"}
    built = {".so", ".dylib", ".pyc"}
    files = [path for path in ROOT.rglob("*") if path.is_file() and path.name != "LICENSE"]
    assert not [path for path in files if path.suffix not in known | built and path.name != "py.typed"]


def is_entry(path: Path) -> bool:
    """Whether a reader opens it: stubs, the marker of types and what `python -m ampkit` runs say nothing new."""
    return path.name not in ("__pycache__", "py.typed", "__main__.py") and path.suffix != ".pyi"


def test_only_the_command_line_imports_the_terminals_libraries():
    others = {name for name in MODULES if name != "cli" and not name.startswith("cli.")}
    used = {name: found for name in others if (found := top_packages(name) & TERMINAL)}
    files = {"serialization.unpickle", "serialization.pickled_values", "serialization.pytorch_writer"}
    assert used == {name: {"argparse"} for name in files}  # a Namespace is what many checkpoints hold


def test_no_other_framework_is_imported():
    used = {name: found for name in MODULES if (found := top_packages(name) & FOREIGN)}
    assert used == {"base.search": {"scipy"}}  # inside a function: docs/decisions/0024-policy-search.md


def test_no_module_bears_the_name_of_a_public_function():
    import ampkit

    functions = {name for name in ampkit.__all__ if callable(getattr(ampkit, name)) and "." not in name}
    assert not functions & set(MODULES)


def test_the_type_checker_is_overruled_rarely_and_with_a_reason():
    comment = re.compile(r"# type: " r"ignore.*")
    found = [
        f"{path.relative_to(ROOT.parent)}: {match}"
        for folder in (ROOT, ROOT.parent / "tests", ROOT.parent / "recipes")
        for path in sorted(folder.rglob("*.py"))
        for match in comment.findall(path.read_text())
    ]
    assert len(found) < 40, f"{len(found)} comments overrule the type checker"
    reasoned = re.compile(r"ignore(\[[a-z, -]+\])?  # \S")
    assert not [each for each in found if not reasoned.search(each)]
