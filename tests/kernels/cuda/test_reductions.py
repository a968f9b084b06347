"""The GPU's reductions, on the emulated one: against float64, over layouts and dtypes, and the same bits every time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cuda_on_cpu import emulator

from ampkit import Tensor, autocast, ops
from ampkit.backends.cuda.launch import elementwise, reduction
from ampkit.backends.cuda.libs import gemm
from ampkit.base.dtypes import bfloat16, bool_, float16, float32, float64, int64
from ampkit.base.errors import UnsupportedError
from ampkit.core.autograd.accumulate import sum_over
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.kernels.cuda.reduction import cumulative, sorting
from ampkit.testing import TOLERANCE

pytestmark = pytest.mark.skipif(emulator.missing() is not None, reason=emulator.missing() or "")
DTYPES = [float32, float16, bfloat16]
LAYOUTS = {  # shape, axes in the order of memory, reduced axes
    "a short row": ((3, 5), (0, 1), 1),
    "a tiny row": ((70, 3), (0, 1), -1),
    "rows of packs": ((9, 64), (0, 1), -1),
    "a row of a warp, odd": ((2, 1001), (0, 1), -1),
    "a row of a block": ((2, 1032), (0, 1), -1),
    "a row in parts": ((2, 40000), (0, 1), -1),
    "all, in parts": ((300, 123), (0, 1), None),
    "columns": ((37, 24), (0, 1), 0),
    "odd columns": ((70, 5), (0, 1), 0),
    "columns in parts": ((3000, 8), (0, 1), 0),
    "few rows of columns": ((4, 700), (0, 1), 0),
    "the middle": ((3, 50, 16), (0, 1, 2), 1),
    "the outer ones": ((6, 7, 30), (0, 1, 2), (0, 2)),
    "channels": ((3, 8, 6, 5), (0, 1, 2, 3), (0, 2, 3)),
    "channels last": ((3, 8, 6, 5), (0, 2, 3, 1), (0, 2, 3)),
    "images channels last": ((3, 8, 6, 5), (0, 2, 3, 1), (2, 3)),
    "transposed": ((20, 30), (1, 0), 0),
    "kept axes out of order": ((4, 6, 30), (1, 0, 2), 2),
    "an axis of one": ((4, 1, 30), (0, 1, 2), (1, 2)),
    "one element": ((1, 2), (0, 1), 1),
}
OPS = {
    "sum": np.sum,
    "mean": np.mean,
    "amax": np.max,
    "amin": np.min,
    "var": lambda x, a, keepdims: np.var(x, a, ddof=1, keepdims=keepdims),
    "std": lambda x, a, keepdims: np.std(x, a, ddof=1, keepdims=keepdims),
    "norm": lambda x, a, keepdims: np.sqrt((x * x).sum(a, keepdims=keepdims)),
}


def _laid_out(name, dtype, seed=0):
    shape, memory, dim = LAYOUTS[name]
    values = np.random.default_rng(seed).normal(1, 2, [shape[i] for i in memory]).astype(dtype)
    return values.transpose(np.argsort(memory)), dim


def _runs_kernel(monkeypatch, run):
    """What `run` returns, and whether it was a kernel's."""
    found = []
    launch = reduction.launch
    monkeypatch.setattr(reduction, "launch", lambda *args, **more: (found.append(args[1]), launch(*args, **more)))
    monkeypatch.setattr(cumulative, "launch", lambda *args, **more: (found.append(args[1]), launch(*args, **more)))
    monkeypatch.setattr(sorting, "launch", lambda *args, **more: (found.append(args[1]), launch(*args, **more)))
    return run(), found


def _close(got, want, dtype):
    relative, absolute = TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype(float), want, relative, absolute * np.abs(want).max())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPS)
