"""Creation: default dtypes, shared memory, ranges, random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, OutOfMemoryError, RangeError, ShapeError
from ampkit.core.random import Stream, manual_seed


@pytest.mark.parametrize(
    ("made", "dtype", "values"),
    [
        (lambda: ops.zeros(2), float32, [0, 0]),
        (lambda: ops.ones((1, 2), dtype=float16), float16, [[1, 1]]),
        (lambda: ops.full((2,), 3), int64, [3, 3]),
        (lambda: ops.full((2,), True), bool_, [True, True]),
        (lambda: ops.full((), 0.5), float32, 0.5),
        (lambda: ops.full((1,), 2.0, dtype=bfloat16), bfloat16, [2]),
        (lambda: ops.arange(3), int64, [0, 1, 2]),
        (lambda: ops.arange(1, 4, 2), int64, [1, 3]),
        (lambda: ops.arange(0, 1, 0.25), float32, [0, 0.25, 0.5, 0.75]),
        (lambda: ops.arange(3, 0, -1), int64, [3, 2, 1]),
        (lambda: ops.linspace(0, 1, 3), float32, [0, 0.5, 1]),
        (lambda: ops.arange(0.5, 5.7, 1.3, dtype=int64), int64, [0, 1, 2, 3, 4]),
        (lambda: ops.arange(-2.5, 2.7, dtype="int32"), int32, [-2, -1, 0, 1, 2, 3]),
        (lambda: ops.arange(5.5, -0.5, -2, dtype="uint8"), uint8, [5, 3, 1]),
        (lambda: ops.arange(3.7, dtype=int64), int64, [0, 1, 2]),
        (lambda: ops.arange(tensor(3)), int64, [0, 1, 2]),
        (lambda: ops.linspace(0.5, 9.7, 4, dtype=int64), int64, [0, 3, 6, 9]),
        (lambda: ops.linspace(-10, 10, 7, dtype=int64), int64, [-10, -6, -3, 0, 3, 6, 10]),
        (lambda: ops.logspace(-0.7, 3.9, 5, dtype=int64), int64, [1, 5, 31, 177, 1000]),
        (lambda: ops.eye(2, dtype=float64), float64, [[1, 0], [0, 1]]),
        (lambda: ops.one_hot(tensor([1, 0]), 3), int64, [[0, 1, 0], [1, 0, 0]]),
        (lambda: ops.one_hot(tensor([2])), int64, [[0, 0, 1]]),
        (lambda: ops.zeros_like(ops.ones(2, dtype=float16)), float16, [0, 0]),
        (lambda: ops.full_like(ops.ones(2), 3), float32, [3, 3]),
        (lambda: ops.ones_like(ops.arange(2), dtype=float16), float16, [1, 1]),
    ],
)
def test_constants_and_ranges_have_pytorchs_dtypes_and_values(made, dtype, values):
    out = made()
    assert (out.dtype, out.tolist()) == (dtype, values)


def test_as_tensor_and_from_numpy_share_memory_and_tensor_copies():
    array = np.zeros(2, np.float32)
    shared, same, copy = ops.from_numpy(array), ops.as_tensor(array), ops.tensor(array)
    array[0] = 5
    assert (shared[0].item(), same[0].item(), copy[0].item()) == (5, 5, 0)
    assert ops.as_tensor(shared) is shared
    assert ops.as_tensor([1.0]).dtype == float32
    assert ops.as_tensor(array, dtype=float16).dtype == float16
    with pytest.raises(DTypeError):
        ops.from_numpy([1.0])
    with pytest.raises(DTypeError):
        ops.from_numpy(np.array(["a"]))


DRAWS = {
    "rand": lambda **k: ops.rand(100, **k),
    "randn": lambda **k: ops.randn(100, **k),
    "randint": lambda **k: ops.randint(5, 9, (100,), **k),
    "randperm": lambda **k: ops.randperm(100, **k),
    "normal": lambda **k: ops.normal(2.0, 0.5, (100,), **k),
    "bernoulli": lambda **k: ops.bernoulli(ops.full((100,), 0.3), **k),
    "multinomial": lambda **k: ops.multinomial(ops.ones(200), 100, **k),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_follow_the_seed_or_a_stream_of_their_own(name):
    draw = DRAWS[name]
    manual_seed(7)
    first, second = draw().tolist(), draw().tolist()
    manual_seed(7)
    assert draw().tolist() == first
    assert first != second
    assert draw(generator=Stream(7)).tolist() == first
    assert draw().tolist() == second, "a stream of its own left the default one alone"


def test_random_numbers_have_the_range_they_say():
    manual_seed(0)
    assert 0 <= ops.rand(1000).min().item() < ops.rand(1000).max().item() < 1
    assert set(ops.randint(3, (200,)).tolist()) == {0, 1, 2}
    assert sorted(ops.randperm(20).tolist()) == list(range(20))
    assert abs(ops.randn(10000).std().item() - 1) < 0.05
    assert abs(ops.bernoulli(ops.full((10000,), 0.3)).mean().item() - 0.3) < 0.03
    assert ops.normal(tensor([0.0, 100.0]), 0.01).round().tolist() == [0, 100]
    assert sorted(ops.multinomial(tensor([1.0, 0.0, 2.0]), 2).tolist()) == [0, 2]
    selects = ops.multinomial(tensor([[1.0, 3.0], [0.0, 1.0]]), 4000, replacement=True)
    assert abs(selects[0].float().mean().item() - 0.75) < 0.03
    assert selects[1].tolist() == [1] * 4000
    assert ops.randn_like(ops.ones(2, 3, dtype=float16)).dtype == float16


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: ops.zeros(-1), ShapeError),
        (lambda: ops.zeros(2, device="cuda:99"), DeviceError),
        (lambda: ops.zeros(2, dtype="float8"), DTypeError),
        (lambda: ops.zeros(2, dtype=int64, requires_grad=True), DTypeError),
        (lambda: ops.arange(0, 3, -1), ArgumentError),
        (lambda: ops.arange(0, 3, 0.5, dtype=int64), ArgumentError),
        (lambda: ops.arange(-1.5, 3, dtype="uint8"), ArgumentError),
        (lambda: ops.linspace(3, -3, 5, dtype="uint8"), ArgumentError),
        (lambda: ops.logspace(0, 3, 5, dtype="uint8"), ArgumentError),
        (lambda: ops.linspace(0, 1, -1), ArgumentError),
        (lambda: ops.multinomial(tensor([1.0]), 0), ArgumentError),
        (lambda: ops.multinomial(tensor([1.0]), -1, True), ArgumentError),
        (lambda: ops.randint(3, 3, (1,)), ArgumentError),
        (lambda: ops.one_hot(tensor([3]), 3), RangeError),
        (lambda: ops.one_hot(tensor([0.5])), DTypeError),
        (lambda: ops.bernoulli(tensor([1.5])), ArgumentError),
        (lambda: ops.multinomial(tensor([1.0, 0.0]), 2), ArgumentError),
        (lambda: ops.normal(0.0, -1.0, (2,)), ArgumentError),
    ],
)
def test_what_cannot_be_made_is_refused(call, kind):
    with pytest.raises(kind):
        call()


def test_a_created_leaf_takes_a_gradient():
    x = ops.ones(2, requires_grad=True)
    x.sum().backward()
    assert isinstance(x, Tensor)
    assert x.grad.tolist() == [1, 1]


def test_ends_that_are_tensors_are_spaced_in_float64():
    start = tensor(0.1)
    assert ops.linspace(start, 1.0, 3, dtype=float64).tolist() == [start.item(), (start.item() + 1) / 2, 1]
    assert ops.logspace(start, 1.0, 2, dtype=float64)[0].item() == pytest.approx(10 ** start.item(), rel=1e-15)


@pytest.mark.parametrize(
    ("mean", "std", "want"),
    [
        ("float64", None, float64),
        (None, "float64", float64),
        ("float32", "float64", float32),
        ("float16", None, float16),
    ],
)
def test_normal_numbers_come_in_the_dtype_of_their_mean_else_of_their_deviation(mean, std, want):
    given = [0.5 if kind is None else tensor([1.0, 1.0], dtype=kind) for kind in (mean, std)]
    out = ops.normal(*given)
    assert out.dtype == want
    if want == float64:
        assert (out.numpy() != out.numpy().astype(np.float32)).any()


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64, int64, uint8, bool_])
@pytest.mark.parametrize("shape", [(3,), (70, 80), (0, 5), ()])
def test_constants_of_any_size_hold_the_value_numpy_rounds(shape, dtype):
    for value in (0, 1, 3.7, True) if dtype not in (int64, uint8, bool_) else (0, 1, True):
        found = ops.full(shape, value, dtype=dtype).numpy()
        truth = np.full(shape, value).astype(dtype)
        assert (found.shape, found.dtype, found.tobytes()) == (truth.shape, truth.dtype, truth.tobytes())
    assert ops.ones(shape, dtype=dtype).numpy().tobytes() == np.ones(shape, dtype).tobytes()


def test_constants_are_memory_of_their_own_that_can_be_written():
    first, second = ops.full((100, 100), 2.0), ops.full((100, 100), 2.0)
    first.fill_(5)
    assert second.numpy().min() == second.numpy().max() == 2


@pytest.mark.parametrize("dtype", [float32, bfloat16, int64, bool_])
@pytest.mark.parametrize("shape", [(1, 1), (5, 2), (2, 5), (0, 3), (3, 0), (200, 90), (90, 200)])
def test_eye_is_numpys(shape, dtype):
    found = ops.eye(*shape, dtype=dtype).numpy()
    np.testing.assert_array_equal(found, np.eye(*shape).astype(dtype))
    assert found.dtype == dtype


@pytest.mark.parametrize("dtype", ["i8", "i4", "u1"])
@pytest.mark.parametrize("shape", [(), (7,), (300, 4), (0,)])
def test_one_hot_marks_the_class_of_each_label(shape, dtype):
    labels = np.random.default_rng(0).integers(0, 11, shape).astype(dtype)
    for given in (labels, labels.T):
        found = ops.one_hot(tensor(given), 11).numpy()
        np.testing.assert_array_equal(found, given[..., None] == np.arange(11))
        assert found.dtype == np.int64


def test_more_steps_than_a_float_counts_are_refused():
    for start, end, step in ((0, 1e-5, 5e-324), (0.5, 2.0, 5e-324), (-1e308, 1e308, 1.0)):
        with pytest.raises(OutOfMemoryError, match="arange: needs a shape that memory can hold"):
            ops.arange(start, end, step)
