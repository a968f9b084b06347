"""Products of codes by oneDNN, against sums of NumPy's int64."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ampkit import Tensor, ops
from ampkit.backends.cpu.onednn.library import has_exact_int8
from ampkit.core.dispatch import reference_only
from ampkit.ops.quantized.codes import QParams
from ampkit.ops.quantized.products import conv2d_int8, linear_int8

pytestmark = pytest.mark.cpu
DRAW = np.random.default_rng(0)
GIVEN = {np.uint8: QParams(0.02, 117), np.int8: QParams(0.03, -5, signed=True)}


def codes(dtype, *shape):
    limits = np.iinfo(dtype)
    return Tensor(DRAW.integers(limits.min, limits.max + 1, shape).astype(dtype))


def weights(*shape):
    scale, bias = DRAW.uniform(1e-4, 1e-3, shape[0]), DRAW.normal(size=shape[0])
    codes = DRAW.integers(-127, 128, shape).astype(np.int8)
    return Tensor(codes), Tensor(scale.astype(np.float32)), Tensor(bias.astype(np.float32))


def ones(count):
    return Tensor(np.ones(count, np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("shape", [(1, 3, 5), (33, 700, 17), (64, 256, 64)], ids=str)
def test_sums_of_products_are_exact(dtype, shape):
    rows, inner, columns = shape
    x, (w, _, _) = codes(dtype, rows, inner), weights(columns, inner)
    for zero_point in (0, 3):
        found = linear_int8(x, w, ones(columns), None, None, QParams(1.0, zero_point, dtype == np.int8)).numpy()
        wanted = (x.numpy().astype(np.int64) - zero_point) @ w.numpy().astype(np.int64).T
        assert np.array_equal(found.astype(np.int64), wanted.astype(np.float32).astype(np.int64))


def test_the_largest_products_do_not_saturate():
    x, w = Tensor(np.full((4, 512), 255, np.uint8)), Tensor(np.full((8, 512), 127, np.int8))
    assert (linear_int8(x, w, ones(8)).numpy() == 255 * 127 * 512).all()


def near(found, wanted):
    """Equal, but for one code where a number lies between two, and a last bit of float32."""
    if found.dtype == np.float32:
        return np.allclose(found, wanted, rtol=2e-6, atol=2e-6)
    apart = np.abs(found.astype(int) - wanted.astype(int))
    return apart.max() <= 1 and (apart > 0).mean() < 2e-3


RESULTS = [None, QParams(0.04, 9), QParams(0.04, -3, signed=True)]


@pytest.mark.parametrize("result", RESULTS, ids=["float32", "uint8", "int8"])
@pytest.mark.parametrize("activation", ["", "relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_linear_is_the_reference(dtype, activation, result):
    x, own = codes(dtype, 3, 11, 96), weights(40, 96)
    options = {"input_qparams": GIVEN[dtype], "activation": activation, "output_qparams": result}
    with reference_only():
        wanted = linear_int8(x, *own, **options)
    for _ in range(3):  # the weight is packed anew at first, then kept
        found = linear_int8(x, *own, **options)
        assert found.dtype == wanted.dtype
        assert near(found.numpy(), wanted.numpy())


# Channels, kernel, stride: oneDNN 3.2 computed these wrongly with AMX.
@pytest.mark.parametrize(("channels", "kernel"), [(96, (2, 2)), (112, (2, 4)), (48, (1, 4)), (160, (5, 2))], ids=str)
def test_sums_of_strided_convolutions_are_exact(channels, kernel):
    x, (w, _, _) = codes(np.uint8, 2, channels, 10, 12), weights(24, channels, *kernel)
    found = conv2d_int8(x, w, ones(24), stride=kernel).numpy()
    wanted = ops.conv2d(Tensor(x.numpy().astype(float)), Tensor(w.numpy().astype(float)), stride=kernel).numpy()
    assert np.array_equal(found, wanted.astype(np.float32))


CONVOLUTIONS = [
    {"padding": 1},
    {"stride": 2, "padding": 3, "dilation": 2},
    {"padding": 1, "groups": 8},
    {"padding": (0, 2), "groups": 2},
]


@pytest.mark.parametrize("result", RESULTS, ids=["float32", "uint8", "int8"])
@pytest.mark.parametrize("geometry", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_conv2d_is_the_reference_with_and_without_a_residual(dtype, geometry, result):
    x, own = codes(dtype, 2, 8, 13, 12), weights(16, 8 // geometry.get("groups", 1), 3, 3)
    options = {**geometry, "input_qparams": GIVEN[dtype], "activation": "relu", "output_qparams": result}
    with reference_only():
        plain = conv2d_int8(x, *own, **options)
    assert near(conv2d_int8(x, *own, **options).numpy(), plain.numpy())
    residual = codes(np.uint8 if result is None else result.dtype, *plain.shape)
    options["residual_qparams"] = QParams(0.01, 4, residual.dtype == np.int8)
    before = residual.numpy().copy()
    with reference_only():
        wanted = conv2d_int8(x, *own, residual, **options)
    assert near(conv2d_int8(x, *own, residual, **options).numpy(), wanted.numpy())
    assert np.array_equal(residual.numpy(), before)


def test_a_changed_weight_scale_or_bias_is_read():
    x, (w, scale, bias) = codes(np.uint8, 32, 64), weights(16, 64)
    call = lambda: linear_int8(x, w, scale, bias, None, QParams(0.02, 3)).numpy()  # noqa: E731
    for _ in range(3):
        first = call()
    bias += 1
    assert np.allclose(call(), first + 1, atol=1e-4)
    bias -= 1
    scale *= 2
    call()
    assert np.allclose(call() - bias.numpy(), 2 * (first - bias.numpy()), atol=1e-4)
    w.zero_()
    assert np.allclose(call(), bias.numpy())


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("window", [(3, 2, 1), (2,), (3, 2, 1, 1, True)], ids=str)
def test_maxima_of_codes_are_the_reference(dtype, window):
    x = codes(dtype, 2, 16, 11, 12)
    with reference_only():
        wanted = ops.max_pool2d(x, *window)
    found = ops.max_pool2d(x, *window)
    assert found.dtype == wanted.dtype
    assert np.array_equal(found.numpy(), wanted.numpy())


PROGRAM = """
import numpy as np
from ampkit import Tensor
from ampkit.backends.cpu.onednn.library import has_exact_int8
from ampkit.ops.quantized.products import linear_int8
x, w = Tensor(np.full((4, 512), 255, np.uint8)), Tensor(np.full((8, 512), 127, np.int8))
assert (linear_int8(x, w, Tensor(np.ones(8, np.float32))).numpy() == 255 * 127 * 512).all()
print(has_exact_int8())
"""


@pytest.mark.skipif(not has_exact_int8(), reason="the CPU has no VNNI to hide from oneDNN")
def test_without_vnni_whose_sums_saturate_the_reference_runs():
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "False\n"
