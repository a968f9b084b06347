"""Memory formats: conversion to them, and the ops that keep the format of their input."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.base.errors import ArgumentError, ShapeError

LAST = {4: ampkit.channels_last, 5: ampkit.channels_last_3d}
SHAPES = [(2, 3, 6, 6), (8, 16, 20, 20), (1, 3, 4, 6, 6)]


def images(shape):
    return ampkit.tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_format_changes_the_strides_and_no_value(shape):
    x = images(shape)
    y = x.contiguous(memory_format=LAST[len(shape)])
    assert np.array_equal(x.numpy(), y.numpy())
    assert y.stride(1) == 1 and y.stride(-1) == shape[1]
    assert y.is_contiguous(memory_format=LAST[len(shape)]) and not y.is_contiguous()
    assert not x.is_contiguous(memory_format=LAST[len(shape)])
    assert y.contiguous(memory_format=LAST[len(shape)]) is y
    assert y.to(memory_format=ampkit.contiguous_format).is_contiguous()
    assert y.to(ampkit.float64, memory_format=ampkit.contiguous_format).is_contiguous()


@pytest.mark.parametrize("keep", [
    lambda x: x.clone(), lambda x: x.double(), lambda x: x.half(), lambda x: x.to(ampkit.bfloat16),
    lambda x: x.clone(memory_format=ampkit.preserve_format),
])  # fmt: skip
@pytest.mark.parametrize("shape", SHAPES)
def test_copies_and_casts_keep_the_format(keep, shape):
    assert keep(images(shape).contiguous(memory_format=LAST[len(shape)])).is_contiguous(memory_format=LAST[len(shape)])
    assert keep(images(shape)).is_contiguous()


def test_a_copy_of_memory_with_gaps_is_contiguous():
    x = images((4, 6)).T
    assert x.clone().stride() == x.stride()
    assert x[::2].clone().is_contiguous() and x[:1].expand(3, 4).clone().is_contiguous()
    assert x.clone(memory_format=ampkit.contiguous_format).is_contiguous()


def test_the_gradient_of_a_leaf_has_the_format_of_the_leaf():
    x = images((2, 3, 4, 4)).contiguous(memory_format=ampkit.channels_last).requires_grad_()
    (x.contiguous() * 2.0).sum().backward()
    assert x.grad.is_contiguous(memory_format=ampkit.channels_last)
    assert (x.grad == 2).all()


OPS = {
    "max_pool2d": lambda x: ops.max_pool2d(x, 3, 2, 1),
    "indices": lambda x: ops.max_pool2d(x, 2, return_indices=True)[1],
    "avg_pool2d": lambda x: ops.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: ops.adaptive_avg_pool2d(x, 2),
    "uneven adaptive_avg_pool2d": lambda x: ops.adaptive_avg_pool2d(x, 5),
    "adaptive_max_pool2d": lambda x: ops.adaptive_max_pool2d(x, 2),
    "interpolate": lambda x: ops.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: ops.interpolate(x, size=7),
    "pad": lambda x: ops.pad(x, (1, 1, 1, 1)),
    "reflect": lambda x: ops.pad(x, (1, 1, 1, 1), "reflect"),
    "group_norm": lambda x: ops.group_norm(x, 1),
    "batch_norm": lambda x: ops.batch_norm(x, None, None, training=True),
    "relu": ops.relu,
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("dtype", [ampkit.float32, ampkit.float64])
def test_ops_keep_the_format_of_images(op, shape, dtype):
    x = images(shape).to(dtype)
    last = x.contiguous(memory_format=ampkit.channels_last)
    for given, memory_format in (
        (x, ampkit.contiguous_format),
        (last, ampkit.channels_last),
        (last[:, :, 1:-1, ::2], ampkit.channels_last),
    ):
        found, wanted = op(given), op(given.contiguous())
        if x.device.type == "cpu":  # a GPU's kernels of pooling and normalization store in the order of axes
            assert found.is_contiguous(memory_format=memory_format)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), 1e-5, 1e-5)


def test_formats_that_do_not_fit_are_named():
    x = images((2, 3, 4, 4))
    with pytest.raises(ShapeError, match="contiguous: needs 5 axes for channels_last_3d, got 4"):
        x.contiguous(memory_format=ampkit.channels_last_3d)
    with pytest.raises(ArgumentError, match=r"is_contiguous: needs memory_format as one of contiguous_format, .*NHWC"):
        x.is_contiguous(memory_format="NHWC")
    with pytest.raises(ArgumentError, match="contiguous: needs a format to store input in, got preserve_format"):
        x.contiguous(memory_format=ampkit.preserve_format)
    assert not x.is_contiguous(memory_format=ampkit.channels_last_3d)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_byte_images_are_interpolated_rounded_and_clipped(mode, antialias):
    x = ampkit.tensor(np.random.default_rng(0).choice([0, 3, 255], (2, 3, 9, 8)).astype(np.uint8))
    exact = ops.interpolate(x.double(), size=(13, 5), mode=mode, antialias=antialias).numpy()
    found = ops.interpolate(x, size=(13, 5), mode=mode, antialias=antialias)
    assert found.dtype == ampkit.uint8
    assert np.abs(found.numpy() - exact.clip(0, 255)).max() <= 0.5 + 1e-4
    assert exact.max() > 255 or mode == "bilinear"
