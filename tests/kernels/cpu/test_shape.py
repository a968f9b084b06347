"""CPU kernels of shape ops and creation move the same bits to the same places as the references, in the same order."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, bfloat16, float16, float32, ops
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.nn.functional import pad
from ampkit.testing import TOLERANCE, assert_close

pytestmark = pytest.mark.cpu
LAYOUTS = {
    "in order": lambda a: a,
    "channels last": lambda a: a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2),
    "columns first": lambda a: a.swapaxes(2, 3),
    "every other": lambda a: a[..., ::2],
}
OPS = {
    "tril": lambda x: ops.tril(x),
    "tril above": lambda x: ops.tril(x, 7),
    "tril below": lambda x: ops.tril(x, -9),
    "tril of nothing": lambda x: ops.tril(x, -(2**60)),
    "triu": lambda x: ops.triu(x),
    "triu above": lambda x: ops.triu(x, 3),
    "triu below": lambda x: ops.triu(x, -20),
    "triu of nothing": lambda x: ops.triu(x, 2**60),
    "pad": lambda x: pad(x, (1, 2, 3, 0, 1, 0), value=1),
    "pad and crop": lambda x: pad(x, (-1, 2)),
    "reflect": lambda x: pad(x, (3, 1, 0, 2), mode="reflect"),
    "reflect all": lambda x: pad(x, (0, x.shape[3] - 1, x.shape[2] - 1, 0), mode="reflect"),
    "replicate": lambda x: pad(x, (3, 1, 0, 50, 2, 1), mode="replicate"),
    "circular": lambda x: pad(x, (3, 1, x.shape[2], x.shape[2]), mode="circular"),
    "repeat": lambda x: x.repeat(2, 1, 3, 1, 2),
    "repeat once": lambda x: x.repeat(1, 1, 1, 1),
    "repeat never": lambda x: x.repeat(2, 0, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "repeat_interleave last": lambda x: x.repeat_interleave(2, -1),
    "flip": lambda x: x.flip(0, 2),
    "flip inner": lambda x: x.flip(3),
    "flip nothing": lambda x: x.flip(()),
    "rot90": lambda x: ops.rot90(x, 1, (2, 3)),
    "roll": lambda x: x.roll(3, 3),
    "roll two": lambda x: x.roll((-5, 101), (2, 1)),
    "roll all": lambda x: x.roll(-1234),
    "roll nothing": lambda x: x.roll(0, 2),
}
ADDED_UP = {"reflect", "reflect all", "replicate", "circular"}  # their gradients are sums


def values(dtype, layout, shape=(3, 4, 80, 150)):
    numbers = np.random.default_rng(0).normal(0, 3, shape)
    numbers[0, 0, ::3] = -0.0
    if np.dtype(dtype).kind != "i":
        numbers[1, 1, ::4], numbers[1, 2, ::5] = np.nan, np.inf
    return LAYOUTS[layout](numbers.astype(dtype))


def same(found, truth):
    assert (found.shape, found.dtype) == (truth.shape, truth.dtype)
    assert found.strides == truth.strides or not found.size
    assert found.tobytes() == truth.tobytes()


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, "i8", "?"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_moved_values_are_those_of_the_reference(name, layout, dtype):
    given = values(dtype, layout)
    before = given.copy()
    found = OPS[name](Tensor(given)).array
    with reference_only():
        truth = OPS[name](Tensor(given)).array
    same(found, truth)
    assert not np.shares_memory(found, given)
    assert given.tobytes() == before.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(OPS.keys() - ADDED_UP))
def test_gradients_are_those_of_the_reference(name, layout):
    def gradient():
        x = Tensor(given, requires_grad=True)
        out = OPS[name](x)
        out.backward(Tensor(np.random.default_rng(1).normal(0, 1, out.shape).astype("f")))
        return x.grad.array

    given = values(float32, layout)
    found = gradient()
    with reference_only():
        same(found, gradient())


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(ADDED_UP))
def test_gradients_of_copied_edges_are_the_sums_of_float64(name, layout, dtype):
    def gradient(dtype, dy):
        x = Tensor(given.astype(dtype), requires_grad=True)
        return grad(OPS[name](x), [x], Tensor(dy.astype(dtype) if dy.strides[0] else dy))[0].array

    given = values(dtype, layout, (3, 4, 20, 30))
    shape = OPS[name](Tensor(given)).shape
    dy = np.random.default_rng(1).normal(0, 1, shape).astype(dtype)
    transposed = dy.swapaxes(1, 3).copy().swapaxes(1, 3)
    for each in (dy, transposed, np.repeat(dy, 2, 3)[..., ::2], np.broadcast_to(dtype.type(0.3), shape)):
        found = gradient(dtype, each)
        with reference_only():
            want = gradient(float, each.astype(float))
        assert found.dtype == dtype
        assert_close(found, want, TOLERANCE[dtype])


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("widths", [(2, 1), (0, 3), (4, 0, 0, 2), (1, 2, 0, 0, 3, 1), (0, 0, 0, 0, 0, 0, 0, 0, 2, 2)])
def test_padding_of_any_axes_repeats_the_elements_that_numpy_repeats(mode, widths):
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    pairs = [(0, 0)] * (5 - len(widths) // 2) + list(zip(widths[-2::-2], widths[::-2], strict=True))
    for shape in ((5, 7, 6, 5, 9), (6, 1, 4, 5, 40), (3, 2, 70, 8, 9)):
        if mode == "reflect" and any(max(pair) >= n for pair, n in zip(pairs, shape, strict=True)):
            continue
        for order in ((0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (4, 3, 2, 1, 0)):
            x = np.arange(np.prod(shape)).reshape([shape[i] for i in order]).transpose(np.argsort(order)).astype("f")
            found = pad(Tensor(x), widths, mode).array
            np.testing.assert_array_equal(found, np.pad(x, pairs, mode=modes[mode]))
