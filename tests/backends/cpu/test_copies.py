"""Copies and casts by the compiled kernel give the bits that NumPy gives, in every layout."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu.copies import convert, copy

pytestmark = pytest.mark.cpu
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
LAYOUTS = {
    "in order": lambda a: a,
    "transposed": lambda a: a.swapaxes(0, 1),
    "channels last": lambda a: a.transpose(2, 0, 1),
    "odd rows": lambda a: a[..., 1:],
    "every other column": lambda a: a[..., ::2],
    "reversed": lambda a: a[::-1, :, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "misaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


def every_kind_of_value(dtype):
    """All 16-bit patterns; for float32 those around every rounding boundary of both 16-bit formats."""
    halves = np.arange(2**16, dtype=np.uint16)
    if dtype.itemsize == 2:
        return halves.view(dtype)
    wide = [halves.view(each).astype(np.float32).view(np.uint32) for each in FLOATS[1:]]
    steps = (0, 1, 0xFFF, 0x1000, 0x1001, 0x1800, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
    return np.concatenate([bits + np.uint32(step) for bits in wide for step in steps]).view(np.float32)


def assert_same(found, truth):
    nan = np.isnan(truth.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(found[~nan].view(f"u{found.itemsize}"), truth[~nan].view(f"u{found.itemsize}"))


@pytest.mark.parametrize("to", FLOATS, ids=str)
@pytest.mark.parametrize("of", FLOATS, ids=str)
def test_every_value_is_rounded_as_numpy_rounds_it(of, to):
    values = every_kind_of_value(of)
    with np.errstate(all="ignore"):
        assert_same(convert(values, to), values.astype(to))


@pytest.mark.parametrize("target", ["in order", "transposed", "channels last", "every other column", "reversed"])
@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize(
    "dtypes", [*itertools.product(FLOATS[:2], FLOATS[1:]), ("f8", "f8"), ("i8", "i8"), ("?", "?"), ("f8", "f4")]
)
def test_a_copy_between_any_layouts_is_numpys(source, target, dtypes):
    values = np.random.default_rng(0).normal(0, 1000, (20, 33, 38)).astype(dtypes[0])
    given = LAYOUTS[source](values)
    out = LAYOUTS[target](np.zeros((80, 80, 80), dtypes[1]))[tuple(map(slice, given.shape))]
    copy(out, given)
    np.testing.assert_array_equal(out.astype(float), given.astype(dtypes[1]).astype(float))


@pytest.mark.parametrize("shape", [(0, 70000), (70000, 1, 1), (1, 70000, 1), (3, 0)], ids=str)
def test_axes_of_length_0_and_1(shape):
    values, out = np.ones(shape, np.float32), np.zeros(shape, np.float16)
    copy(out, values)
    assert (out == 1).all()


def test_a_copy_of_few_elements_beside_others_leaves_them_alone():
    out = np.zeros((200, 100), np.float32)
    copy(out[10:90, 5:95], np.ones((80, 90), np.float16))
    assert out.sum() == out[10:90, 5:95].sum() == 7200


def test_a_cast_keeps_the_order_of_axes_in_memory():
    values = np.ones((8, 16, 16, 32), np.float32).transpose(0, 3, 1, 2)
    made = convert(values, FLOATS[2])
    assert made.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("?"), np.dtype("i8")], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_pieces_of_odd_lengths_are_joined_as_numpy_joins_them(dim, dtype):
    shapes = [[33, 35, 37] for _ in range(5)]
    for shape, length in zip(shapes, (1, 0, 33, 70, 129), strict=True):
        shape[dim] = length
    pieces = [np.random.default_rng(length).normal(0, 9, shape).astype(dtype) for length, shape in enumerate(shapes)]
    for given in (pieces, [piece.T.copy().T for piece in pieces]):
        found = ops.cat([ampkit.tensor(piece) for piece in given], dim)
        assert_same(found.array, np.concatenate(pieces, dim))


def test_a_large_reshape_that_copies_is_numpys():
    values = np.random.default_rng(0).normal(0, 1, (64, 33, 40)).astype(np.float32)
    given = ampkit.tensor(values, requires_grad=True)
    moved = given.transpose(0, 2)
    for shape in ((-1,), (40, 33 * 64), (40 * 33, 64)):
        given.grad = None
        out = moved.reshape(shape)
        np.testing.assert_array_equal(out.detach().numpy(), values.transpose(2, 1, 0).reshape(shape))
        out.backward(out.detach())
        np.testing.assert_array_equal(given.grad.numpy(), values)


def test_the_gradient_of_a_large_reshape_may_have_any_strides():
    dy = ampkit.tensor(np.random.default_rng(0).normal(0, 1, (256, 300)).astype(np.float32)).t()
    given = ampkit.zeros(300 * 256, requires_grad=True)
    given.reshape(300, 256).backward(dy)
    np.testing.assert_array_equal(given.grad.numpy(), dy.numpy().reshape(-1))
