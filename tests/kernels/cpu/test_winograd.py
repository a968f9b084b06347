"""Winograd's convolutions agree with float64 in every dtype and geometry, and run where they are faster."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import nn, no_grad, ops
from ampkit.backends.cpu import winograd
from ampkit.backends.cpu.native import library as native
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.backends.cpu.threads import set_num_threads
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.kernels.cpu.nn import conv
from ampkit.testing import Case, check_precision, normal

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
    pytest.mark.skipif(
        not native.has_products(), reason=f"{native.instruction_set() or 'no kernels'}: without multiply-add"
    ),
]
FUNCTIONS = "conv_output", "input_gradient", "weight_gradient"
GEOMETRIES = [
    Case("conv2d", normal(2, 3, 5, 7), normal(4, 3, 3, 3), normal(4), padding=1),
    Case("conv2d", normal(1, 33, 6, 6), normal(70, 33, 3, 3)),
    Case("conv2d", normal(3, 17, 9, 4), normal(35, 17, 3, 3), normal(35), padding="same"),
    Case("conv2d", normal(2, 5, 3, 3), normal(6, 5, 3, 3)),
    Case("conv2d", normal(2, 5, 1, 2), normal(6, 5, 3, 3), padding=(1, 2)),
    Case("conv2d", normal(2, 8, 4, 5), normal(9, 8, 3, 3), normal(9), padding=(4, 3)),
    Case("conv2d", normal(8, 65, 12, 11), normal(130, 65, 3, 3), padding=1),
    Case("conv2d", normal(40, 32, 8, 8), normal(40, 32, 3, 3), padding=2),
    Case("conv2d", normal(6, 40, 30), normal(33, 6, 3, 3), normal(33), padding=1),
    Case("conv_transpose2d", normal(2, 20, 7, 6), normal(20, 34, 3, 3), normal(34), padding=1),
    Case("conv_transpose2d", normal(2, 40, 5, 6), normal(40, 3, 3, 3)),
]


@pytest.fixture
def calls(monkeypatch):
    """The names of Winograd's functions that returned a result, in order."""
    found = []

    def watch(name, function):
        def watched(*arguments):
            out = function(*arguments)
            found.extend([] if out is None else [name])
            return out

        return watched

    for name in FUNCTIONS:
        monkeypatch.setattr(winograd, name, watch(name, getattr(winograd, name)))
    return found


@pytest.fixture
def always(monkeypatch):
    """Winograd's algorithm at all sizes and in all dtypes, as on a CPU without units for 16 bits."""
    monkeypatch.setattr(winograd, "_is_profitable", lambda c, *given: winograd.applies(c.geometry, c.groups))
    monkeypatch.setattr(winograd, "is_profitable_for_weight_grad", winograd.is_profitable_for_output)
    monkeypatch.setattr(conv, "MIN_MACS", 0)
    monkeypatch.setattr(conv, "_compute_dtype", lambda dtype: float32)


