"""Compiled gathers, scatters, copies and sums of rows: values and gradients against the references."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import ops
from ampkit.backends.cpu.native.arrays import available
from ampkit.backends.cpu.threads import get_num_threads, set_num_threads
from ampkit.base.dtypes import bfloat16, float16, float32, float64, int64
from ampkit.base.errors import RangeError
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.testing import GRADIENT_TOLERANCE, assert_close

RNG = np.random.default_rng(0)
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: np.asarray(x.T.copy().T),
    "every other": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "one number": lambda x: np.broadcast_to(x.reshape(-1)[:1].reshape(()), x.shape),
}
SHAPE = (60, 9, 17)


def index(below, *shape):
    return np.random.default_rng(below).integers(0, below, shape)


def _along(dim):
    return Tensor(index(SHAPE[dim], *[n - 2 for n in SHAPE[:dim]], 70, *[n - 1 for n in SHAPE[dim + 1 :]]))


def _src(dim, x):
    return Tensor(np.random.default_rng(3).standard_normal(_along(dim).shape).astype(x.dtype), requires_grad=True)


SLICES = Tensor(index(60, 700))
CALLS = {
    **{f"gather {d}": lambda x, d=d: ops.gather(x, d, _along(d)) for d in (0, 1, 2)},
    **{f"scatter_add {d}": lambda x, d=d: ops.scatter_add(x, d, _along(d), _src(d, x)) for d in (0, 1, 2)},
    **{f"scatter {d}": lambda x, d=d: ops.scatter(x, d, _along(d), _src(d, x)) for d in (0, 1, 2)},
    "scatter a number": lambda x: ops.scatter(x, 1, _along(1), 2.5),
    "index_select 0": lambda x: ops.index_select(x, 0, SLICES),
    "index_select 1": lambda x: ops.index_select(x, 1, Tensor(index(9, 70))),
    "index_select 2": lambda x: ops.index_select(x, 2, Tensor(index(17, 70))),
    "rows": lambda x: x[index(60, 30, 20) - 60],
    "rows of two axes": lambda x: x[index(60, 500), index(9, 500)],
    "elements": lambda x: x[index(60, 5000), index(9, 5000), index(17, 5000)],
    "columns": lambda x: x[:, :, index(17, 40)],
    "apart": lambda x: x[index(60, 40), :, index(17, 40)],
    "mask": lambda x: x[np.arange(60) % 3 == 0],
    "index_add": lambda x: ops.index_add(x, 0, Tensor(index(60, 70)), Tensor(np.ones((70, 9, 17), x.dtype))),
}


def _run(call, array, gradients):
    x = Tensor(array, requires_grad=True)
    y = call(x)
    return y.detach().numpy(), grad(y, [x], Tensor(gradients(y.shape).astype(array.dtype)))[0].numpy()


def _gradients(shape):
    return np.random.default_rng(1).standard_normal(shape)


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16, float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_the_reference(name, layout, dtype):
    array = LAYOUTS[layout](RNG.standard_normal(SHAPE).astype(dtype))
    found = _run(CALLS[name], array, _gradients)
    with reference_only():
        want = _run(CALLS[name], array.astype(float64), lambda shape: _gradients(shape).astype(dtype))
    assert found[0].dtype == found[1].dtype == dtype
    moved = not name.startswith(("scatter_add", "index_add"))
    assert_close(found[0], want[0], (0, 0) if moved and dtype == float64 else GRADIENT_TOLERANCE[dtype])
    assert_close(found[1], want[1], GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, int64, float64], ids=str)
@pytest.mark.parametrize("name", [name for name in CALLS if "add" not in name and "number" not in name])
def test_elements_of_any_size_are_moved(name, dtype):
    array = (RNG.integers(0, 250, SHAPE) % (2 if dtype == np.bool_ else 251)).astype(dtype)
    if name.startswith("scatter"):
        src = Tensor(array[:1, :1, :1].repeat(70, 0).repeat(70, 1).repeat(70, 2))
        dim = int(name[-1])
        found = ops.scatter(Tensor(array), dim, _along(dim), src).numpy()
        with reference_only():
            want = ops.scatter(Tensor(array), dim, _along(dim), src).numpy()
    else:
        found = CALLS[name](Tensor(array)).numpy()
        with reference_only():
            want = CALLS[name](Tensor(array)).numpy()
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("bad", [60, -61])
@pytest.mark.parametrize("name", ["rows", "gather", "index_select", "embedding"])
def test_an_index_out_of_range_raises_before_memory_is_read(name, bad):
    x, at = Tensor(np.ones((60, 200), np.float32)), np.zeros(100, int)
    at[77] = bad
    calls = {
        "rows": lambda: x[at],
        "gather": lambda: ops.gather(x, 0, Tensor(np.broadcast_to(at[:, None], (100, 200)))),
        "index_select": lambda: ops.index_select(x, 0, Tensor(at)),
        "embedding": lambda: ops.embedding(Tensor(at), x),
    }
    with pytest.raises(RangeError, match=str(bad)):
        calls[name]()


@pytest.mark.parametrize("bad", [200, -1])
@pytest.mark.parametrize("axis", [0, 1])
def test_an_index_out_of_range_writes_nothing(axis, bad):
    x, values = Tensor(np.ones((200, 200), np.float32)), Tensor(np.ones((200, 200), np.float32))
    at = np.zeros((200, 200), int)
    at[77, 5] = bad
    for name in ("scatter", "scatter_add"):
        with pytest.raises(RangeError, match=rf"{name}: .*{bad} at position"):
            getattr(ops, name)(x, axis, Tensor(at), values)
    assert (x.numpy() == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, bfloat16, np.float16], ids=str)
def test_rows_are_added_up_whatever_their_layout(dtype):
    rng = np.random.default_rng(0)
    start, values = (rng.integers(-8, 8, (50, n, 3)).astype(dtype) for n in (90, 200))
    index = rng.integers(0, 90, (50, 200, 3))
    want = start.astype(float)
    np.add.at(want, (np.arange(50)[:, None, None], index, np.arange(3)), values.astype(float))
    for place in (lambda a: a, np.ascontiguousarray, lambda a: a[::-1]):
        x, at, y, total = (place(np.moveaxis(a, 1, -1)) for a in (start, index, values, want))
        found = ops.scatter_add(Tensor(x), -1, Tensor(at), Tensor(y)).numpy()
        np.testing.assert_array_equal(found.astype(float), total)


@pytest.mark.parametrize("name", ["gather 0", "gather 2", "rows", "elements", "index_select 0"])
def test_one_thread_gives_the_same_bits_as_two(name):
    array, answers, before = RNG.standard_normal(SHAPE).astype(np.float32), [], get_num_threads()
    for threads in (1, 2, before):
        set_num_threads(threads)
        answers.append(_run(CALLS[name], array, _gradients)[1].tobytes())
    assert answers[0] == answers[1]


@pytest.mark.skipif(not available(), reason="the compiled kernels are not there: NumPy adds one after the other")
def test_many_uses_of_a_row_add_up_to_a_rounding():
    gradients = np.random.default_rng(1).uniform(0, 1, (30000, 40)).astype(np.float32)
    for width in (40, 3):
        x = Tensor(np.zeros((2, width), np.float32), requires_grad=True)
        found = grad(x[np.zeros(30000, int)], [x], Tensor(gradients[:, :width].copy()))[0].numpy()
        np.testing.assert_allclose(found[0], gradients[:, :width].sum(0, dtype=float), 3e-7)


def test_more_indices_than_axes_are_left_to_the_reference():
    with pytest.raises(RangeError, match="needs indices within shape"):
        Tensor(np.zeros(5000, np.float32))[Tensor(np.zeros((2, 2), int)), Tensor(np.zeros((2, 2), int))]
