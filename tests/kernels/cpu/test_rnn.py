"""The CPU's recurrent layers: products by oneDNN, weights packed once, 16 bits as they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import grad, ops, tensor
from ampkit.backends.cpu.onednn import gemm
from ampkit.backends.cpu.onednn.library import library
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.dispatch import reference_only
from ampkit.core.op import ops as registry
from ampkit.kernels.cpu.nn import rnn
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason="needs oneDNN")]
H, WIDTH = 48, 40
KINDS = {"rnn_tanh": 1, "gru": 3, "lstm": 4}


@pytest.fixture
def units(monkeypatch):
    """As on a machine that multiplies 16-bit formats; this one may take longer over it."""
    for module in (gemm, rnn):
        monkeypatch.setattr(module, "has_fast_matmul", lambda dtype: True)


@pytest.fixture
def packings(monkeypatch):
    """The shapes of the weights that were packed."""
    found, move = [], gemm.pack
    monkeypatch.setattr(gemm, "pack", lambda packed, b: (found.append(b.shape), move(packed, b))[1])
    return found


def run(kind, sizes, reverse, dtype, as_dtype=None):
    generator = np.random.default_rng(1)
    states = [(sizes[0], H)] * (1 + (kind == "lstm"))
    shapes = [(sum(sizes), WIDTH), *states, (KINDS[kind] * H, WIDTH), (KINDS[kind] * H, H), *[(KINDS[kind] * H,)] * 2]
    values = [(generator.normal(size=shape) * 0.3).astype(dtype).astype(as_dtype or dtype) for shape in shapes]
    made = [tensor(a, requires_grad=True) for a in values]
    outs = registry[kind](*made, *((None,) if kind == "lstm" else ()), sizes, reverse)
    seeds = [tensor(generator.normal(size=o.shape).astype(dtype).astype(o.dtype)) for o in outs]
    return outs, grad(outs, made, seeds)


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize(("sizes", "reverse"), [((20, 20, 20), False), ((20, 18, 3), True)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_and_its_gradients_are_those_of_float64(kind, sizes, reverse, dtype, units):
    if dtype == float16 and not _computes_float16():
        pytest.skip("oneDNN has no float16 products here")
    outs, gradients = run(kind, sizes, reverse, dtype)
    assert dtype == float32 or outs[0].node.kernel.name == f"{kind}_cpu"
    with reference_only():
        wants, truth = run(kind, sizes, reverse, dtype, np.float64)
    for got, want in zip((*outs, *gradients), (*wants, *truth), strict=True):
        assert_close(got, want, GRADIENT_TOLERANCE[dtype])
    assert {s.dtype for s in gradients} == {dtype}


@pytest.mark.parametrize("kind", KINDS)
def test_without_biases_and_first_states(kind, units):
    rng = np.random.default_rng(0)
    shapes = [(60, WIDTH), (KINDS[kind] * H, WIDTH), (KINDS[kind] * H, H)]
    made = [(0.3 * rng.normal(size=shape)).astype(bfloat16) for shape in shapes]
    x, *weights = [tensor(a) for a in made]
    first, last = ((None, None), (None,)) if kind == "lstm" else ((None,), ())
    out = registry[kind](x.requires_grad_(), *first, *weights, None, None, *last, (20, 20, 20), False)[0]
    assert out.node.kernel.name == f"{kind}_cpu"
    with reference_only():
        want = registry[kind](x, *first, *weights, None, None, *last, (20, 20, 20), False)[0]
    assert_close(out, want.numpy(force=True), GRADIENT_TOLERANCE[bfloat16])


def _computes_float16():
    a, out = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float32)
    return gemm.matmul_into(a, a, out)


@pytest.mark.parametrize("kind", KINDS)
def test_the_weight_of_the_state_is_packed_once_for_a_walk(kind, packings):
    run(kind, (20,) * 5, False, float32)
    ways = [(H, KINDS[kind] * H), (KINDS[kind] * H, H)]
    assert packings
    assert all(packings.count(way) <= ways.count(way) for way in ways)


def test_a_weight_that_changes_between_two_walks_is_packed_anew():
    x, w_ih, w_hh = (
        tensor(np.random.default_rng(i).normal(size=s).astype("f")) for i, s in enumerate([(80, 8), (H, 8), (H, H)])
    )
    sizes = (40, 40)
    registry["rnn_tanh"](x, None, w_ih, w_hh, None, None, sizes, False)
    w_hh.mul_(0.5)
    out = registry["rnn_tanh"](x, None, w_ih, w_hh, None, None, sizes, False)[0]
    with reference_only():
        assert_close(out, registry["rnn_tanh"](x, None, w_ih, w_hh, None, None, sizes, False)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_shows(kind):
    made = [np.zeros((60, WIDTH), "f"), None, *([None] if kind == "lstm" else [])]
    made += [np.ones((KINDS[kind] * H, n), "f") for n in (WIDTH, H)]
    made[0][3, 0] = np.nan
    given = [None if a is None else tensor(a) for a in made]
    out = registry[kind](*given, None, None, *((None,) if kind == "lstm" else ()), (20, 20, 20), False)[0]
    assert np.flatnonzero(np.isnan(out.numpy()).any(1)).tolist() == [3, 23, 43]


def test_the_same_input_gives_the_same_bits():
    found = [
        [t.numpy(force=True).tobytes() for part in run("gru", (20, 20), True, float32) for t in part] for _ in "12"
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["gru_cell", "lstm_cell", "rnn_tanh_cell"])
def test_a_bias_may_have_strides(name):
    gates = {"gru_cell": 3, "lstm_cell": 4, "rnn_tanh_cell": 1}[name] * H
    generator = np.random.default_rng(0)
    x, state, *weights = (tensor(generator.normal(size=s).astype("f4")) for s in [(80, H), (80, H), *[(gates, H)] * 2])
    biases = [tensor(generator.normal(size=(gates, 2)).astype("f4"))[:, 1] for _ in range(2)]
    found = []
    for given in (biases, [bias.contiguous() for bias in biases]):
        outs = getattr(ops, name)(x, (state, state) if name == "lstm_cell" else state, *weights, *given)
        found.append(outs if isinstance(outs, tuple) else (outs,))
    for got, want in zip(*found, strict=True):
        assert_close(got, want)
