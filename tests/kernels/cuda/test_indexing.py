"""The GPU's indexing, on the emulated one: slices by index, and sums at places, the same bits every time."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, ops
from ampkit.backends.cuda.launch import row_copy as rows
from ampkit.backends.cuda.launch import segment_sum
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, int64
from ampkit.base.errors import ShapeError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.kernels.cuda.indexing import gather_scatter
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
RNG = np.random.default_rng(0)
PICKS = {  # shape, index: arrays and whole axes
    "rows": ((9, 5), (RNG.integers(0, 9, 40),)),
    "rows from the end": ((9, 8), (RNG.integers(-9, 9, (4, 7)),)),
    "columns": ((4, 9), (slice(None), RNG.integers(0, 9, 30))),
    "the middle": ((3, 9, 8), (slice(None), RNG.integers(-9, 9, 20), slice(None))),
    "the last": ((3, 4, 9), (..., RNG.integers(0, 9, 20))),
    "elements": ((6, 7), (RNG.integers(0, 6, 90), RNG.integers(-7, 7, 90))),
    "three axes": ((3, 4, 5), tuple(RNG.integers(0, n, 70) for n in (3, 4, 5))),
    "two axes of three": ((4, 6, 7), (slice(None), RNG.integers(0, 6, (5, 1)), RNG.integers(0, 7, 6))),
}


@pytest.fixture
def launches(monkeypatch):
    """The entries that are launched."""
    found = []
    for module in (gather_scatter, rows, segment_sum):
        launch = module.launch
        monkeypatch.setattr(
            module, "launch", lambda *args, launch=launch, **more: (found.append(args[1]), launch(*args, **more))
        )
    return found


def _placed(device, part):
    return Tensor(device.asarray(part)) if isinstance(part, np.ndarray) else part


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PICKS)
def test_what_was_picked_more_than_once_adds_up(name, dtype, device, launches):
    shape, index = PICKS[name]
    x = Tensor(device.asarray(np.zeros(shape, dtype)), requires_grad=True)
    out = x[tuple(_placed(device, part) for part in index)]
    seed = np.random.default_rng(1).normal(size=out.shape).astype(dtype)
    (found,) = grad(out, [x], Tensor(device.asarray(seed)))
    want = np.zeros(shape)
    np.add.at(want, index, seed.astype(float))
    assert "segment_sums<float, float>" in launches
    assert_close(found, want, GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [*DTYPES, int64, bool_], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_slices_are_copied_and_their_gradients_added(dim, dtype, device, launches):
    values = np.random.default_rng(0).integers(0, 50, (5, 6, 8)).astype(dtype)
    index = np.random.default_rng(1).integers(0, 5, 12)
    x = Tensor(device.asarray(values), requires_grad=dtype in DTYPES)
    out = ops.index_select(x, dim, Tensor(device.asarray(index)))
    assert len(launches) == 1
    np.testing.assert_array_equal(out.numpy(force=True), np.take(values, index, dim))
    if dtype in DTYPES:
        seed = np.random.default_rng(1).normal(size=out.shape).astype(dtype)
        (found,) = grad(out, [x], Tensor(device.asarray(seed)))
        want = np.zeros(values.shape)
        np.add.at(np.moveaxis(want, dim, 0), index, np.moveaxis(seed.astype(float), dim, 0))
        assert_close(found, want, GRADIENT_TOLERANCE[dtype])


def test_gather_and_scatter_add_undo_each_other_in_a_fixed_order(device, launches):
    rng = np.random.default_rng(0)
    values, index = rng.normal(size=(6, 7)).astype(np.float32), rng.integers(0, 6, (6, 7))
    at = Tensor(device.asarray(index))
    want = np.zeros((6, 7))
    np.add.at(want, (index, np.arange(7)), values.astype(float))
    found = []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            x = Tensor(device.asarray(np.zeros((6, 7), np.float32)), requires_grad=True)
            gradient = grad(ops.gather(x, 0, at), [x], Tensor(device.asarray(values)))[0].numpy()
            added = ops.scatter_add(x.detach(), 0, at, Tensor(device.asarray(values))).numpy()
            found.append(gradient.tobytes() + added.tobytes())
    assert found[0] == found[1] == found[2]
    assert_close(gradient, want, GRADIENT_TOLERANCE[float32])
    assert_close(added, want, GRADIENT_TOLERANCE[float32])
    assert launches.count("segment_sums<float, float>") == 6


def test_masks_and_parts_of_axes_run_the_reference(device, launches):
    x = Tensor(device.asarray(np.ones((4, 6), np.float32)), requires_grad=True)
    rows, mask = Tensor(device.asarray(np.array([0, 0, 3]))), np.arange(24).reshape(4, 6) % 2 == 0
    for index in ((rows, slice(1, 3)), (Tensor(device.asarray(mask)),)):
        out = x[index]
        (found,) = grad(out, [x], Tensor(device.xp.zeros(out.shape, np.float32) + 1))
        want = np.zeros((4, 6), np.float32)
        np.add.at(want, tuple(i.numpy() if isinstance(i, Tensor) else i for i in index), 1)
        np.testing.assert_array_equal(found.numpy(), want)
    assert not launches


# what is written more than once


@pytest.mark.parametrize("dtype", [*DTYPES, int64, bool_], ids=str)
@pytest.mark.parametrize("name", PICKS)
@pytest.mark.parametrize("least", [False, True], ids=["table", "reference"])
def test_of_what_is_written_to_one_place_the_last_stays(name, dtype, least, device, launches):
    shape, index = PICKS[name]
    values = np.random.default_rng(2).permutation(np.zeros(shape)[index].size).astype(dtype)
    values = values.reshape(np.zeros(shape)[index].shape)
    want = np.zeros(shape, dtype)
    want[index] = values
    there = tuple(_placed(device, part) for part in index)
    x, given = Tensor(device.asarray(np.zeros(shape, dtype))), Tensor(device.asarray(values))
    put = tuple(None if type(part) is slice else part for part in there)
    with reference_only() if least else nullcontext():
        if name != "the last":  # which an ellipsis comes before
            np.testing.assert_array_equal(ops.index_put(x, put, given).numpy(), want)
        x[there] = given
    np.testing.assert_array_equal(x.numpy(), want)
    assert any("segment_last" in name for name in launches) != least


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter_and_index_copy_keep_the_last(dim, device):
    rng = np.random.default_rng(3)
    index, values = rng.integers(0, 3, (3, 5, 2)), rng.normal(size=(3, 5, 2)).astype("f")
    there = [Tensor(device.asarray(a)) for a in (np.zeros((3, 5, 3), "f"), index, values)]
    here = [Tensor(a) for a in (np.zeros((3, 5, 3), "f"), index, values)]
    found, want = (ops.scatter(x, dim, at, src).numpy() for x, at, src in (there, here))
    np.testing.assert_array_equal(found, want)
    again = rng.integers(0, 2, 4)
    source = rng.normal(size=[4 if axis == dim % 3 else n for axis, n in enumerate((3, 5, 3))]).astype("f")
    found = ops.index_copy(there[0], dim, Tensor(device.asarray(again)), Tensor(device.asarray(source)))
    want = np.zeros((3, 5, 3), "f")
    for i, at in enumerate(again):
        np.moveaxis(want, dim, 0)[at] = np.moveaxis(source, dim, 0)[i]
    np.testing.assert_array_equal(found.numpy(), want)


def test_parts_of_axes_masks_and_values_that_broadcast_are_written_as_numpy_writes_them(device):
    def both(index, values):
        x, want = Tensor(device.asarray(np.zeros((4, 5, 6), "f"))), np.zeros((4, 5, 6), "f")
        x[tuple(_placed(device, part) for part in index)] = Tensor(device.asarray(values))
        want[index] = values
        np.testing.assert_array_equal(x.numpy(), want)

    twice, many = np.array([1, 1, 0, 1]), np.arange(100, dtype="f")
    both((twice, slice(1, 4)), many[:72].reshape(4, 3, 6))
    both((twice, slice(None), twice), many[:20].reshape(4, 5))
    both((slice(None, None, 2), twice), many[:6])
    both((slice(None), twice), many[:4].reshape(1, 1, 4, 1))
    both((twice[:0],), many[:0].reshape(0, 5, 6))
    both((np.arange(20).reshape(4, 5) % 3 == 0,), many[:42].reshape(7, 6))
    both((twice > 0, slice(2)), many[:6])


def test_host_lists_name_places_of_the_device(device):
    x = Tensor(device.asarray(np.zeros(3, "f")))
    x[[2, 0, 2]] = Tensor(device.asarray(np.arange(3, dtype="f")))
    assert x.numpy().tolist() == [1, 0, 2]
    with pytest.raises(ShapeError, match="a value that broadcasts"):
        x[[2, 0, 2]] = Tensor(device.asarray(np.arange(2, dtype="f")))