def test_the_kernel_agrees_with_float64(name, layout, dtype, device, monkeypatch):
    values, dim = _laid_out(layout, dtype)
    axes = tuple(dim) if isinstance(dim, tuple) else dim
    x = Tensor(device.asarray(values))
    got, ran = _runs_kernel(monkeypatch, lambda: getattr(ops, name)(x, dim=dim, keepdim=True))
    assert ran
    assert got.dtype == dtype
    with np.errstate(all="ignore"):
        want = OPS[name](values.astype(float), axes, keepdims=True)
    _close(got.numpy(), want, dtype)
    flat = getattr(ops, name)(x, dim=dim).numpy()
    np.testing.assert_array_equal(flat, got.numpy().reshape(flat.shape))


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["a row in parts", "columns in parts", "channels", "a short row"])
def test_16_bit_arrays_are_answered_in_float32_where_asked(layout, dtype, device):
    values, dim = _laid_out(layout, dtype)
    for kind, want in (("Add", np.sum), ("Maximum", np.max)):
        got = reduction.reduced(kind, device.asarray(values), dim, False, float32)
        assert got.dtype == float32
        _close(got.get(), want(values.astype(float), dim), float32)


@pytest.mark.parametrize("name", ["sum", "amax", "amin", "var"])
@pytest.mark.parametrize("layout", ["a row in parts", "columns", "channels last", "rows of packs"])
def test_what_is_not_finite_shows_where_numpy_shows_it(name, layout, device):
    values, dim = _laid_out(layout, float32)
    for at, bad in ((1, np.nan), (values.size // 2, np.inf), (values.size - 1, -np.inf)):
        values[np.unravel_index(at, values.shape)] = bad
    x = Tensor(device.asarray(values))
    with reference_only():
        want = getattr(ops, name)(x, dim=dim).numpy()
    got = getattr(ops, name)(x, dim=dim).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, 1e-5)


@pytest.mark.parametrize("p", ["fro", 2, 1, float("inf"), 3])
def test_norms(p, device):
    values, _ = _laid_out("a row of a block", float32)
    got = ops.norm(Tensor(device.asarray(values)), p, -1).numpy()
    _close(got, np.linalg.norm(values.astype(float), 2 if p == "fro" else p, -1), float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["a row in parts", "columns in parts", "channels", "the middle", "odd columns"])
def test_the_order_of_threads_changes_no_bit(layout, dtype, device):
    values, dim = _laid_out(layout, dtype)
    x, found = Tensor(device.asarray(values)), []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            found.append(ops.sum(x, dim).numpy().tobytes() + ops.amax(x, dim).numpy().tobytes())
    assert found[0] == found[1] == found[2]


def test_a_long_sum_is_as_precise_as_numpys_in_pairs(device):
    values = np.random.default_rng(0).uniform(0, 1, 300_000).astype(np.float32)
    for shape, dim in (((-1,), 0), ((-1, 3), 0), ((3, -1), 1)):
        x = values.reshape(shape)
        got, want = ops.sum(Tensor(device.asarray(x)), dim).numpy(), x.sum(dim, dtype=float)
        assert np.abs(got - want).max() / want.max() < 3e-7


def test_arrays_with_gaps_and_without_elements_run_the_reference(device):
    with_gaps = device.asarray(np.ones((4, 6), np.float32))[:, ::2]
    others = [device.xp.zeros(shape, dtype) for shape, dtype in (((4, 0), float32), ((2, 3), float64))]
    for x in (with_gaps, np.broadcast_to(with_gaps[:1], (4, 3)), *others):
        with pytest.raises(UnsupportedError):
            reduction.reduced("Add", x, 1, False, x.dtype)
        np.testing.assert_array_equal(ops.sum(Tensor(x), 1).numpy(), x.get().sum(1))


@pytest.mark.parametrize("name", ["mean", "var", "std", "sum", "amax", "argmin", "logsumexp", "softmax"])
def test_a_scalar_may_be_reduced_along_its_axis(name, device):
    options = {"correction": 0} if name in ("var", "std") else {}
    got, want = (getattr(ops, name)(Tensor(where(np.float32(3))), 0, **options) for where in (device.asarray, np.array))
    assert got.shape == () and got.item() == want.item()


def test_an_unaligned_array_is_reduced_element_by_element(device):
    room = device.asarray(np.arange(8 * 17 + 1, dtype=np.float16))
    for dim in (0, 1):
        got = ops.sum(Tensor(room[1:].reshape(17, 8)), dim, dtype="float32").numpy()
        np.testing.assert_array_equal(got, np.arange(1, 8 * 17 + 1, dtype=np.float32).reshape(17, 8).sum(dim))


def test_the_host_reads_nothing(device):
    x, before = Tensor(device.asarray(np.ones((40, 600), np.float32))), device.xp.waits[0]
    for name in (*OPS, "argmax"):
        getattr(ops, name)(x, dim=-1)
    assert device.xp.waits[0] == before


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_tape_sums_broadcast_axes_with_the_kernel(dtype, device, monkeypatch):
    bias = Tensor(device.asarray(np.zeros(24, dtype)), requires_grad=True)
    x = Tensor(device.asarray(np.ones((5, 7, 24), dtype)), requires_grad=True)
    gradient = np.random.default_rng(0).normal(size=(5, 7, 24)).astype(dtype)
    (found,), ran = _runs_kernel(monkeypatch, lambda: grad(x + bias, [bias], Tensor(device.asarray(gradient))))
    assert any("reduce_columns<Add" in name for name in ran)
    assert found.dtype == dtype
    _close(found.numpy(), gradient.astype(float).sum((0, 1)), dtype)
    assert sum_over.select("cuda", found.array, (0,)).name == "sum_over_cuda"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((5, 70), -1), ((3, 1500), 1), ((4, 9), None), ((2, 3, 1), 2)])
