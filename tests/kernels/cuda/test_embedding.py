"""The GPU's embedding, on the emulated one: rows by index, and their gradients added up in a fixed order."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, nn, ops
from ampkit.backends.cuda.launch import row_copy as rows
from ampkit.backends.cuda.launch import segment_sum
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.base.errors import RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.policy import autocast
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
RNG = np.random.default_rng(0)
INDICES = {
    "letters": (65, RNG.integers(0, 65, (8, 64))),
    "many keys": (70000, RNG.integers(0, 70000, 2500)),
    "one of them": (7, np.full(300, 5)),
    "runs of a tile each": (3, np.repeat([2, 0, 1], 64)),
    "runs of a tile and one": (3, np.repeat([2, 0, 1], 65)),
    "long beside short": (9, np.concatenate([np.full(200, 3), np.arange(9), np.full(130, 8)])),
    "one": (4, np.array(3)),
    "int32": (65, RNG.integers(0, 65, 500).astype(np.int32)),
    "uint8": (255, RNG.integers(0, 255, 500).astype(np.uint8)),
    "every other": (65, RNG.integers(0, 65, 500)[::-2]),
}


@pytest.fixture
def launches(monkeypatch):
    """The entries that are launched."""
    found = []
    for module in (rows, segment_sum):
        launch = module.launch
        monkeypatch.setattr(
            module, "launch", lambda *args, launch=launch, **more: (found.append(args[1]), launch(*args, **more))
        )
    return found


def _gradient(device, index, rows, gradients, padding=None):
    table = Tensor(device.xp.zeros((rows, gradients.shape[-1]), gradients.dtype), requires_grad=True)
    out = ops.embedding(Tensor(device.asarray(index)), table, padding)
    return grad(out, [table], Tensor(device.asarray(gradients)))[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [16, 5, 1])
@pytest.mark.parametrize("name", INDICES)
def test_rows_are_copied(name, width, dtype, device, launches):
    rows, index = INDICES[name]
    table = np.random.default_rng(1).standard_normal((rows, width)).astype(dtype)
    got = ops.embedding(Tensor(device.asarray(index)), Tensor(device.asarray(table)))
    assert len(launches) == 1
    np.testing.assert_array_equal(got.numpy(), table[index])


# Many keys take a third pass of the sort, which sees no gradients: one dtype shows it.
SUMS = [(name, dtype) for name in INDICES for dtype in DTYPES if name != "many keys" or dtype == float16]


@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize(("name", "dtype"), SUMS, ids=str)
def test_rows_of_one_index_add_up(name, dtype, padding, device, launches):
    rows, index = INDICES[name]
    gradients = np.random.default_rng(1).standard_normal((*index.shape, 13 if rows == 9 else 24)).astype(dtype)
    want = np.zeros((rows, gradients.shape[-1]))
    np.add.at(want, index.reshape(-1), gradients.reshape(-1, gradients.shape[-1]).astype(float))
    if padding is not None:
        want[padding] = 0
    found = _gradient(device, index, rows, gradients, padding)
    assert any("segment_sums" in name for name in launches)
    assert found.dtype == dtype
    assert_close(found, want, GRADIENT_TOLERANCE[dtype])


def test_a_parameter_receives_its_gradient_in_float32_from_16_bits(device, launches):
    layer = nn.Embedding(11, 16).to("cuda").to(dtype=bfloat16)
    index = np.random.default_rng(0).integers(0, 11, 40)
    with autocast(dtype=float16):
        out = layer(Tensor(device.asarray(index)))
    gradients = np.random.default_rng(1).standard_normal((40, 16)).astype(bfloat16)
    out.backward(Tensor(device.asarray(gradients)))
    want = np.zeros((11, 16), np.float32)
    np.add.at(want, index, gradients.astype(np.float32))
    assert "segment_sums<__nv_bfloat16, float>" in launches
    assert_close(layer.weight.grad.numpy().astype(np.float32), want, (8e-3, 1e-3))


def test_the_order_of_threads_changes_no_bit(device):
    rows, index = INDICES["long beside short"]
    gradients = np.random.default_rng(1).standard_normal((*index.shape, 24)).astype(np.float32)
    found = []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            found.append(_gradient(device, index, rows, gradients).numpy().tobytes())
    assert found[0] == found[1] == found[2]


def test_keys_are_sorted_and_equal_ones_stay_in_order(device):
    keys = np.random.default_rng(0).integers(-3, 1000, 5000)
    order = segment_sum.ordered(device.asarray(keys), 900, 17)
    known = np.where((keys < 0) | (keys >= 900) | (keys == 17), 900, keys)
    np.testing.assert_array_equal(order.places.get(), np.argsort(known, kind="stable"))
    np.testing.assert_array_equal(order.keys.get(), np.sort(known))
    np.testing.assert_array_equal(order.starts.get(), np.searchsorted(np.sort(known), np.arange(901)))


def test_many_repeats_are_summed_as_precisely_as_in_pairs(device):
    gradients = np.random.default_rng(1).uniform(0, 1, (30000, 8)).astype(np.float32)
    want = gradients.sum(0, dtype=float)
    found = _gradient(device, np.zeros(30000, int), 2, gradients).numpy()[0]
    assert np.abs(found - want).max() / want.max() < 3e-7


def test_what_is_not_finite_stays_with_its_index(device):
    index = np.random.default_rng(0).integers(0, 9, 900)
    gradients = np.ones((900, 16), np.float32)
    gradients[np.flatnonzero(index == 4)[7], 3] = np.nan
    gradients[np.flatnonzero(index == 6)[-1], 0] = np.inf
    found = _gradient(device, index, 9, gradients).numpy()
    assert np.argwhere(~np.isfinite(found)).tolist() == [[4, 3], [6, 0]]


def test_the_host_reads_nothing(device):
    rows, index = INDICES["letters"]
    gradients = np.ones((*index.shape, 16), np.float32)
    before = device.xp.waits[0]
    _gradient(device, index, rows, gradients, 3)
    assert device.xp.waits[0] == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_index_outside_the_table_gives_nan_and_an_error_later(dtype, device):
    table = Tensor(device.asarray(np.ones((3, 8), dtype)))
    out = ops.embedding(Tensor(device.asarray(np.array([0, 3, -1, 2]))), table)
    assert np.isnan(out.array.get().astype(float)).any(1).tolist() == [False, True, True, False]
    with pytest.raises(RangeError, match="3 at position 1"):
        device.synchronize()
