"""softmax and log_softmax on the GPU: their kernels, run by the emulation."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, ops
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
OPS = {"softmax": ops.softmax, "log_softmax": ops.log_softmax}
PAIRS = [(float32, float32), (float16, float16), (bfloat16, bfloat16), (float16, float32), (bfloat16, float32)]
TOLERANCE = {float32: 1e-6, float16: 2**-11, bfloat16: 2**-8}
# One value; a warp's row, in one access a lane, in several, with an end that fits none; a block's, kept in whole and in
# part: shared memory has the columns up to 57856 of dy and of out in 16 bits, up to 28928 in float32.
COLS = [1, 8, 100, 264, 129, 1024, 1025, 2000, 13000, 25001, 57856, 58003]


def truth(op: str, x: np.ndarray) -> np.ndarray:
    x = x.astype(float64)
    logarithm = x - x.max(-1, keepdims=True)
    logarithm -= np.log(np.exp(logarithm).sum(-1, keepdims=True))
    return logarithm if op == "log_softmax" else np.exp(logarithm)


def gradient(op: str, out: np.ndarray, dy: np.ndarray) -> np.ndarray:
    out, dy = out.astype(float64), dy.astype(float64)
    if op == "log_softmax":
        return dy - dy.sum(-1, keepdims=True) * np.exp(out)
    return (dy - (dy * out).sum(-1, keepdims=True)) * out


def values(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(scale=3, size=shape).astype(dtype)


def run(op, device, x, dtype, dy=None):
    """The answer and the gradient, by whichever kernel takes them."""
    point = Tensor(device.asarray(x), requires_grad=True)
    out = OPS[op](point, -1, dtype)
    assert out.dtype == dtype
    if dy is None:
        return out.numpy(force=True)
    seed = Tensor(device.asarray(dy.astype(dtype)))
    return out.numpy(force=True), grad(out, point, seed)[0].numpy(force=True), out


def close(got, want, dtype, scale):
    np.testing.assert_allclose(got.astype(float64), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels that ran."""
    found, bound = [], emulator.Function.bound

    def run(self, *args, **options):
        found.append(self.name)
        return bound(self, *args, **options)

    monkeypatch.setattr(emulator.Function, "bound", run)
    return found


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("op", OPS)
def test_values_and_gradients_are_those_of_float64(op, dtype, cols, device, launches):
    x, dy = values((3, cols), dtype, 0), values((3, cols), dtype, 1)
    out, dx, _ = run(op, device, x, dtype, dy)
    assert [name.partition("<")[0] for name in launches] == [f"{op}_forward", f"{op}_backward"]
    assert all((", 8, " in name) == (cols % 8 == 0) for name in launches)
    close(out, truth(op, x), dtype, 4)
    close(dx, gradient(op, out, dy), dtype, 8 * np.abs(dy.astype(float64)).sum(-1).max() ** 0.5)


@pytest.mark.parametrize("stored", [float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("op", OPS)
def test_sixteen_bits_go_in_and_float32_comes_out_rounded_once(op, stored, device):
    x, dy = values((5, 72), stored, 0), values((5, 72), float32, 1)
    out, dx, _ = run(op, device, x, float32, dy)
    close(out, truth(op, x), float32, 4)
    assert dx.dtype == stored
    close(dx, gradient(op, out, dy), stored, 1)


SPOILERS = {"nan": [np.nan], "inf": [np.inf], "both": [-np.inf, np.nan, np.inf], "less": [-np.inf], "small": [-60000.0]}


@pytest.mark.parametrize("cols", [5, 72, 1000, 1003, 1032])
@pytest.mark.parametrize("spoiler", [*SPOILERS, "all of it"])
@pytest.mark.parametrize("op", OPS)
def test_what_is_not_finite_spoils_the_same_places_as_in_the_reference(op, spoiler, cols, device, launches):
    x, dy = values((4, cols), float32, 0), values((4, cols), float32, 1)
    x[1, : len(SPOILERS.get(spoiler, x))] = -np.inf if spoiler == "all of it" else 0
    x[1, -len(SPOILERS.get(spoiler, x[1])) :] = SPOILERS.get(spoiler, -np.inf)
    out, dx, _ = run(op, device, x, float32, dy)
    assert len(launches) == 2
    with reference_only():
        want, want_dx, _ = run(op, device, x, float32, dy)
    np.testing.assert_allclose(out, want, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(dx, want_dx, rtol=2e-5, atol=2e-5)


def test_rows_that_begin_off_a_boundary_are_read_one_by_one(device, launches):
    held = device.asarray(values((1 + 3 * 64,), float32, 0))
    x = held[1:].reshape(3, 64)
    out = ops.softmax(Tensor(x), -1)
    close(out.numpy(), truth("softmax", x.get()), float32, 1)
    assert launches == ["softmax_forward<float, float, 1, 4>"]


@pytest.mark.parametrize("what", ["float64", "another axis", "strides", "empty"])
def test_what_the_kernels_do_not_take_runs_the_reference(what, device, launches):
    x = device.asarray(values((6, 40), float32, 0))
    array = {"float64": x.astype(float64), "strides": x.T, "empty": x[:0]}.get(what, x)
    point = Tensor(array, requires_grad=True)
    out = ops.softmax(point, 0 if what == "another axis" else -1)
    (dx,) = grad(out, point, Tensor(out.array))
    assert dx.shape == array.shape and dx.dtype == array.dtype and not launches


def test_the_order_of_threads_changes_no_bit(device):
    x, dy = values((3, 3000), float16, 0), values((3, 3000), float16, 1)
    found = []
    for order in (emulator.FORWARD, emulator.REVERSE, 7, 8):
        with emulator.thread_order(order):
            found.append(run("softmax", device, x, float16, dy)[:2])
    for out, dx in found[1:]:
        np.testing.assert_array_equal(out, found[0][0])
        np.testing.assert_array_equal(dx, found[0][1])
