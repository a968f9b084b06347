"""The bits of an image do not depend on how many others a convolution has in its batch."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, ops
from ampkit.base import conv_geometry
from ampkit.base.dtypes import bfloat16, float16, float32, float64

pytestmark = pytest.mark.cpu
BATCH, PARTS = 6, (1, 3)
# Name of the op, channels, kernel, images, and the options. Sizes on both sides of the limits of kernels.
CASES = {
    "winograd": ("conv2d", 16, 32, (3, 3), (16, 16), {"padding": 1}),
    "winograd of few tiles": ("conv2d", 160, 160, (3, 3), (4, 4), {"padding": 1}),
    "too narrow for winograd": ("conv2d", 8, 8, (3, 3), (7, 7), {"padding": 1}),
    "strided": ("conv2d", 64, 128, (3, 3), (16, 16), {"stride": 2, "padding": 1}),
    "strided pointwise": ("conv2d", 32, 48, (1, 1), (9, 9), {"stride": 2}),
    "pointwise": ("conv2d", 32, 48, (1, 1), (9, 9), {}),
    "dilated": ("conv2d", 16, 24, (3, 3), (12, 12), {"dilation": 2, "padding": 2}),
    "grouped": ("conv2d", 32, 32, (3, 3), (9, 9), {"groups": 4}),
    "depthwise": ("conv2d", 32, 32, (3, 3), (12, 12), {"groups": 32, "stride": 2, "padding": 1}),
    "tiny": ("conv2d", 2, 3, (3, 3), (4, 4), {}),
    "sequences": ("conv1d", 16, 32, (3,), (64,), {"stride": 2, "padding": 1}),
    "volumes": ("conv3d", 8, 16, (3, 3, 3), (6, 6, 6), {"padding": 1}),
    "transposed": ("conv_transpose2d", 32, 48, (3, 3), (8, 8), {"stride": 2, "padding": 1}),
    "transposed sequences": ("conv_transpose1d", 32, 16, (4,), (33,), {"stride": 2}),
    "transposed volumes": ("conv_transpose3d", 8, 8, (2, 2, 2), (5, 5, 5), {"stride": 2}),
}


def images(dtype, layout, *shape):
    made = np.random.default_rng(0).normal(size=shape).astype(dtype)
    return made if layout == "C" else np.moveaxis(np.ascontiguousarray(np.moveaxis(made, 1, -1)), -1, 1)


def output_and_gradient(name, values, weight, bias, options, count):
    x = Tensor(values[:count], True)
    y = getattr(ops, name)(x, Tensor(weight), Tensor(bias), **options)
    y.backward(Tensor(images(y.dtype, "C", BATCH, *y.shape[1:])[:count]))
    return y.detach().array, x.grad.array


def assert_same_bits_in_any_batch(case, dtype, layout="C"):
    name, channels, outputs, kernel, size, options = CASES[case]
    groups = options.get("groups", 1)
    pair = (channels, outputs) if "transpose" in name else (outputs, channels)
    weight = images(dtype, "C", pair[0], pair[1] // groups, *kernel)
    bias, values = images(dtype, "C", outputs), images(dtype, layout, BATCH, channels, *size)
    whole = output_and_gradient(name, values, weight, bias, options, BATCH)
    for count in PARTS:
        for got, wanted in zip(output_and_gradient(name, values, weight, bias, options, count), whole, strict=True):
            assert np.array_equal(got, wanted[:count])


@pytest.mark.parametrize("dtype", [float64, float32, bfloat16, float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("case", CASES)
def test_an_image_has_the_same_bits_in_any_batch(case, dtype):
    assert_same_bits_in_any_batch(case, dtype)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = ampkit.get_num_threads()
    ampkit.set_num_threads(request.param)
    yield request.param
    ampkit.set_num_threads(before)


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("case", CASES)
def test_an_image_has_the_same_bits_in_any_batch_on_one_and_two_threads(case, dtype, threads):
    assert_same_bits_in_any_batch(case, dtype, "channels last")


@pytest.mark.parametrize("block", [1, 3000, 30000])
@pytest.mark.parametrize("case", ["strided", "tiny", "transposed", "pointwise"])
def test_an_image_has_the_same_bits_however_many_fit_in_a_block_of_columns(case, block, monkeypatch):
    monkeypatch.setattr(conv_geometry, "BLOCK", block)
    assert_same_bits_in_any_batch(case, float64)
