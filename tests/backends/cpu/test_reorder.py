"""Conversions by oneDNN give the bits that NumPy gives; bfloat16 units alone make 0 of that format's subnormals."""

import ml_dtypes
import numpy as np
import pytest

from ampkit.backends import cpu
from ampkit.backends.cpu.onednn.library import isa, library, unavailable_reason
from ampkit.backends.cpu.onednn.reorder import convert, reorder

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]
FORMATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def every_kind_of_value(dtype):
    """All 16-bit patterns; for float32 those around every rounding boundary of both 16-bit formats."""
    if dtype.itemsize == 2:
        return np.arange(2**16, dtype=np.uint16).view(dtype)
    halves = np.arange(2**16, dtype=np.uint16)
    exact = np.concatenate(
        [halves.view(np.float16).astype(np.float32), halves.view(ml_dtypes.bfloat16).astype(np.float32)]
    )
    bits = exact.view(np.uint32)
    steps = [bits + np.uint32(d) for d in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1800, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    return np.concatenate(steps).view(np.float32)


@pytest.mark.parametrize("to", FORMATS, ids=str)
@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_every_value_is_rounded_as_numpy_rounds_it(of, to):
    values = every_kind_of_value(of)
    found = convert(values, to)
    if found is None:
        pytest.skip(f"oneDNN has no fast conversion from {of} to {to} on {isa()}")
    with np.errstate(all="ignore"):
        truth = values.astype(to)
    assert found.dtype == to
    assert_same(found, truth, units=of == FORMATS[0])


def assert_same(found, truth, units):
    """The same values bit for bit, NaN for NaN; units: bfloat16's subnormals may be 0."""
    wide, want = found.astype(np.float32), truth.astype(np.float32)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(wide), nan)
    if units and truth.dtype == FORMATS[2]:
        nan |= (np.abs(want) <= np.finfo(np.float32).tiny) & (wide == 0)
    np.testing.assert_array_equal(found[~nan].view(f"u{found.itemsize}"), truth[~nan].view(f"u{found.itemsize}"))


MOVES = {
    "pairs": lambda a: a,
    "turned": lambda a: a.swapaxes(0, 1),
    "channels last": lambda a: a.transpose(2, 0, 1),
    "odd rows": lambda a: a[..., 1:],
    "every other column": lambda a: a[..., ::2],
    "misaligned": lambda a: a.reshape(-1)[1:-1],
}


@pytest.mark.parametrize("dtype", FORMATS[1:], ids=str)
@pytest.mark.parametrize("move", MOVES)
def test_a_copy_in_one_format_keeps_every_bit_of_what_is_not_subnormal_in_bfloat16(move, dtype):
    array = MOVES[move](every_kind_of_value(dtype).reshape(16, 32, 128))
    out = np.zeros(array.shape, dtype)
    if not reorder(array, out):
        pytest.skip(f"oneDNN has no fast copy of {dtype} in this layout on {isa()}")
    assert_same(out, array, units=True)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(16, 8, 8, 512), (2, 3, 5, 7, 11), (3, 1, 1, 333)], ids=str)
@pytest.mark.parametrize("turn", [(0, 1, 2, 3), (0, 3, 1, 2)], ids=["in order", "channels last"])
def test_a_copy_between_equal_dense_layouts_is_always_fast_and_keeps_every_bit(shape, turn, dtype):
    kinds = np.resize(np.arange(2**16, dtype=np.uint16), shape if dtype.itemsize == 2 else (*shape[:-1], 2 * shape[-1]))
    turn = (*turn, *range(4, len(shape)))
    array = kinds.view(dtype).transpose(turn)
    out = np.empty(shape, dtype).transpose(turn)
    assert reorder(array, out)
    found, truth = (each.transpose(np.argsort(turn)).view(np.uint16) for each in (out, array))
    np.testing.assert_array_equal(found, truth)


LAYOUTS = {
    "rows": lambda a: a,
    "channels last": lambda a: a.transpose(0, 3, 1, 2),
    "every other": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1],
    "one row for all": lambda a: np.broadcast_to(a[:1], a.shape),
    "empty": lambda a: a[:0],
    "a number": lambda a: a[0, 0, 0, 0, ...].reshape(()),
    "misaligned": lambda a: a.reshape(-1)[1:],
}


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_every_layout_are_converted_or_left_to_numpy(layout):
    array = LAYOUTS[layout](np.random.default_rng(0).standard_normal((3, 4, 5, 6)).astype(np.float32))
    found = convert(array, FORMATS[2])
    if layout in ("backwards", "one row for all", "empty"):
        assert found is None
    else:
        np.testing.assert_array_equal(found, array.astype(FORMATS[2]))
        assert found.ndim == array.ndim
    if layout in ("rows", "channels last"):
        assert np.argsort(found.strides).tolist() == np.argsort(array.strides).tolist()


@pytest.mark.parametrize("to", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 300), (200, 1), (1, 1), (200, 300)])
def test_a_value_that_stands_for_many_is_rounded_for_all_of_them(shape, to):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = cpu.cast(np.broadcast_to(values, (3, 200, 300)), to)
    np.testing.assert_array_equal(found, np.broadcast_to(values.astype(to), (3, 200, 300)))
    found[0] = 1
    assert (found[0] == 1).all() and (found[1] == values.astype(to)).all()
