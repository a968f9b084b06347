"""Compiled sorts, selections, extremes with places, and cumulative ops, against the references."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.base.dtypes import bfloat16, float16, float32, float64, int64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, assert_close

LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: np.asarray(x.T.copy().T),
    "every other": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "one row": lambda x: np.broadcast_to(x[:1], x.shape),
}
PLACES = {
    "sort": lambda x, dim: ops.sort(x, dim),
    "sort descending": lambda x, dim: ops.sort(x, dim, True),
    "topk": lambda x, dim: ops.topk(x, 2, dim),
    "topk smallest": lambda x, dim: ops.topk(x, 2, dim, False),
    "topk of all": lambda x, dim: ops.topk(x, x.shape[dim], dim),
    "topk none": lambda x, dim: ops.topk(x, 0, dim),
    "kthvalue": lambda x, dim: ops.kthvalue(x, 2, dim),
    "kthvalue of the last": lambda x, dim: ops.kthvalue(x, x.shape[dim], dim, keepdim=True),
    "median": lambda x, dim: ops.median(x, dim),
    "nanmedian": lambda x, dim: ops.nanmedian(x, dim, keepdim=True),
    "mode": lambda x, dim: ops.mode(x, dim),
    "max": lambda x, dim: ops.max(x, dim),
    "min": lambda x, dim: ops.min(x, dim, keepdim=True),
    "argmax": lambda x, dim: [ops.argmax(x, dim, keepdim=True)],
    "argmin of all": lambda x, dim: [ops.argmin(x)],
    "cummax": lambda x, dim: ops.cummax(x, dim),
    "cummin": lambda x, dim: ops.cummin(x, dim),
}
CUMULATIVE = {
    "cumsum": ops.cumsum,
    "cumprod": ops.cumprod,
    "logcumsumexp": ops.logcumsumexp,
}
SHAPES = [(40, 7, 33), (3, 2000), (2000, 3), (1, 5000)]
VALUES = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "ties": lambda random, shape: random.integers(-2, 3, shape) * -0.0 + random.integers(-3, 4, shape) * -1.0,
    "not finite": lambda random, shape: random.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1e-41], shape),
}


def _arrays(values, dtype):
    random = np.random.default_rng(0)
    for shape in SHAPES:
        array = VALUES[values](random, shape)
        yield (
            (np.nan_to_num(array, posinf=1e6, neginf=-1e6) * 3).astype(dtype)
            if dtype.kind == "i"
            else array.astype(dtype)
        )


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16, float64, int64, np.dtype(np.int32)], ids=str)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("name", PLACES)
def test_values_and_places_are_those_of_the_reference(name, values, dtype):
    for array in _arrays(values, dtype):
        for layout in LAYOUTS.values():
            for dim in range(array.ndim):
                if array.shape[dim] >= 2:
                    found = PLACES[name](Tensor(layout(array)), dim)
                    with reference_only():
                        want = PLACES[name](Tensor(layout(array)), dim)
                    for a, b in zip(found, want, strict=True):
                        assert a.dtype == b.dtype
                        np.testing.assert_array_equal(a.numpy().astype(float), b.numpy().astype(float))


def test_selections_of_long_rows_are_right_in_any_order_of_values():
    rising = np.arange(50257, dtype=np.float32)
    rows = np.stack([rising, rising[::-1], rising // 100, np.sin(rising)])
    for largest in (True, False):
        found = ops.topk(Tensor(rows), 50, 1, largest)
        with reference_only():
            want = ops.topk(Tensor(rows), 50, 1, largest)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [float32, float16, float64, int64, np.dtype(np.uint8)], ids=str)
def test_an_element_of_any_rank_of_a_long_row_is_found(dtype):
    random = np.random.default_rng(3)
    n = 20011
    rows = np.stack([np.arange(n), np.arange(n)[::-1] // 100, random.standard_normal(n) * 40, np.full(n, 7)])
    rows = np.abs(rows).astype(dtype) if dtype.kind == "u" else rows.astype(dtype)
    order = np.argsort(rows, 1, kind="stable")
    for k in (1, 2, 5000, (n + 1) // 2, n - 1, n):
        found = ops.kthvalue(Tensor(rows), k, 1)
        np.testing.assert_array_equal(found.indices.numpy(), order[:, k - 1])
    np.testing.assert_array_equal(ops.median(Tensor(rows), 1).indices.numpy(), order[:, (n - 1) // 2])


@pytest.mark.cpu
def test_a_median_passes_over_nan_or_is_the_first():
    array = np.random.default_rng(4).standard_normal((300, 9)).astype(np.float32)
    array[array > 0.8] = np.nan
    array[7] = np.nan
    for skips in (ops.median, ops.nanmedian):
        found = skips(Tensor(array), 1).indices.numpy()
        for row, at in zip(array, found, strict=True):
            order, numbers = np.argsort(row, kind="stable"), int((row == row).sum())
            lost = numbers < 9 and skips is ops.median
            assert at == order[numbers if lost else max(numbers - 1, 0) // 2]


def _gradients(call, array, dim):
    x = Tensor(array, requires_grad=True)
    y = call(x, dim)
    y = y if isinstance(y, Tensor) else y[0]
    gradients = np.random.default_rng(1).standard_normal(y.shape).astype(np.float16).astype(array.dtype)
    return y.detach().numpy(), grad(y, [x], Tensor(gradients))[0].numpy()


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*CUMULATIVE, *(name for name in PLACES if "arg" not in name and "none" not in name)])
def test_values_and_gradients_are_those_of_float64(name, layout, dtype):
    call = CUMULATIVE.get(name) or PLACES[name]
    for shape in [(40, 7, 33), (90, 60)]:
        random = np.random.default_rng(2)
        array = LAYOUTS[layout](
            (random.permuted(np.arange(np.prod(shape)) % 250).reshape(shape) / 128 - 0.9).astype(dtype)
        )
        for dim in range(len(shape)):
            found = _gradients(call, array, dim)
            with reference_only():
                want = _gradients(call, array.astype(float), dim)
            assert found[0].dtype == found[1].dtype == dtype
            scale = max(1, np.abs(want[1]).max()) if name == "cumprod" else 1
            assert_close(found[0], want[0].astype(dtype) if dtype == float16 else want[0], TOLERANCE[dtype])
            assert_close(found[1].astype(float) / scale, want[1] / scale, GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("name", CUMULATIVE)
def test_what_is_not_finite_and_zeros_go_on_along_the_axis(name):
    for values in ([1, 0, 2, 0, 3], [1, np.nan, 2, 3, 4], [1, np.inf, 2, np.inf, 5], [-np.inf, -np.inf, 1, 2, -np.inf]):
        array = np.tile(np.array(values, np.float32), (1000, 1))
        with np.errstate(invalid="ignore"):
            found = _gradients(CUMULATIVE[name], array, 1)
            with reference_only():
                want = _gradients(CUMULATIVE[name], array, 1)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", [float32, bfloat16, np.dtype(np.bool_), int64, float64], ids=str)
def test_what_is_joined_and_split_is_copied_exactly(dtype):
    parts = [(np.random.default_rng(n).standard_normal((n, 40, 60)) * 2).astype(dtype) for n in (5, 0, 9)]
    for layout in LAYOUTS.values():
        given = [layout(part) if part.size else part for part in parts]
        np.testing.assert_array_equal(ops.cat([Tensor(p) for p in given]).numpy(), np.concatenate(given))
        wide = [np.swapaxes(part, 0, 2) for part in given]
        np.testing.assert_array_equal(ops.cat([Tensor(p) for p in wide], -1).numpy(), np.concatenate(wide, -1))
        twice = [given[2], given[2]]
        np.testing.assert_array_equal(ops.stack([Tensor(p) for p in twice], 2).numpy(), np.stack(twice, 2))
