"""float32 to float16 on the CPU, and back: every rounding as IEEE 754 has it."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import backends
from ampkit.backends.cpu import f16c
from ampkit.backends.cpu.float16_cast import from_float32, to_float32
from ampkit.backends.cpu.onednn.reorder import reorder
from ampkit.base.dtypes import float16, float32

HALVES = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)  # every finite value >= 0
MIDDLES = ((HALVES[:-1].astype(np.float64) + HALVES[1:]) / 2).astype(np.float32)


@pytest.fixture(params=["instructions", "arithmetic"], autouse=True)
def way(request, monkeypatch):
    """Either way of converting, for every test."""
    if request.param == "arithmetic":
        monkeypatch.setattr(f16c, "_routines", lambda: None)
    elif not f16c.there():
        pytest.skip("the CPU has no instructions that convert float16")


def expected(values):
    with np.errstate(all="ignore"):
        return values.astype(np.float16).view(np.uint16)


@pytest.mark.parametrize(
    "values",
    [
        HALVES,
        -HALVES,
        MIDDLES,
        -MIDDLES,
        np.nextafter(MIDDLES, np.float32(0)),
        np.nextafter(MIDDLES, np.float32(np.inf)),
        np.array(
            [65504, 65519.996, 65520, 1e38, np.inf, -np.inf, 0.0, -0.0, 2**-25, np.nextafter(2**-25, 1)], np.float32
        ),
    ],
    ids=["exact", "negative", "ties", "negative ties", "below ties", "above ties", "edges"],
)
def test_every_value_rounds_to_the_nearest_ties_to_even(values):
    np.testing.assert_array_equal(from_float32(values).view(np.uint16), expected(values))


def test_samples_of_all_float32_bit_patterns_round_as_numpy_rounds_them():
    values = np.arange(0, 1 << 32, 30011, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    np.testing.assert_array_equal(from_float32(values).view(np.uint16), expected(values))


def test_nan_stays_nan_and_shape_and_strides_do_not_matter():
    values = np.linspace(-3, 3, 40000, dtype=np.float32).reshape(100, 400)
    values[3, 5] = np.nan
    out = backends.cpu.cast(values.T, float16)
    assert out.shape == (400, 100) and np.isnan(out[5, 3])
    np.testing.assert_array_equal(out, values.T.astype(np.float16))


def test_every_float16_widens_to_its_value():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    with np.errstate(all="ignore"):
        truth = halves.T.astype(np.float32)
    out = backends.cpu.cast(halves.T, float32)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, truth)
    assert to_float32(np.empty((0, 3), np.float16)).shape == (0, 3)


def test_axes_stay_in_memory_as_they_lie():
    wide = np.random.default_rng(0).standard_normal((3, 20, 30, 5)).astype(np.float32).transpose(0, 3, 1, 2)
    half = from_float32(wide)
    np.testing.assert_array_equal(half, wide.astype(np.float16))
    assert half.transpose(0, 2, 3, 1).flags.c_contiguous
    assert to_float32(half).strides == wide.strides
    np.testing.assert_array_equal(to_float32(half), half)


@pytest.mark.parametrize("size", [8, 9, 4095, 8192, 8193, 16391, 3 * 32768 + 5])
def test_instructions_write_all_of_the_target_and_nothing_beyond(size):
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    halves, wide = np.full(size + 3, 7, np.float16), np.full(size + 3, 7, np.float32)
    if not f16c.convert(values, halves[1:-2]):
        pytest.skip("about the instructions, which are not there or switched off")
    np.testing.assert_array_equal(halves[1:-2], values.astype(np.float16))
    assert f16c.convert(halves[1:-2], wide[2:-1])
    np.testing.assert_array_equal(wide[2:-1], halves[1:-2])
    assert (halves[[0, -2, -1]] == 7).all() and (wide[[0, 1, -1]] == 7).all()


def test_a_system_that_gives_no_memory_for_code_is_served_by_arithmetic(monkeypatch):
    def refuse(*options):
        raise PermissionError("no")

    monkeypatch.setattr(f16c.mmap, "mmap", refuse)
    assert f16c._written() is None


TURNS = {
    "rows": lambda a: a,
    "channels last": lambda a: a.transpose(0, 3, 1, 2),
    "heads": lambda a: a.transpose(0, 2, 1, 3),
    "some columns": lambda a: a[:, :, :, 3:17],
    "every other": lambda a: a[:, ::2],
    "one for all": lambda a: np.broadcast_to(a[:1], a.shape),
    "backwards": lambda a: a[::-1],
}


HOMES = {
    "rows": lambda shape, dtype: np.zeros(shape, dtype),
    "channels last": lambda shape, dtype: np.zeros((shape[0], *shape[2:], shape[1]), dtype).transpose(0, 3, 1, 2),
    "some columns": lambda shape, dtype: np.zeros((*shape[:-1], shape[-1] + 6), dtype)[..., 3:-3],
}


@pytest.mark.parametrize(("of", "to"), [(float32, float16), (float16, float32), (float16, float16)])
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("turn", TURNS)
def test_moves_of_float16_between_any_two_layouts_keep_every_value(turn, home, of, to):
    values = np.random.default_rng(0).standard_normal((4, 6, 8, 20)).astype(of)
    values[0, 0, 0, 4:8] = [np.inf, -np.inf, np.nan, -0.0]
    given = TURNS[turn](values)
    found = HOMES[home](given.shape, to)
    if min(given.strides) > 0 and reorder(given, found):
        np.testing.assert_array_equal(found, given.astype(to))
    np.testing.assert_array_equal(backends.cpu.cast(given, to), given.astype(to))
