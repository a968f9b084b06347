"""Reductions and norms of numbers near the ends of each dtype, against float64; of float64, against exact fractions.

Where the true result is a number of the dtype, it is found: neither infinite, nor 0, by kernels as by references.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import ampkit
from ampkit import ops, reference_only

FLOATS = ("float16", "bfloat16", "float32")
SCALES = {
    "1e20": 1e20, "1e-20": 1e-20, "1e30": 1e30, "1e-30": 1e-30, "1e37": 1e37, "1e-37": 1e-37, "1e4": 1e4, "1": 1.0,
    "1e-4": 1e-4, "max/4": "max/4", "max": "max", "smallest normal": "tiny", "subnormal": "subnormal",
}  # fmt: skip
# (few elements, which references reduce; many, which kernels do, in rows and in columns)
SHAPES = [((3, 5), 1), ((16, 64), 1), ((64, 16), 0), ((4, 700), 1), ((8, 20, 12), (0, 2))]


def _array_dtype(name):
    return np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)


def _numbers(dtype, scale, shape):
    """Numbers from -scale to scale, as the dtype rounds them; None where it holds none of that size."""
    info = ml_dtypes.finfo(_array_dtype(dtype))
    most = float(info.max)
    known = {"max/4": most / 4, "max": most, "tiny": float(info.tiny), "subnormal": 64 * float(info.smallest_subnormal)}
    size = known.get(scale, scale)
    if not float(info.smallest_subnormal) * 32 < size <= most:
        return None
    drawn = np.random.default_rng(0).uniform(0.25, 1, shape) * np.where(
        np.arange(np.prod(shape)).reshape(shape) % 3, 1, -1
    )
    return (drawn * size).astype(_array_dtype(dtype))


def _rms(x, dim):
    return np.sqrt(np.mean(x * x, dim, keepdims=True))


def _l2(x, dim):
    return np.sqrt(np.sum(x * x, dim, keepdims=True))


def _unit(x, dim):
    return x / _l2(x, dim)


def _norm(x, dim, p):
    size = np.abs(x)
    unit = (size.max if p > 0 else size.min)(dim, keepdims=True)
    return np.squeeze(unit, dim) * ((size / unit) ** p).sum(dim) ** (1 / p)


def _squeezed(function):
    return lambda x, dim: np.squeeze(function(x, dim), dim)


CASES = {
    "var": (lambda t, dim: t.var(dim), lambda x, dim: x.var(dim, ddof=1)),
    "std": (lambda t, dim: t.std(dim), lambda x, dim: x.std(dim, ddof=1)),
    "std, correction 0": (lambda t, dim: t.std(dim, correction=0), lambda x, dim: x.std(dim)),
    "std_mean": (lambda t, dim: ops.std_mean(t, dim)[0], lambda x, dim: x.std(dim, ddof=1)),
    "var_mean": (lambda t, dim: ops.var_mean(t, dim)[1], lambda x, dim: x.mean(dim)),
    "mean": (lambda t, dim: t.mean(dim), lambda x, dim: x.mean(dim)),
    "sum": (lambda t, dim: t.sum(dim), lambda x, dim: x.sum(dim)),
    "nanmean": (lambda t, dim: ops.nanmean(t, dim), lambda x, dim: x.mean(dim)),
    "norm": (lambda t, dim: t.norm(dim=dim), _squeezed(_l2)),
    "norm, p = 1": (lambda t, dim: t.norm(1, dim), lambda x, dim: np.abs(x).sum(dim)),
    "norm, p = 3": (lambda t, dim: t.norm(3, dim), lambda x, dim: (np.abs(x) ** 3).sum(dim) ** (1 / 3)),
    **{
        f"norm, p = {p}": (lambda t, dim, p=p: t.norm(p, dim), lambda x, dim, p=p: _norm(x, dim, p))
        for p in (0.5, 9, 50, 3000, -2, -30, -3000)
    },
    "norm, p = inf": (lambda t, dim: t.norm(math.inf, dim), lambda x, dim: np.abs(x).max(dim)),
    "vector_norm": (lambda t, dim: ampkit.linalg.vector_norm(t, dim=dim), _squeezed(_l2)),
    "logsumexp": (lambda t, dim: ops.logsumexp(t, dim), lambda x, dim: _logsumexp(x, dim)),
}
LAST = {  # over the last axis
    "normalize": (lambda t: ops.normalize(t, dim=-1, eps=0.0), lambda x: _unit(x, -1)),
    "rms_norm": (lambda t: ops.rms_norm(t, t.shape[-1:], eps=0.0), lambda x: x / _rms(x, -1)),
    "layer_norm": (lambda t: ops.layer_norm(t, t.shape[-1:], eps=0.0), lambda x: _standard(x, -1)),
    "group_norm": (lambda t: ops.group_norm(t, 1, eps=0.0), lambda x: _standard(x, -1)),
    "cosine_similarity": (
        lambda t: ops.cosine_similarity(t, t.flip(0), -1, 0.0), lambda x: (_unit(x, -1) * _unit(x[::-1], -1)).sum(-1)
    ),
    "cdist": (lambda t: ops.cdist(t, t * 0), lambda x: np.repeat(_l2(x, -1), len(x), -1)),
    "pairwise_distance": (lambda t: ops.pairwise_distance(t, t * 0, eps=0.0), lambda x: _l2(x, -1)[..., 0]),
    "dist": (lambda t: ops.dist(t, t * 0), lambda x: np.sqrt((x * x).sum())),
    "softmax": (lambda t: ops.softmax(t, -1), lambda x: _softmax(x)),
    "corrcoef": (lambda t: ops.corrcoef(t), np.corrcoef),
}  # fmt: skip
PARTS = ("sum", "mean", "var_mean")  # on a GPU sums of parts may overflow
GRADIENTS = ("var", "std", "mean", "norm", "norm, p = 3", "sum")


def _logsumexp(x, dim):
    top = x.max(dim, keepdims=True)
    return np.squeeze(top, dim) + np.log(np.exp(x - top).sum(dim))


def _softmax(x):
    exps = np.exp(x - x.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def _standard(x, dim):
    return (x - x.mean(dim, keepdims=True)) / x.std(dim, keepdims=True)


def _agrees(found, truth, dtype, least=0.0):
    """Within some roundings of float32, or one of the 16 bits; infinite where the truth rounds so."""
    info = ml_dtypes.finfo(_array_dtype(dtype))
    least += 1.2e-38 * _on_gpu()  # what is flushed
    eps = max(float(info.eps), 2.0**-20)
    with np.errstate(over="ignore"):
        rounded = truth.astype(_array_dtype(dtype)).astype(np.float64)
    found = found.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(found - truth) <= 2 * eps * np.abs(truth) + 2 * float(info.smallest_subnormal) + least
    edge = np.isinf(found) & ((np.abs(truth) > float(info.max) * (1 - eps)) | np.isinf(rounded))
    return (near | edge).all()


def _truth(function, x, *args):
    with np.errstate(all="ignore"):
        return np.asarray(function(x.astype(np.float64), *args))


@pytest.mark.parametrize("reference", [False, True], ids=["kernels", "references"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CASES)
def test_reductions_are_those_of_float64(name, dtype, reference):
    function, truth = CASES[name]
    for label, scale in SCALES.items():
        for shape, dim in SHAPES:
            x = _numbers(dtype, scale, shape)
            if x is None or _is_flushed(dtype, scale) or (_on_gpu() and name in PARTS and scale in ("max", "max/4")):
                continue
            with reference_only() if reference else nullcontext():
                found = function(ampkit.tensor(x), dim).numpy()
            least = (
                0.0
                if name not in ("sum", "mean", "var_mean", "nanmean")
                else 2.0**-20 * float(_truth(np.abs, x).mean())
            )
            least *= x.size if name == "sum" else 1
            assert _agrees(found, _truth(truth, x, dim), dtype, least), (label, shape)


@pytest.mark.parametrize("reference", [False, True], ids=["kernels", "references"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", LAST)
def test_norms_of_rows_are_those_of_float64(name, dtype, reference):
    function, truth = LAST[name]
    for label, scale in SCALES.items():
        for shape in ((3, 5), (16, 64), (4, 700)):
            x = _numbers(dtype, scale, shape)
            if x is None or _is_limit(name, dtype, scale, x):
                continue
            with reference_only() if reference else nullcontext():
                found = function(ampkit.tensor(x)).numpy()
            assert _agrees(found, _truth(truth, x), dtype, 2.0**-20), (label, shape)


def _is_flushed(dtype, scale):
    """Whether a GPU takes numbers of that size for 0."""
    return _on_gpu() and dtype != "float16" and scale in ("tiny", "subnormal", 1e-37)


def _on_gpu():
    return ampkit.tensor(0.0).is_cuda


def _is_limit(name, dtype, scale, x):
    """What docs/numerics.md lists as limits of float32: subnormal norms, norms and differences beyond its range."""
    if dtype != "float16" and _on_gpu() and name in ("layer_norm", "rms_norm", "group_norm"):
        return scale not in (1e4, 1.0, 1e-4)
    if _is_flushed(dtype, scale):
        return True
    if dtype == "float16" or scale not in ("subnormal", "tiny", "max", "max/4", 1e37):
        return False
    if name in ("normalize", "cosine_similarity") and _l2(x.astype(np.float64), -1).max() > 3.4e38:
        return True
    units = name in ("layer_norm", "rms_norm", "group_norm", "corrcoef", "normalize", "cosine_similarity")
    return units and scale in ("subnormal", "tiny", "max")


@pytest.mark.parametrize("reference", [False, True], ids=["kernels", "references"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_reductions_are_those_of_float64(name, dtype, reference):
    function = CASES[name][0]
    for label, scale in SCALES.items():
        for shape, dim in SHAPES:
            x = _numbers(dtype, scale, shape)
            beyond = scale in ("max", "subnormal", "tiny")  # as numerics.md lists
            if x is None or beyond or _is_flushed(dtype, scale):
                continue
            grads = []
            for values in (x, x.astype(np.float64)):
                leaf = ampkit.tensor(values, requires_grad=True)
                with reference_only() if reference else nullcontext():
                    out = function(leaf, dim)
                    out.backward(ops.ones_like(out))
                grads.append(leaf.grad.numpy())
                if ops.isinf(out).any():  # as numerics.md lists
                    break
            if len(grads) < 2:
                continue
            # Elements beside the mean differ from it by less than float32 tells.
            least = (2.0**-23 if dtype == "float32" else 0.02) * float(np.abs(grads[1]).max())
            assert _agrees(*grads, dtype, least), (label, shape)


# float64


def _root(square):
    """The root of a fraction, as a float: of an integer of 400 bits and more."""
    shift = 2 * ((square.denominator.bit_length() - square.numerator.bit_length()) // 2 + 200)
    whole = (
        square.numerator * 2**shift // square.denominator
        if shift > 0
        else square.numerator // (square.denominator * 2**-shift)
    )
    return float(Fraction(math.isqrt(whole)) / Fraction(2) ** (shift // 2))


@pytest.mark.parametrize("scale", [1e300, 1e160, 1e-160, 1e-300, 1.5e308])
def test_float64_is_computed_at_the_ends_of_its_range_too(scale):
    if scale > 1e308 and _on_gpu():
        return  # sums are not repeated there
    x = np.random.default_rng(1).uniform(-1, 1, (3, 700)) * scale
    x[:, 0] = scale / 8
    t = ampkit.tensor(x)
    for i, row in enumerate(x):
        exact = [Fraction(v) for v in row]
        mean = sum(exact) / len(exact)
        spread = sum((v - mean) ** 2 for v in exact)
        norm = _root(sum(v * v for v in exact) / 2**20) * 2.0**10 if scale < 1e308 else math.inf
        np.testing.assert_allclose(t.mean(1)[i].item(), float(mean), rtol=1e-12, atol=1e-15 * scale)
        np.testing.assert_allclose(t.std(1)[i].item(), _root(spread / (len(exact) - 1)), rtol=1e-12)
        np.testing.assert_allclose(t.norm(dim=1)[i].item(), norm, rtol=1e-12)
        unit = ops.normalize(t[i : i + 1], eps=0.0).numpy()[0]
        if math.isfinite(norm):
            np.testing.assert_allclose(unit, row / norm, rtol=1e-12)
        standard = ops.layer_norm(t[i], (700,), eps=1e-5 if scale > 1 else 0.0).numpy()
        np.testing.assert_allclose(standard.std(), 1, rtol=1e-12)


def test_the_gradient_of_a_standard_deviation_of_large_numbers_is_exact():
    for dtype in ("float32", "float64"):
        x = ampkit.tensor([1e20, -1e20], dtype=dtype, requires_grad=True)
        x.std().backward()
        np.testing.assert_allclose(x.grad.numpy(), [0.5**0.5, -(0.5**0.5)], rtol=1e-6)


def test_evenly_spaced_numbers_span_the_whole_range():
    found = ops.linspace(-1.7e308, 1.7e308, 5, dtype=ampkit.float64).tolist()
    np.testing.assert_allclose(found, [-1.7e308, -0.85e308, 0, 0.85e308, 1.7e308], rtol=1e-15)


@pytest.mark.cpu
@pytest.mark.parametrize("reference", [False, True], ids=["kernels", "references"])
@pytest.mark.parametrize("scale", [1.0, 1e17, 1e19])
def test_batch_norm_and_its_gradient_are_those_of_float64(scale, reference):
    x, given = np.random.default_rng(0).normal(size=(2, 64, 8)).astype(np.float32)
    found = []
    for dtype in (np.float32, np.float64):
        leaf = ampkit.tensor((x * np.float32(scale)).astype(dtype), requires_grad=True)
        with reference_only() if reference else nullcontext():
            y = ops.batch_norm(leaf, None, None, training=True)
            y.backward(ampkit.tensor(given.astype(dtype)))
        found.append((y.detach().numpy(), leaf.grad.numpy() * scale))
    for ours, truth in zip(*found, strict=True):
        np.testing.assert_allclose(ours, truth, rtol=1e-4, atol=1e-4)


@pytest.mark.cpu
def test_the_limits_that_are_listed_are_as_they_are_listed():
    large = ops.full((1, 1, 8), 3e38)
    assert ops.isinf(ops.avg_pool1d(large, 4)).all()
    assert (ops.normalize(large, dim=-1) == 0).all()
    leaf = large.clone().requires_grad_()
    leaf.norm().backward()
    assert (leaf.grad == 0).all()
    used = ops.ones(3, dtype=ampkit.bfloat16, requires_grad=True)
    sum((used * 1 for _ in range(300)), start=ops.zeros(3)).sum().backward()
    assert (used.grad == 256).all()


@pytest.mark.cpu  # a GPU flushes subnormals to 0
@pytest.mark.parametrize("row", [[1e-40, -0.0], [1e-40, 3e-41, -2e-40], [2e-45, 0.0]], ids=str)
def test_the_gradient_of_a_subnormal_standard_deviation_is_finite(row):
    x = ampkit.tensor([row] * 4000, requires_grad=True)  # enough elements for a kernel
    x.std(1).sum().backward()
    wide = np.array(x.numpy(force=True)[0], np.float64)
    apart = wide - wide.mean()
    truth = apart / np.float64(x.detach().std(1)[0].item()) / (len(row) - 1)  # by the rounded deviation
    np.testing.assert_allclose(x.grad[0].numpy(), truth, rtol=1e-6)


@pytest.mark.cpu  # of a device nobody asks whether powers were in range
@pytest.mark.parametrize("p", [0.5, 1, 2, 3, 9, -2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_pooling_by_a_norm_and_its_gradient_are_those_of_numbers_near_1(dtype, p):
    for scale in (1.0, 1e20, 1e-20, 1e30, 1e-30, 1e3, 1e-3):
        x = _numbers(dtype, scale, (2, 3, 8))
        if x is None:
            continue
        x = np.abs(x) * (np.arange(8) > 1)  # a window of zeros
        found = []
        for values in (x, x.astype(np.float64) / scale):
            leaf = ampkit.tensor(values, requires_grad=True)
            out = ops.lp_pool1d(leaf, p, 2)
            out.backward(ops.ones_like(out))
            found += [out.detach().numpy(), leaf.grad.numpy()]
        assert _agrees(found[0], found[2] * scale, dtype), scale
        assert _agrees(found[1], found[3], dtype, 0.01 if dtype != "float32" else 0.0), scale


@pytest.mark.parametrize("reference", [False, True], ids=["kernels", "references"])
@pytest.mark.parametrize("name", ["atan2", "hypot"])
def test_the_gradients_of_the_angle_and_the_length_of_a_point_are_those_of_float64(name, reference):
    points = np.random.default_rng(0).uniform(0.5, 2, (2, 600)) * np.array([[1], [-1]])
    for scale in (1.0, 1e25, 1e-25, 1e37, 1e-37):
        grads = []
        for dtype in (np.float32, np.float64):
            y, x = (ampkit.tensor((row * scale).astype(dtype), requires_grad=True) for row in points)
            with reference_only() if reference else nullcontext():
                getattr(ops, name)(y, x).sum().backward()
            grads.append([leaf.grad.numpy() for leaf in (y, x)])
        for found, truth in zip(*grads, strict=True):
            assert _agrees(found, truth, "float32"), scale


@pytest.mark.cpu  # a GPU flushes subnormals to 0
def test_the_gradient_of_a_subnormal_length_is_its_direction():
    x, y = (ampkit.tensor([v], requires_grad=True) for v in (3e-40, 4e-40))
    ops.hypot(x, y).sum().backward()
    np.testing.assert_allclose([x.grad.item(), y.grad.item()], [0.6, 0.8], rtol=1e-4)


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize("step", [1.0, 1e25, 1e-25])
def test_the_derivative_of_values_far_or_little_apart_is_that_of_float64(step, edge_order):
    values, at = [1.0, 2.0, 4.0, 9.0, 5.0], np.array([0.0, 1.0, 3.0, 4.0, 6.0])
    x = ampkit.tensor(values)
    (found,) = ops.gradient(x, spacing=step, edge_order=edge_order)
    np.testing.assert_allclose(found.numpy(), np.gradient(values, edge_order=edge_order) / step, rtol=1e-6)
    (found,) = ops.gradient(x, spacing=[ampkit.tensor(at * step, dtype=ampkit.float32)], edge_order=edge_order)
    np.testing.assert_allclose(found.numpy(), np.gradient(values, at, edge_order=edge_order) / step, rtol=1e-5)