def test_the_first_of_the_best_is_found(shape, dim, dtype, device, monkeypatch):
    values = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    values.reshape(-1)[[1, 2]] = np.nan
    x = Tensor(device.asarray(values))
    for name in ("argmax", "argmin"):
        got, ran = _runs_kernel(monkeypatch, lambda name=name: getattr(ops, name)(x, dim))
        assert ran
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(values.astype(np.float32), dim))
    if dim is not None:
        largest, at = ops.max(x, dim)
        np.testing.assert_array_equal(largest.numpy().astype(np.float32), np.max(values.astype(np.float32), dim))
        np.testing.assert_array_equal(at.numpy(), np.argmax(values.astype(np.float32), dim))


FEW = ["a short row", "rows of packs", "a row in parts", "all, in parts", "columns in parts", "channels", "transposed"]


@pytest.mark.parametrize("dtype", [float32, bfloat16, bool_], ids=str)
@pytest.mark.parametrize("layout", FEW)
@pytest.mark.parametrize("name", ["any", "all", "count_nonzero"])
def test_questions_over_axes(name, layout, dtype, device, monkeypatch):
    shown, dim = _laid_out(layout, float32)
    numpys = {"any": np.any, "all": np.all, "count_nonzero": lambda x, axis: (x != 0).sum(axis)}
    function = getattr(ops, name)
    for mostly in (0, 1):
        values = np.full_like(shown, mostly)  # in the same order of memory
        values.reshape(-1)[5:9:3] = np.nan if mostly == 0 and dtype != bool_ else 1 - mostly
        values[np.unravel_index(7, values.shape)] = 1 - mostly
        values = values.astype(dtype)
        got, ran = _runs_kernel(monkeypatch, lambda values=values: function(Tensor(device.asarray(values)), dim))
        assert any("CountNonzero" in entry or "CountZero" in entry for entry in ran)
        want = numpys[name](values.astype(float), tuple(dim) if isinstance(dim, tuple) else dim)
        assert got.dtype == (int64 if name == "count_nonzero" else bool_)
        np.testing.assert_array_equal(got.numpy(), want)


