"""The GPU's gather, scatter and scatter_add, on the emulated one: the same values and bits as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, autocast, ops
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64, int64, uint8
from ampkit.base.errors import RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, assert_close

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OURS = {
    *(f"{name}<{i}>" for name in ("flat_index", "segment_last") for i in ("long long", "int")),
    *(f"gather_forward<{w}, {i}>" for w in ("unsigned long long", "unsigned", "unsigned short", "unsigned char")
      for i in ("long long", "int")),
    *(f"scatter_forward<{w}>" for w in ("unsigned long long", "unsigned", "unsigned short", "unsigned char")),
}  # fmt: skip
DTYPES = [float32, float16, bfloat16]
MOVED = [*DTYPES, float64, int64, uint8, bool_]
CASES = {  # the shape of the input, that of the index, the axis
    "a row": ((300,), (700,), 0),
    "rows": ((5, 7), (9, 7), 0),
    "columns": ((5, 7), (3, 11), -1),
    "the middle": ((3, 4, 5), (2, 13, 5), 1),
    "four axes": ((2, 3, 4, 5), (2, 3, 1, 4), 2),
    "one element": ((1,), (1,), 0),
}


def _index(case, dtype=np.int64):
    shape, size, dim = CASES[case]
    return np.random.default_rng(1).integers(0, shape[dim], size).astype(dtype)


def _values(shape, dtype, seed=0):
    values = np.random.default_rng(seed).integers(-99, 99, shape)
    found = (values / 8).astype(dtype) if dtype in (*DTYPES, float64) else values.astype(dtype)
    if dtype in (*DTYPES, float64):
        found.reshape(-1)[::3], found.reshape(-1)[1::5], found.reshape(-1)[2::7] = np.nan, np.inf, -0.0
    return found


def _there(device, *arrays):
    return [Tensor(device.asarray(array)) for array in arrays]


def _same(found, want):
    """The same bits, NaN's and those of -0 too."""
    got = found.numpy(force=True)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(*(np.ascontiguousarray(a).view(np.uint8) for a in (got, want)))


