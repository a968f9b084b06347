"""Softmax and norms in any layout: values are those of float64, bits do not depend on the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]

OPS = {
    "softmax": lambda x, *_: ops.softmax(x, 1),
    "log_softmax": lambda x, *_: ops.log_softmax(x, 1),
    "softmax of the last axis": lambda x, *_: ops.softmax(x, -1),
    "layer_norm": lambda x, w, b: ops.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x, w, b: ops.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x, w, b: ops.group_norm(x, 3, w, b),
    "instance_norm": lambda x, w, b: ops.instance_norm(x, weight=w, bias=b),
    "batch_norm": lambda x, w, b: ops.batch_norm(x, None, None, w, b, True),
    "batch_norm_relu": lambda x, w, b: ops.batch_norm_relu(x, None, None, w, b, True),
    "batch_norm_add_relu": lambda x, w, b: ops.batch_norm_add_relu(x, _residual(x), None, None, w, b, True),
}


def _residual(x):
    """Numbers in row-major order, which do not depend on x."""
    numbers = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    return Tensor(numbers.astype(x.dtype))


LAYOUTS = {
    "contiguous": (0, 1, 2, 3),
    "channels_last": (0, 3, 1, 2),
    "channels_first": (1, 0, 2, 3),
    "transposed": (0, 1, 3, 2),
}


def run(name, dtype, layout, gradient="dense", offset=0.0, as_dtype=None):
    rng, order = np.random.default_rng(0), np.argsort(LAYOUTS[layout])
    shape = np.array((5, 21, 13, 17))[np.argsort(order)]
    values = (rng.standard_normal(shape) + offset).astype(dtype).astype(as_dtype or dtype).transpose(order)
    values = values.transpose(np.argsort(order)).transpose(LAYOUTS[layout])
    c = values.shape[1] - values.shape[1] % 3
    values = values[:, :c]
    kind = as_dtype or float32
    given = [Tensor(a, True) for a in (values, np.linspace(0.5, 2, c).astype(kind), np.linspace(-1, 1, c).astype(kind))]
    out = OPS[name](*given)
    dy = rng.standard_normal(out.shape).astype(dtype).astype(out.dtype)
    dy = dy if gradient == "dense" else np.broadcast_to(dy[:1, :1, :1, :1], out.shape)
    wanted = given if "softmax" not in name and name not in ("layer_norm", "rms_norm") else given[:1]
    return out, *grad(out, wanted, Tensor(dy))


@pytest.mark.parametrize("gradient", ["dense", "one number"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_every_layout_gives_the_values_of_float64(name, dtype, layout, gradient):
    if "relu" in name and dtype != float32:
        pytest.skip("rounding decides which side of 0 a number is on")
    found, truth = run(name, dtype, layout, gradient), run(name, dtype, layout, gradient, as_dtype=np.float64)
    rtol, atol = GRADIENT_TOLERANCE[dtype]
    for got, want in zip(found, truth, strict=True):
        assert_close(got, want, (rtol, max(atol, 1e-4)))  # sums of 1,000 numbers that cancel


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("name", OPS)
def test_one_thread_gives_the_bits_of_two(name, layout):
    before, found = ampkit.get_num_threads(), []
    try:
        for threads in (1, 2):
            ampkit.set_num_threads(threads)
            found.append([t.numpy(force=True).tobytes() for t in run(name, float32, layout)])
    finally:
        ampkit.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_gradients_of_batch_norm_keep_their_digits_far_from_zero(layout):
    found, truth = (run("batch_norm", float32, layout, offset=1000.0, as_dtype=d) for d in (None, np.float64))
    for got, want in zip(found, truth, strict=True):
        want = want.numpy(force=True)
        assert np.abs(got.numpy(force=True) - want).max() < 2e-4 * np.abs(want).max()


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf, 1e-42])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_along_any_axis_shows_what_is_not_finite_in_its_row_alone(axis, wild):
    values = np.random.default_rng(0).standard_normal((70, 90)).astype(np.float32)
    values[7, 40] = wild
    found = np.isnan(np.moveaxis(ops.softmax(Tensor(values), axis).numpy(), axis, -1)).all(1)
    bad = [(40, 7)[axis]] if np.isnan(wild) or wild == np.inf else []
    assert np.flatnonzero(found).tolist() == bad
