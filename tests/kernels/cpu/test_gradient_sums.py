"""The compiled sum of two gradients is the reference's, for any dtypes and strides."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit.backends.cpu.native.library import library, unavailable_reason
from ampkit.core.autograd.accumulate import add_to, sum_of_two

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.usefixtures("two_threads"),
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
]

LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "expanded": lambda x: np.broadcast_to(x.reshape(-1)[:1].reshape((1,) * x.ndim), x.shape),
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[..., ::-1],
}


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("shape", [(301, 203), (3, 5, 4100), (7,), (0, 3), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32")], ids=str)
def test_a_sum_is_the_reference_s(shape, first, second, dtypes):
    rng = np.random.default_rng(0)
    a, b = (
        LAYOUTS[layout](rng.standard_normal(shape).astype(np.float32).astype(getattr(ampkit, dtype)))
        if np.prod(shape) and len(shape) > 1
        else rng.standard_normal(shape).astype(np.float32).astype(getattr(ampkit, dtype))
        for layout, dtype in zip((first, second), dtypes, strict=True)
    )
    if a.size:
        a = a.copy(order="K") if first != "expanded" else a
        b = b.copy(order="K") if second != "expanded" else b
        if first == "contiguous":
            a.reshape(-1)[:2] = np.inf, np.nan
    found, truth = sum_of_two(a, b), sum_of_two.reference.run(a, b)
    assert found.dtype == a.dtype
    np.testing.assert_array_equal(found.astype(float), truth.astype(float))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_sum_in_place_has_the_bits_of_one_elsewhere(dtype):
    kind, rng = getattr(ampkit, dtype), np.random.default_rng(0)
    size = f"u{np.dtype(kind).itemsize}"
    a, b = (
        rng.integers(0, np.iinfo(size).max, (301, 203), size, endpoint=True).view(kind) for _ in range(2)
    )  # NaN too
    for layout in (LAYOUTS["contiguous"], LAYOUTS["transposed"], LAYOUTS["strided"]):
        held, other = layout(a).copy("K"), layout(b).copy("K")
        found = sum_of_two(held, other)
        add_to(held, other)
        np.testing.assert_array_equal(held.view(size), found.view(size))
