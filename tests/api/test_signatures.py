"""PyTorch's signatures: what a call of PyTorch's may pass, ampkit takes at the same place or by the same name.

The golden file holds a line per signature, written as Python writes it; `...` is a default that is no literal.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import ampkit
from ampkit.nn.op_module import OpModule

LINES = [
    line
    for line in (Path(__file__).parents[1] / "golden" / "signatures.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def found_at(path):
    found = ampkit
    for part in path.split("."):
        found = getattr(found, part)
    return found


def parameters_of(found):
    """The parameters of a function or class. Of an OpModule early releases of Python 3.11 show those of `__new__`."""
    if inspect.isclass(found) and issubclass(found, OpModule):
        return dict(list(inspect.signature(found.__init__).parameters.items())[1:])
    return inspect.signature(found).parameters


def wanted(line):
    """(path, names that may be positional in order, names by keyword alone, defaults that are literals)."""
    path, _, rest = line.partition("(")
    arguments = ast.parse(f"def f({rest}: pass").body[0].args
    positional = [a.arg for a in arguments.args]
    pairs = list(zip(positional[::-1], arguments.defaults[::-1], strict=False))
    pairs += [(a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
    literals = {
        name: value.value for name, value in pairs if isinstance(value, ast.Constant) and value.value is not ...
    }
    return path, positional, [a.arg for a in arguments.kwonlyargs], literals


@pytest.mark.parametrize("line", LINES)
def test_a_call_of_pytorchs_can_be_made(line):
    path, positional, by_name, literals = wanted(line)
    ours = parameters_of(found_at(path))
    at_place = [n for n, p in ours.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    assert at_place[: len(positional)] == positional
    assert not {*by_name} - {*ours}
    assert {name: ours[name].default for name in literals} == literals