def values(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def gradients(x, w, **options):
    """The output of a convolution and the gradients of its operands, as arrays."""
    x, w = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    out = ops.conv2d(x, w, **options)
    dy = np.random.default_rng(3).standard_normal(out.shape).astype(out.dtype)
    out.backward(Tensor(dy))
    return [t.detach().numpy() for t in (out, x.grad, w.grad)]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", GEOMETRIES, ids=repr)
def test_values_and_gradients_agree_with_float64(case, dtype, always, calls):
    check_precision(case, dtype)
    assert sorted(set(calls)) == sorted(FUNCTIONS)


@pytest.mark.parametrize(
    ("images", "kernels", "options", "expected"),
    [
        ((8, 32, 16, 16), (64, 32, 3, 3), {"padding": 1}, FUNCTIONS),
        ((16, 32, 16, 16), (48, 32, 3, 3), {}, FUNCTIONS),
        ((8, 16, 16, 16), (32, 16, 3, 3), {"padding": 1}, ["conv_output"]),  # the input gradient has 16 channels
        ((2, 32, 16, 16), (32, 32, 3, 3), {"padding": 1}, FUNCTIONS[:2]),
        ((64, 32, 3, 3), (64, 32, 3, 3), {"padding": 1}, []),  # tiles of 4 x 4 pixels for images of 3 x 3
        ((8, 32, 16, 16), (64, 32, 3, 3), {"padding": 1, "stride": 2}, []),
        ((8, 32, 16, 16), (64, 32, 3, 3), {"padding": 2, "dilation": 2}, []),
        ((8, 64, 16, 16), (64, 32, 3, 3), {"padding": 1, "groups": 2}, []),
        ((8, 32, 16, 16), (64, 32, 5, 5), {"padding": 2}, []),
    ],
)
def test_it_runs_where_it_is_faster(images, kernels, options, expected, calls):
    gradients(values(*images), values(*kernels), **options)
    assert sorted(calls) == sorted(expected)


def test_float64_and_the_reference_do_not_run_it(calls):
    gradients(values(8, 32, 16, 16).astype(np.float64), values(64, 32, 3, 3).astype(np.float64), padding=1)
    with reference_only():
        gradients(values(8, 32, 16, 16), values(64, 32, 3, 3), padding=1)
    assert calls == []


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("which", [0, 1], ids=["images", "kernels"])
def test_values_that_are_not_finite_or_overflow_give_what_the_definition_gives(value, which, calls):
    operands = [values(16, 32, 16, 16), values(32, 32, 3, 3) / 16]
    operands[which].flat[5000] = value
    found = gradients(*operands, padding=1)
    del calls[:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "applies", lambda *given: False)
        expected = gradients(*operands, padding=1)
    assert calls == []
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
        rest = np.isfinite(want)
        np.testing.assert_allclose(got[rest], want[rest], rtol=1e-4, atol=1e-4 * min(np.abs(want[rest]).max(), 1e30))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_reaches_the_elements_it_belongs_to(value):
    x, w = Tensor(values(16, 32, 16, 16), requires_grad=True), Tensor(values(32, 32, 3, 3), requires_grad=True)
    dy = np.ones((16, 32, 16, 16), np.float32)
    dy[0, 3, 5, 5] = value
    ops.conv2d(x, w, padding=1).backward(Tensor(dy))
    touched = np.zeros((16, 32, 16, 16), bool)
    touched[0, :, 4:7, 4:7] = True
    np.testing.assert_array_equal(~np.isfinite(x.grad.numpy()), touched)
    assert (~np.isfinite(w.grad.numpy())).nonzero()[0].tolist() == [3] * 32 * 9


@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
@pytest.mark.parametrize(
    ("images", "kernels"), [((8, 32, 30, 30), (32, 32, 3, 3)), ((64, 160, 6, 6), (200, 160, 3, 3))]
)
def test_bits_do_not_depend_on_the_number_of_threads(images, kernels, dtype, always, two_threads):
    operands = values(*images).astype(dtype), values(*kernels).astype(dtype)
    found = gradients(*operands, padding=1)
    set_num_threads(1)
    for two, one in zip(found, gradients(*operands, padding=1), strict=True):
        np.testing.assert_array_equal(two, one)


@pytest.mark.parametrize("shapes", [((2, 64, 24, 24), (64, 64, 3, 3)), ((4, 256, 8, 8), (256, 256, 3, 3))], ids=str)
def test_rounding_errors_are_those_of_the_definition(shapes, calls, monkeypatch):
    operands = [values(*shape) for shape in shapes]
    exact = gradients(*[a.astype(np.float64) for a in operands], padding=1)
    errors = []
    for run in (FUNCTIONS, ()):
        found = gradients(*operands, padding=1)
        assert sorted(set(calls)) == sorted(run)
        errors.append([np.sqrt(np.square(got - want).mean()) for got, want in zip(found, exact, strict=True)])
        monkeypatch.setattr(winograd, "applies", lambda *given: False)
        del calls[:]
    (output, dx, dw), direct = errors
    assert output <= 1.2 * direct[0] and dx <= 1.2 * direct[1] and dw <= 4 * direct[2]


VIEWS = {
    "contiguous": lambda a: a,
    "channels last": lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "every other row": lambda a: np.repeat(a, 2, 2)[:, :, ::2],
    "backwards": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "misaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


# The operands of each function: the output gradient, which is contiguous here, is left out.
READ = dict(zip(FUNCTIONS, (lambda x, w: (x, w), lambda x, w: (w,), lambda x, w: (x,)), strict=True))


@pytest.mark.parametrize("second", VIEWS)
@pytest.mark.parametrize("first", VIEWS)
def test_operands_may_be_views_of_any_layout(first, second, calls):
    x, w = values(16, 32, 16, 16), values(32, 32, 3, 3)
    want = gradients(x, w, padding=1)
    del calls[:]
    found = gradients(VIEWS[first](x), VIEWS[second](w), padding=1)
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-3)
    assert calls == [name for name, read in READ.items() if "misaligned" not in read(first, second)]


def test_transformed_kernels_are_cached_until_they_change(monkeypatch):
    made, transform = [], winograd._transform_kernels
    monkeypatch.setattr(winograd, "_transform_kernels", lambda *given: (made.append(given), transform(*given)))
    x, layer = Tensor(values(4, 32, 16, 16)), nn.Conv2d(32, 32, 3, padding=1, bias=False)
    with no_grad():
        found = [layer(x).numpy() for _ in range(4)]
        assert len(made) == 2  # cached at the second time
        layer.weight.mul_(2)
        doubled = layer(x).numpy()
    for each in found[1:]:
        np.testing.assert_array_equal(each, found[0])
    np.testing.assert_array_equal(doubled, 2 * found[0])


def test_a_convolution_and_its_transpose_have_a_cache_each():
    x, w = Tensor(values(4, 32, 16, 16)), nn.Parameter(values(32, 32, 3, 3))
    with no_grad():
        found = [op(x, w, padding=1).numpy() for _ in range(3) for op in (ops.conv2d, ops.conv_transpose2d)]
    for again, first in zip(found[2:], found[:2] * 2, strict=True):
        np.testing.assert_array_equal(again, first)


def test_a_gradient_is_written_to_the_buffer_that_is_given(calls):
    x, w = values(8, 32, 16, 16), values(64, 32, 3, 3)
    *_, want = gradients(x, w, padding=1)
    weight = Tensor(w, requires_grad=True)
    for _ in range(2):
        out = ops.conv2d(Tensor(x), weight, padding=1)
        out.backward(Tensor(np.random.default_rng(3).standard_normal(out.shape).astype(np.float32)))
    np.testing.assert_allclose(weight.grad.numpy(), 2 * want, rtol=1e-6)
    assert calls.count("weight_gradient") == 3