def test_questions_over_no_axis_and_of_integers_run_the_reference(device, monkeypatch):
    x = Tensor(device.asarray(np.array([[0.0, 2.0]], np.float32)))
    got, ran = _runs_kernel(monkeypatch, lambda: ops.any(x, dim=()))
    assert got.tolist() == [[False, True]] and not ran
    whole = Tensor(device.asarray(np.arange(4)))
    got, ran = _runs_kernel(monkeypatch, lambda: (ops.any(whole).item(), ops.count_nonzero(whole).item()))
    assert got == (True, 3) and not ran


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", [name for name in FEW if not isinstance(LAYOUTS[name][2], tuple)])
def test_products(layout, dtype, device, monkeypatch):
    values, dim = _laid_out(layout, float32)
    values = (1 + values / 4096).astype(dtype).astype(dtype)
    got, ran = _runs_kernel(monkeypatch, lambda: ops.prod(Tensor(device.asarray(values)), dim))
    assert any("Multiply" in entry for entry in ran) and got.dtype == dtype
    relative = max(1e-4, TOLERANCE[dtype][0])  # each of up to 40000 factors rounds
    with np.errstate(over="ignore"):
        want = np.prod(values.astype(float), dim).astype(dtype)
    np.testing.assert_allclose(got.numpy().astype(float), want.astype(float), relative)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", [name for name in FEW if name != "channels"])
def test_logsumexp_and_its_gradient(layout, dtype, device, monkeypatch):
    values, dim = _laid_out(layout, dtype)
    if values.ndim == 2 and dim is not None:
        values[0, 0], values[1, 1] = -np.inf, np.inf
        values[(slice(None), 2) if dim == 0 else (2 % len(values),)] = -np.inf
        values[-1, -1] = 60
    dim, keepdim = tuple(range(values.ndim)) if dim is None else dim, dtype == float16

    def run():
        x = Tensor(device.asarray(values), True)
        out = ops.logsumexp(x, dim, keepdim)
        seed = Tensor(device.asarray(np.linspace(1, 2, out.array.size).reshape(out.shape).astype(dtype)))
        return out.numpy(force=True), grad(out, x, seed)[0].numpy()

    with np.errstate(all="ignore"):
        got, ran = _runs_kernel(monkeypatch, run)
        assert sum("AddExps" in entry for entry in ran) == 1  # the backward reads what the forward found
        with reference_only():
            want = run()
    for mine, right in zip(got, want, strict=True):
        assert mine.dtype == right.dtype and mine.shape == right.shape
        np.testing.assert_allclose(mine.astype(float), right.astype(float), *TOLERANCE[dtype])


GRADIENTS = {  # an op, and the term or function that its gradient needs
    "amax": (ops.amax, "CountEqual"),
    "amin": (ops.amin, "WhereEqual"),
    "var": (ops.var, "TimesDifference"),
    "std": (ops.std, "TimesRelativeDifference"),
    "norm": (lambda x, dim, keepdim: ops.norm(x, 2, dim, keepdim), "TimesRelativeDifference"),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", [*FEW, "kept axes out of order", "images channels last"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_reductions(name, layout, dtype, device, monkeypatch):
    (function, needed), (values, dim) = GRADIENTS[name], _laid_out(layout, dtype)
    dim, keepdim = tuple(range(values.ndim)) if dim is None else dim, dtype == float16
    runs_of_axes = layout == "channels" and name not in ("norm",)  # a center is of one run of axes

    def run():
        x = Tensor(device.asarray(values), True)
        out = function(x, dim, keepdim=keepdim)
        seed = np.linspace(1, 2, out.array.size).reshape(out.shape).astype(dtype)
        return grad(out, x, Tensor(device.asarray(seed)))[0].numpy()

    launched, launch = [], elementwise.launch
    monkeypatch.setattr(elementwise, "launch", lambda *args, **more: (launched.append(args[1]), launch(*args, **more)))
    got, ran = _runs_kernel(monkeypatch, run)
    ran += launched
    assert runs_of_axes or any(needed in entry for entry in ran), ran
    with reference_only():
        want = run()
    assert got.dtype == want.dtype and got.shape == want.shape
    rtol, atol = TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol, atol + 1e-6)


