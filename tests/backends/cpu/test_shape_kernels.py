"""CPU kernels of shape ops and creation move the same bits to the same places as the references, in the same order."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, bfloat16, float16, float32, ops
from ampkit.core.dispatch import reference_only
from ampkit.nn.functional import pad

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
@pytest.mark.parametrize("name", OPS)
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
