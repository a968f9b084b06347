"""The GPU's poolings, on the emulated one: what their references say, for images that lie channels first and last."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, nn, ops
from ampkit.backends.cuda.launch import elementwise, reduction
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.kernels.cuda.nn import pool
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, assert_close

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
CASES = {  # op, size, arguments
    "max of pairs": ("max_pool2d", (4, 6), (2,)),
    "max as in ResNet": ("max_pool2d", (7, 8), (3, 2, 1)),
    "max, uneven": ("max_pool2d", (5, 7), ((3, 2), (2, 1), 1)),
    "max apart": ("max_pool2d", (7, 7), (2, 3, 0, 2, True)),
    "mean of pairs": ("avg_pool2d", (4, 6), (2,)),
    "mean, overlapping": ("avg_pool2d", (5, 7), ((3, 2), (2, 1), 1)),
    "mean without padding": ("avg_pool2d", (5, 7), (3, 2, 1, False, False)),
    "mean, one more": ("avg_pool2d", (6, 5), (3, 2, 1, True)),
    "mean, one more without padding": ("avg_pool2d", (6, 5), (2, 3, 0, True, False)),
    "mean by a number": ("avg_pool2d", (4, 4), (2, None, 0, False, True, 3)),
    "all": ("adaptive_avg_pool2d", (5, 3), (1,)),
    "evenly": ("adaptive_avg_pool2d", (4, 6), ((2, 3),)),
    "unevenly": ("adaptive_avg_pool2d", (5, 7), ((3, 2),)),
    "more than there are": ("adaptive_avg_pool2d", (2, 3), ((3, 4),)),
    "max of volumes": ("max_pool3d", (3, 5, 4), (2, 2, 1)),
    "max of volumes, uneven": ("max_pool3d", (4, 5, 3), ((3, 2, 1), (1, 2, 3), (1, 1, 0))),
    "max of volumes, apart": ("max_pool3d", (6, 7, 5), (2, (3, 1, 2), 1, (2, 3, 1), True)),
    "mean of volumes": ("avg_pool3d", (4, 5, 3), ((3, 2, 1), (1, 2, 3), (1, 1, 0))),
    "mean of volumes without padding": ("avg_pool3d", (3, 5, 4), (3, 2, 1, True, False)),
    "mean of volumes, one more": ("avg_pool3d", (4, 3, 6), (2, 3, 1, True)),
    "mean of volumes by a number": ("avg_pool3d", (3, 2, 4), (2, 1, 0, False, True, -3)),
    "all of volumes": ("adaptive_avg_pool3d", (3, 5, 2), (1,)),
    "volumes evenly": ("adaptive_avg_pool3d", (4, 6, 2), ((2, 3, 1),)),
    "volumes unevenly": ("adaptive_avg_pool3d", (5, 3, 4), ((2, 4, None),)),
}


@pytest.fixture
def launches(monkeypatch):
    """The entries that are launched, without casts."""
    found = []
    for module in (pool, reduction, elementwise):

        def launched(source, entry, *args, launch=module.launch, **more):
            found.extend([] if "Copy" in entry else [entry])
            launch(source, entry, *args, **more)

        monkeypatch.setattr(module, "launch", launched)
    return found


def _images(channels, size, dtype, last, batch=2):
    values = np.random.default_rng(0).integers(-40, 40, (batch, *size, channels)) / 8
    images = np.moveaxis(values.astype(dtype), -1, 1)
    return images if last else np.ascontiguousarray(images)


def _both(case, x, device):
    """The values, and the gradient for gradients that are the same each time."""
    name, _, given = CASES[case]
    point = Tensor(device.asarray(x), requires_grad=True)
    out = getattr(ops, name)(point, *given)
    seed = np.random.default_rng(1).normal(size=out.shape).astype(x.dtype)
    return out, grad(out, [point], Tensor(device.asarray(seed)))[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_agrees_with_the_reference(case, channels, last, dtype, device, launches):
    x = _images(channels, CASES[case][1], dtype, last)
    out, gradient = _both(case, x, device)
    assert len(launches) == 2
    assert out.dtype == gradient.dtype == dtype
    for images in (out.array, gradient.array):
        assert (images.transpose(0, *range(2, images.ndim), 1) if last else images).flags.c_contiguous
    with reference_only():
        want, wanted = _both(case, x.astype(float), device)
        seeded = _both(case, x, device)[1]
    assert_close(out, want, (0, 0) if case.startswith("max") else TOLERANCE[dtype])
    assert_close(gradient, seeded, GRADIENT_TOLERANCE[dtype])
    assert_close(gradient, wanted, GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("case", ["max as in ResNet", "mean without padding", "unevenly"])
def test_one_image_and_arrays_with_gaps(case, device, launches):
    x = _images(8, (10, 9), float32, False)
    _agree(case, (x[0], x[:, :, ::2], x[:, ::3, 1:, 1:], x[:0]), device)
    assert len(launches) == 6


@pytest.mark.parametrize("case", ["max of volumes, uneven", "mean of volumes without padding", "volumes unevenly"])
def test_one_volume_and_volumes_with_gaps(case, device, launches):
    x = _images(8, (7, 6, 5), float32, False)
    _agree(case, (x[0], x[:, :, ::2], x[:, ::3, 1:, 1:, ::-1], x[:0]), device)
    assert len(launches) == 6


def _agree(case, arrays, device):
    for x in arrays:
        out, gradient = _both(case, x, device)
        with reference_only():
            want, wanted = _both(case, x, device)
        assert_close(out, want)
        assert_close(gradient, wanted, GRADIENT_TOLERANCE[float32])


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("size", [(7, 7), (3, 7, 7)], ids=["images", "volumes"])
def test_the_largest_is_nan_if_one_is_and_its_place_is_known(size, last, device):
    x = np.array(_images(8, size, float32, last))
    x[0, 1, ..., 3, 3], x[1, 0], x[1, 2, ..., 0, 0] = np.nan, -np.inf, np.inf
    x[0, 2] = np.nan
    point, name = Tensor(device.asarray(x), requires_grad=True), f"max_pool{len(size)}d"

    def run():
        best, places = getattr(ops, name)(point, 3, 2, 1, return_indices=True)
        seed = Tensor(device.asarray(np.random.default_rng(1).normal(size=best.shape).astype(np.float32)))
        return best.numpy(force=True), places.numpy(), grad(best, [point], seed)[0].numpy()

    got = run()
    with reference_only():
        want = run()
    for found, wanted in zip(got, want, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("case", ["mean of volumes", "volumes evenly"])
def test_means_of_what_is_not_finite_are_the_references(case, device):
    x = _images(8, CASES[case][1], float32, True)
    x[0, 1, 0, 0, 0], x[0, 2, 1, 1, 1], x[1, 3, :, 0, 1] = np.nan, np.inf, -np.inf
    x[1, 4, 0, 0, :2] = np.inf, -np.inf
    out, _ = _both(case, x, device)
    with reference_only():
        want, _ = _both(case, x, device)
    np.testing.assert_allclose(out.numpy(force=True), want.numpy(force=True), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("out", [(3,), (1, 1), (3, 2), (6, 9), (2, 4, 3)], ids=str)
def test_adaptive_maxima_stand_where_the_reference_finds_them(out, channels, last, dtype, device, launches):
    x = np.array(_images(channels, (7, 5, 4)[: len(out)], dtype, last))
    x[0, 1, 3:], x[1, 0, 2], x[1, 2], x[0, 2] = np.nan, np.nan, -np.inf, 1
    name, kernels = f"adaptive_max_pool{len(out)}d", []
    for view in (x, x[0], x[:, ::2, ..., 1:]):
        even = not any(n % m for n, m in zip(view.shape[-len(out) :], out, strict=True))
        kernels.append("max_pool_forward" if even else "max_pool_indices")
        point = Tensor(device.asarray(view))
        best, places = getattr(ops, name)(point, out, return_indices=True)
        with reference_only():
            want, wanted = getattr(ops, name)(point, out, return_indices=True)
        np.testing.assert_array_equal(places.numpy(), wanted.numpy())
        np.testing.assert_array_equal(best.numpy().astype(float), want.numpy().astype(float))
    assert [entry.partition("<")[0] for entry in launches] == kernels


def test_windows_of_more_pixels_than_a_byte_counts_run_the_reference(device, launches):
    x = _images(8, (7, 7, 7), float32, False)
    out = ops.max_pool3d(Tensor(device.asarray(x)), 7)
    np.testing.assert_array_equal(out.numpy()[..., 0, 0, 0], x.max((2, 3, 4)))
    assert not launches


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_threads_changes_no_bit(case, device):
    x, found = _images(16, CASES[case][1], bfloat16, True), []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            found.append([f.numpy(force=True).tobytes() for f in _both(case, x, device)])
    assert found[0] == found[1] == found[2]


def test_pooling_of_sequences_is_that_of_images(device, launches):
    x = Tensor(device.asarray(_images(3, (1, 9), float16, False)[:, :, 0]))
    for layer in (nn.MaxPool1d(3, 2, 1), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(4)):
        got = layer(x)
        with reference_only():
            np.testing.assert_array_equal(got.numpy(), layer(x).numpy())
    assert len(launches) == 3
