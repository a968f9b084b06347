"""The GPU's recurrent layers, on the emulated one: what their references say, a launch per step, and no wait."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulated_cupy, emulator

import ampkit
from ampkit import nn, optim, set_default_device, tensor
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.dispatch import reference_only
from ampkit.core.op import ops as registry
from ampkit.kernels.cuda.nn import rnn
from ampkit.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
KINDS = {"rnn_tanh": 1, "rnn_relu": 1, "gru": 3, "lstm": 4, "projected lstm": 4}
SIZES = {"equal lengths, with time": ((3, 3), False), "several lengths, against time": ((3, 2, 1), True)}
H, P, WIDTH = 16, 8, 8


@pytest.fixture(autouse=True)
def _on_the_device(device):
    set_default_device("cuda")
    yield
    set_default_device("cpu")


@pytest.fixture
def launches(monkeypatch):
    """The entries that are launched."""
    found, launch = [], rnn.launch
    monkeypatch.setattr(rnn, "launch", lambda *args, **more: (found.append(args[1]), launch(*args, **more)))
    return found


def inputs(kind, sizes, state=True):
    generator = np.random.default_rng(len(kind) + len(sizes))
    n, gates, out = sizes[0], KINDS[kind] * H, P if kind.startswith("proj") else H
    states = [(n, out), (n, H)][: 1 + kind.endswith("lstm")]
    shapes = [(sum(sizes), WIDTH), *states, (gates, WIDTH), (gates, out), (gates,), (gates,)]
    shapes += [(P, H)] if kind.startswith("proj") else []
    made = [generator.normal(size=shape) * 0.5 for shape in shapes]
    return made if state else [None if 0 < i <= len(states) else a for i, a in enumerate(made)]


def run(kind, arrays, sizes, reverse, dtype, seed=3):
    """The outputs, and the gradients of all inputs."""
    made = [None if a is None else tensor(a.astype(dtype), requires_grad=True) for a in arrays]
    more = (None,) if kind == "lstm" else ()
    outs = registry[kind.rpartition(" ")[2]](*made, *more, sizes, reverse)
    generator = np.random.default_rng(seed)
    seeds = [tensor(generator.normal(size=o.shape).astype(o.dtype)) for o in outs]
    return outs, ampkit.grad(outs, [m for m in made if m is not None], seeds)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_and_its_gradients_are_those_of_the_reference(kind, lengths, dtype, launches):
    sizes, reverse = SIZES[lengths]
    given = [a.astype(dtype) for a in inputs(kind, sizes)]
    outs, gradients = run(kind, given, sizes, reverse, dtype)
    name = kind.rpartition(" ")[2].partition("_")[0]
    stored = rnn.typed(f"{name}_forward", dtype), rnn.typed(f"{name}_backward", dtype)
    assert launches == [stored[0]] * len(sizes) + [stored[1]] * len(sizes)
    with reference_only():
        wants, truth = run(kind, [a.astype(float) for a in given], sizes, reverse, np.float64)
    for got, want in zip((*outs, *gradients), (*wants, *truth), strict=True):
        assert_close(got, want, GRADIENT_TOLERANCE[dtype])
    assert {s.dtype for s in gradients} == {dtype}


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
def test_without_a_first_state_or_biases(kind, launches):
    given = [*inputs(kind, (3, 2), state=False)[:-2], None, None]
    outs, _ = run(kind, given, (3, 2), False, bfloat16)
    with reference_only():
        wants, _ = run(kind, given, (3, 2), False, np.float64)
    assert len(launches) == 4
    for got, want in zip(outs, wants, strict=True):
        assert_close(got, want, GRADIENT_TOLERANCE[bfloat16])


def test_rows_that_tensor_cores_do_not_read_are_widened(launches):
    shapes = [(6, 3), (2, 5), (15, 3), (15, 5)]
    made = [tensor(np.random.default_rng(i).normal(size=s).astype(bfloat16)) for i, s in enumerate(shapes)]
    out = registry["gru"](*made, None, None, (2, 2, 2), False)[0]
    assert out.dtype == bfloat16
    assert launches == ["gru_forward<float>"] * 3


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_order_of_threads_changes_no_bit(kind):
    found = []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            outs, gradients = run(kind, inputs(kind, (3, 2)), (3, 2), False, float16)
            found.append([t.numpy(force=True).tobytes() for t in (*outs, *gradients)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_what_is_not_finite_shows(kind):
    given = inputs(kind, (2, 2))
    given[0][1, 0] = np.nan
    out = run(kind, given, (2, 2), False, float32)[0][0].numpy(force=True)
    assert np.isnan(out).any(1).tolist() == [False, True, False, True]


def test_gradients_that_lie_apart_are_read_as_they_are():
    made = [tensor(a.astype("f"), requires_grad=True) for a in inputs("gru", (3, 2))]
    out = registry["gru"](*made, (3, 2), False)[0]
    apart = tensor(np.random.default_rng(0).normal(size=(H, 5)).astype("f")).T
    for got, want in zip(
        ampkit.grad(out, made, apart, retain_graph=True), ampkit.grad(out, made, apart.clone()), strict=True
    ):
        assert_close(got, want)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_the_host_waits_for_nothing(kind, dtype):
    layer = getattr(nn, kind)(WIDTH, H, 2, bidirectional=True)
    x = tensor(np.ones((3, 2, WIDTH), np.float32))
    before = emulated_cupy.waits[0]
    with ampkit.autocast(dtype=dtype, enabled=dtype != float32):
        packed, _ = layer(pack_padded_sequence(x, [1, 3], enforce_sorted=False))
        assert pad_packed_sequence(packed)[1].tolist() == [1, 3]
        out, last = layer(x)
    (out.sum() + packed.data.sum() + sum(s.sum() for s in (last if kind == "LSTM" else [last]))).backward()
    assert emulated_cupy.waits[0] == before


class Tagger(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.head = getattr(nn, kind)(WIDTH, H, batch_first=True, bidirectional=True), nn.Linear(2 * H, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0]).mean(1)


@pytest.mark.parametrize(("kind", "dtype"), [("LSTM", float16), ("GRU", float32), ("RNN", float16)], ids=str)
def test_a_compiled_step_gives_the_bits_of_eager_ones(kind, dtype):
    def training(compiled):
        ampkit.manual_seed(0)
        model = Tagger(kind)
        optimizer, scaler = optim.SGD(model.parameters(), lr=0.1), ampkit.GradScaler(enabled=dtype == float16)

        def step(x, y):
            with ampkit.autocast("cuda", dtype=dtype, enabled=dtype != float32):
                loss = ampkit.ops.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        step, generator = ampkit.compile(step) if compiled else step, np.random.default_rng(1)
        given = [(generator.normal(size=(2, 3, WIDTH)).astype("f"), generator.integers(0, 3, 2)) for _ in range(4)]
        losses = [float(step(tensor(x), tensor(y))) for x, y in given]
        return losses, [p.numpy(force=True).tobytes() for p in model.parameters()]

    assert training(False) == training(True)
