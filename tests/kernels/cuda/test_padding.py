"""The GPU's padding, on the emulated one: the values of the CPU, bit by bit, and the gradients of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, ops
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64, int64, uint8
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
WORDS = ("unsigned long long", "unsigned", "unsigned short", "unsigned char")
STORED = ("float", "__half", "__nv_bfloat16")
OURS = {f"pad_forward<{w}>" for w in WORDS} | {f"pad_backward<{s}, {t}>" for s in STORED for t in (s, "float")}
CASES = {  # shape, widths as `pad` takes them, mode
    "a number": ((2, 3, 5), (1, 2), "constant"),
    "a number on all sides": ((3, 5, 7, 2), (0, 1, 3, 0, 2, 2, 1, 1), "constant"),
    "mirrored": ((2, 3, 5), (4, 4), "reflect"),
    "mirrored images": ((2, 3, 4, 5), (1, 3, 3, 0), "reflect"),
    "mirrored volumes": ((1, 2, 3, 4, 5), (1, 0, 2, 3, 2, 1), "reflect"),
    "repeated": ((2, 3, 5), (7, 1), "replicate"),
    "repeated images": ((2, 3, 4, 1), (2, 3, 0, 6), "replicate"),
    "repeated volumes": ((1, 2, 3, 4, 5), (0, 1, 2, 2, 5, 0), "replicate"),
    "wrapped": ((2, 3, 5), (5, 5), "circular"),
    "wrapped images": ((2, 3, 4, 5), (1, 5, 4, 0), "circular"),
    "wrapped and cut": ((2, 3, 4, 5), (-2, 3, 2, -1), "circular"),
    "every axis": ((3, 2, 4, 3, 5), (1, 2, 2, 0, 0, 3, 1, 1, 2, 2), "reflect"),
}


def _values(shape, dtype):
    found = (np.random.default_rng(0).integers(-99, 99, shape) / (8 if dtype in (*DTYPES, float64) else 1)).astype(
        dtype
    )
    if dtype in (*DTYPES, float64):
        found.reshape(-1)[::3], found.reshape(-1)[1::5], found.reshape(-1)[2::7] = np.nan, np.inf, -0.0
    return found


def _same(found, want):
    """The same bits, NaN's and those of -0 too."""
    got = found.numpy(force=True)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(*(np.ascontiguousarray(a).view(np.uint8) for a in (got, want)))


def _more(mode, dtype):
    return (1 if dtype == bool_ else 2.5 if dtype in (*DTYPES, float64) else 200,) if mode == "constant" else ()


@pytest.mark.parametrize("dtype", [*DTYPES, float64, int64, uint8, bool_], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_edges_are_the_cpus(case, dtype, device, launches):
    shape, widths, mode = CASES[case]
    x = _values(shape, dtype)
    more = _more(mode, dtype)
    _same(ops.pad(Tensor(device.asarray(x)), widths, mode, *more), ops.pad(Tensor(x), widths, mode, *more).numpy())
    assert launches == ["pad_forward"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][2] != "constant"])
def test_gradients_are_those_of_the_reference(case, dtype, device, launches):
    shape, widths, mode = CASES[case]
    x = Tensor(device.asarray(np.zeros(shape, dtype)), requires_grad=True)

    def run():
        out = ops.pad(x, widths, mode)
        seed = np.random.default_rng(1).normal(size=out.shape).astype(dtype)
        return grad(out, [x], Tensor(device.asarray(seed)))[0]

    found = run()
    assert launches == ["pad_forward", "pad_backward"]
    with reference_only():
        want = run()
    assert found.dtype == want.dtype == dtype
    assert_close(found, want.numpy(), GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_gradients_that_are_not_finite_reach_what_they_were_taken_from(mode, device, launches):
    x = Tensor(device.asarray(np.zeros((2, 4, 5), np.float32)), requires_grad=True)
    seed = np.random.default_rng(1).normal(size=(2, 9, 8)).astype(np.float32)
    seed[0, 0, 0], seed[0, 8, 2], seed[1, 3, 7], seed[1, 0] = np.nan, np.inf, -np.inf, np.inf

    def run():
        return grad(ops.pad(x, (1, 2, 3, 2), mode), [x], Tensor(device.asarray(seed)))[0].numpy()

    found = run()
    with reference_only():
        np.testing.assert_allclose(found, run(), rtol=1e-6, atol=1e-6)
    assert launches == ["pad_forward", "pad_backward"]


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_arrays_may_lie_as_they_like_and_results_lie_as_they_do(mode, device, launches):
    x = Tensor(device.asarray(_values((4, 5, 6, 7), float32)))
    ways = [x.permute(0, 3, 1, 2), x[::2, 1:, ::2], x.flip(2), x[:1].expand(3, 5, 6, 7), x[:, :, 0]]
    for way in ways:
        out = ops.pad(way, (1, 2, 2, 1), mode)
        _same(out, ops.pad(Tensor(way.array.get()), (1, 2, 2, 1), mode).numpy())
    last = ops.pad(ways[0], (1, 2, 2, 1), mode).array
    assert last.transpose(0, 2, 3, 1).flags.c_contiguous
    assert ops.pad(ways[3], (1, 2, 2, 1), mode).array.flags.c_contiguous
    assert launches == ["pad_forward"] * 7


def test_what_has_no_elements_or_many_axes_runs_the_reference(device, launches):
    nothing, many = np.zeros((0, 3), np.float32), _values((2, 1, 2, 1, 2, 3), float32)
    _same(ops.pad(Tensor(device.asarray(nothing)), (1, 1, 2, 0), value=4), np.full((2, 5), 4, np.float32))
    for mode in ("constant", "reflect"):
        _same(ops.pad(Tensor(device.asarray(many)), (1, 2), mode), ops.pad(Tensor(many), (1, 2), mode).numpy())
    assert not launches


def test_the_order_of_threads_changes_no_bit(device):
    found = []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            x = Tensor(device.asarray(np.zeros((3, 5, 40), np.float32)), requires_grad=True)
            seed = np.random.default_rng(1).normal(size=(3, 9, 60)).astype(np.float32)
            gradient = grad(ops.pad(x, (10, 10, 2, 2), "replicate"), [x], Tensor(device.asarray(seed)))[0]
            found.append(gradient.numpy().tobytes())
    assert found[0] == found[1] == found[2]
