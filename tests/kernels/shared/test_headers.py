"""The headers of both backends: their macros take any expression, and the tables of the backends follow from them."""

from __future__ import annotations

import ctypes
import re

import pytest
from cuda_on_cpu import emulator

from ampkit import optim
from ampkit.backends.cpu.native.library import library
from ampkit.kernels.shared import headers
from ampkit.kernels.shared.optim import RULES
from ampkit.optim.elementwise import Elementwise

FOLDER = headers._FOLDER
# Each macro of a rule's code, with an expression of several terms for each argument, and what it makes of g = 2, a = 1,
# n = (0.25, 0.5).
MACROS = {
    "MEAN": ("MEAN(a, 1.0f - n[1])", 1 + (2 - 1) * (1 - 0.5)),
    "MEAN_SQUARE": ("MEAN_SQUARE(a, 1.0f - n[0], n[0] + n[1])", 1 * (1 - 0.25) + 2 * 2 * (0.25 + 0.5)),
}


def macros(header):
    """The names of the macros with arguments that a header defines for the code of its rows."""
    return re.findall(r"^#define (\w+)\((?!NAME|EXPRESSION|\.\.\.|a, b, c, n)", (FOLDER / header).read_text(), re.M)


def test_each_macro_for_code_has_its_case():
    assert macros("optimizers.h") == list(MACROS)
    assert macros("functions.h") == macros("reductions.h") == []  # whose macros take the code of a whole function


@pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
def test_macros_take_expressions_of_several_terms(tmp_path):
    rules = "\n".join(f"RULE(Of_{name}, 1, {code})" for name, (code, _) in MACROS.items())
    calls = "\n".join(f"Of_{name}::apply(p, 2.0f, out[{i}], b, c, n, has);" for i, name in enumerate(MACROS))
    source = f"""#include <math.h>
#define HELPER static inline
#define REGISTER_RULE(NAME)
#include "{FOLDER}/optimizers.h"
{rules}
extern "C" __attribute__((visibility("default"))) void run(float* out) {{
    float p = 0.0f, b = 0.0f, c = 0.0f;
    const float n[] = {{0.25f, 0.5f}};
    const bool has[3] = {{true, false, false}};
    {calls}
}}
"""
    emulator.build(source, tmp_path / "rules.so", ["-shared", "-fPIC"])
    out = (ctypes.c_float * len(MACROS))(*[1.0] * len(MACROS))
    ctypes.CDLL(str(tmp_path / "rules.so")).run(out)
    assert list(out) == [value for _, value in MACROS.values()]


def test_each_rule_is_that_of_an_optimizer():
    kinds = [kind for kind in vars(optim).values() if isinstance(kind, type) and issubclass(kind, Elementwise)]
    own = {kind.__name__ for kind in kinds if "update_elements" in vars(kind)} - {"Elementwise"}
    assert set(headers.rules()) == own
    assert len(RULES) == len(headers.rules())


@pytest.mark.cpu
@pytest.mark.skipif(library() is None, reason="no compiled kernels")
def test_the_library_has_each_function_each_term_and_each_rule():
    names = [f"elementwise_{name}" for name in headers.functions() + headers.functions_without_gradient()]
    names += [f"reduction_{term}" for term in headers.terms()] + [f"optimizer_{rule}" for rule in headers.rules()]
    for name in names:
        assert ctypes.c_void_p.in_dll(library(), name).value, name
    assert len(set(names)) == len(names) > 110


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("functions.h", headers.functions() + headers.functions_without_gradient()),
        ("reductions.h", headers.terms()),
        ("optimizers.h", headers.rules()),
    ],
)
def test_every_row_is_read(header, names):
    rows = re.findall(r"^[A-Z_]+\((\w+),", (FOLDER / header).read_text(), re.M)
    assert sorted(rows) == sorted(names)
