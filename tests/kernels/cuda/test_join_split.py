"""The GPU's joining of arrays, on the emulated one: the same values as NumPy's, whatever their dtype and layout."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, ops
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64, int64, uint8
from ampkit.core.autograd.tape import grad
from ampkit.kernels.cuda.shape import join_split

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16, float64, int64, uint8, bool_]


@pytest.fixture
def launches(monkeypatch):
    """The entries that are launched."""
    found, launch = [], join_split.launch
    monkeypatch.setattr(join_split, "launch", lambda *args, **more: (found.append(args[1]), launch(*args, **more)))
    return found


def _arrays(shapes, dtype):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 100, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shapes", "dim"),
    [
        ([(3, 8), (3, 16)], 1),
        ([(3, 5), (3, 1), (3, 7)], -1),
        ([(2, 4), (3, 4)], 0),
        ([(7,), (0,), (9,)], 0),
        ([(2, 3, 4), (2, 1, 4)], 1),
        ([(1, 3)] * 40, 0),
    ],
    ids=str,
)
def test_arrays_lie_side_by_side(shapes, dim, dtype, device, launches):
    arrays = _arrays(shapes, dtype)
    got = ops.cat([Tensor(device.asarray(a)) for a in arrays], dim)
    assert launches
    np.testing.assert_array_equal(got.numpy(), np.concatenate(arrays, dim))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_stack_has_a_new_axis(dim, device, launches):
    arrays = _arrays([(4, 6)] * 3, float16)
    got = ops.stack([Tensor(device.asarray(a)) for a in arrays], dim)
    assert launches
    assert got.array.flags.c_contiguous
    np.testing.assert_array_equal(got.numpy(), np.stack(arrays, dim))


def test_images_channels_last_stay_so(device, launches):
    arrays = [a.transpose(0, 3, 1, 2) for a in _arrays([(2, 4, 4, 8), (2, 4, 4, 16), (2, 4, 4, 1)], float16)]
    got = ops.cat([Tensor(device.asarray(a)) for a in arrays], 1)
    np.testing.assert_array_equal(got.numpy(), np.concatenate(arrays, 1))
    assert got.array.transpose(0, 2, 3, 1).flags.c_contiguous
    assert launches == ["concatenate<unsigned short>"]


def test_pieces_with_gaps_and_odd_addresses_are_copied_too(device, launches):
    whole = device.asarray(np.arange(60, dtype=np.float16).reshape(3, 20))
    flat = device.asarray(np.arange(31, dtype=np.float16))[1:].reshape(3, 10)
    got = ops.cat([Tensor(whole[:, ::2]), Tensor(flat), Tensor(whole[:, :3])], 1)
    np.testing.assert_array_equal(got.numpy(), np.concatenate([whole.get()[:, ::2], flat.get(), whole.get()[:, :3]], 1))
    assert launches == ["concatenate<unsigned short>"]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_gradients_of_pieces_are_put_together(dtype, device, launches):
    x = Tensor(device.asarray(np.zeros((4, 24), dtype)), requires_grad=True)
    seeds = _arrays([(4, 8)] * 3, dtype)
    placed = [Tensor(device.asarray(s)) for s in seeds]
    for outs, want in ((ops.split(x, 8, 1), np.concatenate(seeds, 1)), (x.reshape(4, 3, 8).unbind(1), None)):
        found = grad(list(outs), [x], placed)[0]
        np.testing.assert_array_equal(found.numpy(), np.concatenate(seeds, 1) if want is None else want)
    assert launches == ["concatenate<uint4>"] * 2
    (found,) = grad([ops.split(x, 8, 1)[1]], [x], placed[:1])
    np.testing.assert_array_equal(found.numpy()[:, 8:16], seeds[0])
    assert not found.numpy()[:, :8].any()


def test_pieces_that_lie_side_by_side_are_one_array_again_and_others_are_copied(device, launches):
    whole = device.asarray(np.arange(48, dtype=np.float16).reshape(2, 24))
    parts = [whole[:, :8], whole[:, 8:16], whole[:, 16:]]
    for dim, pieces in ((1, parts), (0, [whole[:1], whole[1:]]), (1, [piece[:, None] for piece in parts])):
        found = join_split.rejoined(pieces, dim)
        assert found.data.ptr == whole.data.ptr
        np.testing.assert_array_equal(found.get(), np.concatenate([piece.get() for piece in pieces], dim))
    assert not launches
    for pieces in (parts[::-1], parts[::2], [parts[0], parts[1], parts[2][:1].repeat(2, 0)], [whole[:1], whole[:1]]):
        found = join_split.rejoined(pieces, 1)
        np.testing.assert_array_equal(found.get(), np.concatenate([piece.get() for piece in pieces], 1))
        assert found.data.ptr != whole.data.ptr
    assert not np.shares_memory(ops.cat([Tensor(piece) for piece in parts], 1).numpy(), whole.get())


def test_the_gradient_of_a_cat_is_its_slices(device):
    a, b = (Tensor(device.asarray(np.zeros((2, n), np.float32)), requires_grad=True) for n in (3, 5))
    seed = np.arange(16, dtype=np.float32).reshape(2, 8)
    found = grad(ops.cat([a, b], 1), [a, b], Tensor(device.asarray(seed)))
    np.testing.assert_array_equal(np.concatenate([f.numpy() for f in found], 1), seed)