ALONG = [((3, 5), 1), ((2, 2500), -1), ((2, 1024), 1), ((700,), 0), ((37, 24), 0), ((3, 50, 16), 1), ((300, 1), 0)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), ALONG, ids=str)
def test_running_sums_and_their_gradient(shape, dim, dtype, device, monkeypatch):
    values = np.random.default_rng(0).normal(0, 1, shape).astype(dtype)
    seed = np.random.default_rng(1).normal(0, 1, shape).astype(dtype)
    x = Tensor(device.asarray(values), True)

    def run():
        out = ops.cumsum(x, dim)
        return out, *grad(out, [x], Tensor(device.asarray(seed)))

    (out, gradient), ran = _runs_kernel(monkeypatch, run)
    assert len(ran) == 2 and "cumsum" in ran[0] and out.dtype == gradient.dtype == dtype
    _close(out.numpy(force=True), np.cumsum(values.astype(float), dim), dtype)
    _close(gradient.numpy(), np.flip(np.cumsum(np.flip(seed.astype(float), dim), dim), dim), dtype)


def test_a_running_sum_shows_what_is_not_finite_from_there_on_and_has_the_same_bits(device):
    values = np.random.default_rng(0).normal(0, 1, (2, 3000)).astype(float32)
    found = []
    for how in (emulator.FORWARD, emulator.REVERSE, 7):
        with emulator.thread_order(how):
            found.append(ops.cumsum(Tensor(device.asarray(values)), 1).numpy().tobytes())
    assert found[0] == found[1] == found[2]
    values[0, 1500], values[1, 2] = np.nan, np.inf
    got = ops.cumsum(Tensor(device.asarray(values)), 1).numpy()
    np.testing.assert_array_equal(np.isfinite(got), np.arange(3000) < np.array([[1500], [2]]))


def test_running_sums_of_16_bits_inside_autocast_are_float32(device):
    values = np.ones((2, 600), float16)
    with autocast("cuda", dtype=float16):
        x = Tensor(device.asarray(values), True)
        out = ops.cumsum(x, 0)
        product = ops.prod(x)
    assert out.dtype == product.dtype == float32 and grad(out.sum(), x)[0].dtype == float16
    with_gaps = Tensor(device.asarray(values)[:, ::2])
    np.testing.assert_array_equal(ops.cumsum(with_gaps, 1).numpy(), np.cumsum(values[:, ::2], 1))


@pytest.mark.parametrize("answered", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", [*DTYPES, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("how", ["rows", "transposed", "gaps", "one column", "odd"])
def test_the_gradient_of_a_bias_is_a_sum_over_rows_however_they_lie(how, dtype, answered, device):
    values = np.random.default_rng(0).normal(size=(300, 48)).astype(dtype)
    shaped = {"one column": lambda a: a[:, 7:8], "gaps": lambda a: a[:, 8:32], "odd": lambda a: a[:, :13].copy()}
    x = shaped.get(how, lambda a: a)(device.asarray(values.T).T if how == "transposed" else device.asarray(values))
    found = gemm.column_sums(x, answered)
    assert found.dtype == answered
    want, last = x.get().astype(float64).sum(0), {float32: 3e-6, float16: 2**-11, bfloat16: 2**-8}[answered]
    np.testing.assert_allclose(found.get().astype(float64), want, rtol=last, atol=2e-5)


@pytest.mark.parametrize("cols", [256, 768, 1024, 3072, 4096, 50257, 50304])
def test_sums_over_columns_have_a_block_for_every_16384_elements_or_each_multiprocessor(cols):
    for rows in (512, 2048, 8192, 16384, 65536):
        x = SimpleNamespace(data=SimpleNamespace(ptr=0))
        call = reduction._column_call("Add", x, (1, rows, cols), float32, reduction.Finish())
        assert call.blocks * call.parts >= min(rows * cols // 16384, 132)