@pytest.mark.parametrize("dtype", MOVED, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_what_an_index_names_is_gathered(case, dtype, device, launches):
    shape, _, dim = CASES[case]
    x, index = _values(shape, dtype), _index(case)
    want = ops.gather(Tensor(x), dim, Tensor(index)).numpy()
    for kind in (np.int64, np.int32, np.uint8, np.int16):
        given = index.astype(kind) if shape[dim] < 127 else index
        (at,) = _there(device, given)
        _same(ops.gather(Tensor(device.asarray(x)), dim, at), want)
    assert launches == ["gather_forward"] * 4


@pytest.mark.parametrize("dtype", MOVED, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_of_what_is_scattered_to_a_place_the_last_stays(case, dtype, device, launches):
    shape, size, dim = CASES[case]
    x, index = _values(shape, dtype), _index(case)
    src = _values(tuple(n + 2 for n in size), dtype, 3)
    for values in (src[tuple(slice(n) for n in size)], src):
        want = x.copy()
        for place in np.ndindex(size):
            to = list(place)
            to[dim % len(shape)] = index[place]
            want[tuple(to)] = values[place]
        point, at, given = _there(device, x, index, values)
        _same(ops.scatter(point, dim, at, given), want)
    assert launches == ["flat_index", "segment_last", "scatter_forward"] * 2


@pytest.mark.parametrize("dtype", [*MOVED[:-1]], ids=str)
def test_a_number_is_scattered(dtype, device, launches):
    x, index = _values((5, 7), dtype), _index("columns")
    point, at = _there(device, x, index)
    _same(ops.scatter(point, -1, at, 3), ops.scatter(Tensor(x), -1, Tensor(index), 3).numpy())
    assert "scatter_forward" in launches


def test_in_a_region_operands_of_several_dtypes_meet_in_the_widest(device):
    x, index, src = _values((5, 7), bfloat16), _index("columns"), _values((3, 11), float32, 3)
    for op in (ops.scatter, ops.scatter_add):
        with autocast(dtype=bfloat16):
            found = op(*_there(device, x), -1, *_there(device, index, src))
            want = op(Tensor(x), -1, Tensor(index), Tensor(src))
        assert found.dtype == want.dtype == float32
        np.testing.assert_array_equal(found.numpy(), want.numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_sums_are_carried_in_float32_and_rounded_once(case, dtype, device, launches):
    shape, size, dim = CASES[case]
    rng = np.random.default_rng(0)
    x, src, index = (*(rng.normal(size=n).astype(dtype) for n in (shape, size)), _index(case))
    point, at, given = _there(device, x, index, src)
    found = ops.scatter_add(point, dim, at, given)
    assert launches == ["flat_index"]
    assert found.dtype == dtype
    want = ops.scatter_add(Tensor(x.astype(float)), dim, Tensor(index), Tensor(src.astype(float))).numpy()
    assert_close(found, want, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["gather", "scatter", "scatter_add", "scatter of a number"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_reference(case, name, dtype, device, launches):
    shape, size, dim = CASES[case]
    rng = np.random.default_rng(0)
    x, src = (Tensor(device.asarray(rng.normal(size=n).astype(dtype)), requires_grad=True) for n in (shape, size))
    (at,) = _there(device, _index(case))
    points = [x, src] if name in ("scatter", "scatter_add") else [x]

    def run():
        more = (src,) if len(points) > 1 else () if name == "gather" else (2.5,)
        out = getattr(ops, name.partition(" ")[0])(x, dim, at, *more)
        seed = np.random.default_rng(1).normal(size=out.shape).astype(dtype)
        return grad(out, points, Tensor(device.asarray(seed)))

    found = run()
    assert len(launches) > 1
    with reference_only():
        want = run()
    for one, other in zip(found, want, strict=True):
        assert one.dtype == other.dtype == dtype
        assert_close(one, other.numpy(), GRADIENT_TOLERANCE[dtype])


def test_arrays_may_lie_as_they_like(device, launches):
    x, index, src = _values((6, 8, 5), float32), _index("the middle", np.int32), _values((4, 26, 5), float32, 3)
    point, at, given = _there(device, x, index, src)
    ways = {
        "turned": (point.transpose(0, 2), 1, at.transpose(0, 2), given.transpose(0, 2)),
        "apart": (point[::2, ::2], 1, at[:, ::3], given[::2, ::2]),
        "backwards": (point.flip(1), 1, at.flip(2), given.flip(0)),
        "broadcast": (point[:, :, :1].expand(6, 8, 5), 1, at[:, :1].expand(2, 9, 5), given[:1].expand(4, 26, 5)),
    }
    for way in ways.values():
        here = [a if type(a) is int else Tensor(a.array.get()) for a in way]
        for op, count in ((ops.gather, 3), (ops.scatter, 4), (ops.scatter_add, 4)):
            np.testing.assert_array_equal(op(*way[:count]).numpy(), op(*here[:count]).numpy())
    assert launches.count("gather_forward") == launches.count("scatter_forward") == len(ways)


def test_take_along_dim_reads_broadcast_arrays(device, launches):
    x, index = _values((4, 1, 6), float16), np.random.default_rng(0).integers(0, 6, (1, 5, 3))
    found = ops.take_along_dim(*_there(device, x, index), 2)
    np.testing.assert_array_equal(
        found.numpy(), np.take_along_axis(np.broadcast_to(x, (4, 5, 6)), np.broadcast_to(index, (4, 5, 3)), 2)
    )
    assert launches == ["gather_forward"]


def test_nothing_is_gathered_scattered_or_added(device, launches):
    x, index = _there(device, _values((3, 4), float32), np.zeros((0, 4), np.int64))
    src = Tensor(device.asarray(np.zeros((0, 4), np.float32)))
    assert ops.gather(x, 0, index).shape == (0, 4)
    for op in (ops.scatter, ops.scatter_add):
        np.testing.assert_array_equal(op(x, 0, index, src).numpy(), x.numpy())
    assert not launches


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
def test_an_index_outside_the_axis_is_told_and_touches_nothing(wrong, device):
    index, want = np.array([[0, 1], [wrong, 4], [2, 3]]), np.zeros((3, 5))
    want[[0, 0, 1, 2, 2], [0, 1, 4, 2, 3]] = 1
    for op, name in ((ops.gather, "gather"), (ops.scatter, "scatter"), (ops.scatter_add, "scatter_add")):
        x, at, ones = _there(device, np.zeros((3, 5), np.float32), index, np.ones((3, 2), np.float32))
        out = op(x, 1, at, *(() if op is ops.gather else (ones,))).array.get()
        np.testing.assert_array_equal(out, [[0, 0], [np.nan, 0], [0, 0]] if op is ops.gather else want)
        with pytest.raises(RangeError, match=f"{name}: needs indices from 0 to 4, got {wrong} at position"):
            device.synchronize()


def test_the_order_of_threads_changes_no_bit(device):
    x, index, src = _values((300,), float32), _index("a row"), np.random.default_rng(2).normal(size=700).astype("f")
    found = []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            point, at, given = _there(device, x, index, src)
            outs = ops.gather(point, 0, at), ops.scatter(point, 0, at, given), ops.scatter_add(point, 0, at, given)
            found.append([out.numpy().tobytes() for out in outs])
    assert found[0] == found[1] == found[2]
