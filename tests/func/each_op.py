"""One case of each function with derivatives, for the tests of transforms; and what has none, reviewed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import ampkit
from ampkit import ops, tensor
from ampkit.testing import Case

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))

from test_cases import CASES

EVERY: list[Case] = [param.values[0] for param in CASES]
# Cases of ops that no first case of a function runs.
FURTHER = {
    "cross_entropy(5x4, 5x4)", "div(3x4, 0.3, rounding_mode='trunc')", "linalg_matrix_norm(2x3x4, 'nuc')",
}  # fmt: skip
# Casts: to formats without arithmetic in tests/ops/pointwise/test_formats.py, to others in test_each_op.py.
CASTS = {"cast_to", "to"}

# Functions of float tensors whose results are no floats, or depend on none of their values.
WITHOUT = {
    "all", "any", "argmax", "argmin", "argsort", "histc", "histogram", "isclose", "isfinite", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "le", "linalg_matrix_rank", "logical_and", "lt", "ge", "quantize_per_tensor",
    "signbit",
}  # fmt: skip
# The backward of these is NumPy code that the tape does not record: they have first derivatives alone.
FIRST = {
    "linalg_eigh", "linalg_eigvalsh", "linalg_svd", "linalg_svdvals", "linalg_qr", "linalg_lu",
    "linalg_matrix_norm(2x3x4, 'nuc')",
    "gammainc", "gammaincc", "sparse_mm",
}  # fmt: skip
# Reads values on the host (its pivots), which samples that run at once cannot do.
READS_VALUES = {"linalg_lu"}


def has_first_alone(case: Case) -> bool:
    """Whether a case has first derivatives and no second ones."""
    return case.name in FIRST or repr(case) in FIRST


def has_floats(case: Case) -> bool:
    """Whether a case has float inputs."""
    return any(array.dtype == np.float64 for array in case.arrays())


def _each() -> list[Case]:
    # The first case of each function, rather one that has second derivatives.
    found: dict[str, Case] = {}
    for case in filter(has_floats, EVERY):
        if repr(case) in FURTHER:
            found[repr(case)] = case
        elif case.name not in found or (case.smooth and not found[case.name].smooth):
            found[case.name] = case
    return list(found.values())


EACH = _each()
DIFFERENTIABLE = [case for case in EACH if case.name not in WITHOUT]


def numbers(*shape, seed=0, dtype=ampkit.float64):
    return tensor(np.random.default_rng(seed).standard_normal(shape), dtype=dtype)


def of_floats(case, dtype=ampkit.float64):
    """The case as a function of its float tensors, their values, and random directions for them."""
    given = case.tensors(dtype)
    floats = [i for i, each in enumerate(given) if each.is_floating_point()]

    def call(*values):
        ampkit.manual_seed(0)
        left = iter(values)
        outs = case(*[next(left) if i in floats else each for i, each in enumerate(given)])
        return tuple(out for out in outs if out.is_floating_point())

    primals = tuple(given[i].detach() for i in floats)
    return call, primals, tuple(numbers(*each.shape, seed=i, dtype=dtype) for i, each in enumerate(primals))


def total(function):
    """The function as one number, in which each element of its results counts differently."""
    return lambda *values: sum((ops.cos(out) * out).sum() for out in function(*values))
