"""recipes/one_file.py, the whole idea in one file, has the rules of the library: the same dtypes, the same bits.

The library runs its references here. Sums of the two take the same order only where the library's are not blocked: for
more than 512 elements, over rows of contiguous memory or over an axis of at most 64 (see core/blocked_sum.py).
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.core.autograd.node import Node
from ampkit.core.op import Op
from ampkit.core.op import ops as registry
from ampkit.core.policy import Cast, Policy

PATH = Path(__file__).parents[2] / "recipes" / "one_file.py"
PRECISIONS = ("float32", "bfloat16", "float16")
OPS = {"linear": ops.linear, "relu": ops.relu, "add": ops.add, "cross_entropy": ops.cross_entropy}
OPS["rms_norm"] = lambda x: ops.rms_norm(x, x.shape[-1])

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file"] = module
    yield spec.loader.exec_module(module) or module
    del sys.modules["one_file"]


def model(x, params):
    """The model of the file, of the library's ops."""
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    h = ops.linear(x, w1, b1)
    y = ops.relu(ops.linear(OPS["rms_norm"](h), w2, b2))
    h = h + ops.linear(y, w3, b3)
    return ops.linear(OPS["rms_norm"](h), w4, b4)


def train(policy, scaler, params, data):
    """`one_file.train` with the library. Yields (loss, whether the step was skipped, scale) per step."""
    optimizer = optim.AdamW(params, lr=3e-3)
    for x, target in data:
        with ampkit.autocast(policy=policy, enabled=policy is not None):
            loss = ops.cross_entropy(model(x, params), target)
        scaler.scale(loss).backward()
        result = scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield loss.item(), result.skipped, scaler.get_scale()


def both(one_file, precision, steps, overrides=None, **scaling):
    """The trainings of the file and of the library, step by step: (row, parameters) of each."""
    rng, scaling = np.random.default_rng(1), {"enabled": precision == "float16", **scaling}
    params, data = one_file.parameters(rng), list(one_file.batches(rng, steps))
    ours = [nn.Parameter(ampkit.tensor(p.array.copy())) for p in params]
    copied = [(ampkit.tensor(x.array), ampkit.tensor(target.array)) for x, target in data]
    kinds = (one_file.Policy, Policy)
    policies = [None if precision == "float32" else kind(precision, **overrides or {}) for kind in kinds]
    small = one_file.train(policies[0], one_file.GradScaler(**scaling), params, data)
    whole = train(policies[1], ampkit.GradScaler(**scaling), ours, copied)
    for row, expected in zip(small, whole, strict=True):
        yield (row.loss, row.skipped, row.scale), [p.array for p in params], expected, [p.array for p in ours]


def need_equal(steps):
    """Compares losses and weights to the bit, and returns the rows."""
    rows = []
    with ampkit.reference_only():
        for row, weights, expected, whole in steps:
            assert row == expected, f"step {len(rows)}"
            for number, (mine, theirs) in enumerate(zip(weights, whole, strict=True)):
                np.testing.assert_array_equal(mine, theirs, f"step {len(rows)}, parameter {number}")
            rows.append(row)
    return rows


@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_and_weights_are_those_of_the_library_to_the_bit(one_file, precision):
    rows = need_equal(both(one_file, precision, 30))
    assert rows[-1][0] < rows[0][0] / 2 and not any(skipped for _, skipped, _ in rows)


def test_overflows_are_skipped_and_the_scale_backs_off_and_grows_as_in_the_library(one_file):
    rows = need_equal(both(one_file, "float16", 30, init_scale=2.0**30, growth_interval=5))
    skipped = [skipped for _, skipped, _ in rows]
    assert skipped[:3] == [True] * 3 and 3 < sum(skipped) < 20  # from too high a scale, and after it grew again
    assert rows[-1][0] < rows[0][0]
    rows = need_equal(both(one_file, "float16", 12, init_scale=4.0, growth_interval=3))
    assert [scale for *_, scale in rows] == [4.0, 4.0, 8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 64.0]


def test_a_policy_with_other_categories_gives_the_bits_of_the_library(one_file):
    need_equal(both(one_file, "float16", 10, {"rms_norm": "low", "relu": "float32", "linear": "widest"}))
    need_equal(both(one_file, "bfloat16", 10, {"add": "float32", "cross_entropy": "low", "rms_norm": "keep"}))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", OPS)
def test_every_op_answers_in_the_dtype_of_the_library_for_all_dtypes_of_its_inputs(one_file, name, precision):
    shapes = {"linear": [(4, 4), (4, 4), (4,)], "add": [(4, 4), (4, 4)]}.get(name, [(4, 4)])
    labels = [np.arange(4)] if name == "cross_entropy" else []
    small, whole = (None if precision == "float32" else kind(precision) for kind in (one_file.Policy, Policy))
    for dtypes in product(PRECISIONS, repeat=len(shapes)):
        if small is None and name == "linear" and len(set(dtypes)) > 1:
            continue  # outside of a region the library refuses products of several dtypes
        arrays = [np.ones(shape).astype(one_file.FLOATS[dtype]) for shape, dtype in zip(shapes, dtypes, strict=True)]
        with one_file.autocast(small), ampkit.autocast(policy=whole, enabled=whole is not None):
            got = getattr(one_file, name)(*map(one_file.Tensor, arrays + labels))
            expected = OPS[name](*map(ampkit.tensor, arrays + labels))
        assert got.array.dtype == expected.dtype, dtypes


def test_its_ops_have_the_cast_categories_of_the_library(one_file):
    found = {name: value.cast.value for name, value in vars(one_file).items() if isinstance(value, one_file.Op)}
    assert found.pop("scale_loss") == "float32"  # a node of the scaler, no op, in the library
    assert found == {name: registry[name].cast.value for name in OPS}


def test_its_words_are_those_of_the_library(one_file):
    theirs = {kind.__name__: kind for kind in (Cast, Policy, Op, Node, ampkit.Tensor, ampkit.GradScaler, optim.AdamW)}
    ours = {name: value for name, value in vars(one_file).items() if getattr(value, "__module__", "") == "one_file"}
    assert {name for name, value in ours.items() if isinstance(value, type)} == {*theirs, "Row"}
    for name in ("Policy", "GradScaler", "AdamW"):
        assert {word for word in vars(ours[name]) if word[0] != "_"} <= set(dir(theirs[name]))


def test_a_newcomer_reads_it_in_one_sitting_and_needs_numpy_and_ml_dtypes_alone():
    source = PATH.read_text()
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    assert names - set(sys.stdlib_module_names) == {"numpy", "ml_dtypes"}
    assert len([line for line in source.splitlines() if line.strip()]) < 340


def test_as_a_program_it_prints_what_each_precision_reaches_and_costs(one_file, capsys):
    one_file.main(steps=120)
    _, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == list(PRECISIONS)
    losses, skipped, _, saved = ([float(row[i].replace(",", "")) for row in rows] for i in range(1, 5))
    np.testing.assert_allclose(losses, losses[0], rtol=0.02)
    assert skipped[:2] == [0, 0]
    assert saved[1] == saved[2] < 0.6 * saved[0]
