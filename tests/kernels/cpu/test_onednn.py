"""The kernels that oneDNN runs agree with float64, in every format and layout, and are the ones that run."""

from __future__ import annotations

import tracemalloc
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest

import ampkit
from ampkit import ops
from ampkit.backends.cpu import im2col, widening_matmul
from ampkit.backends.cpu.native import library as native
from ampkit.backends.cpu.onednn import convolution, gemm
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.backends.cpu.onednn.primitive import Call
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.tensor import Tensor
from ampkit.kernels.cpu.nn import attention, conv
from ampkit.ops.nn.attention import self_attention_by_ops
from ampkit.testing import GRADIENT_TOLERANCE, TOLERANCE, Case, assert_close, booleans, check_precision, normal

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(library() is None, reason=unavailable_reason()),
    pytest.mark.skipif(native.library() is None, reason=native.unavailable_reason()),
]

PRODUCTS = [
    Case("linear", normal(70, 64), normal(33, 64), normal(33)),
    Case("linear", normal(3, 20, 64), normal(96, 64)),
    Case("linear", normal(20, 3, 15, 96), normal(1, 96), normal(1)),
    Case("matmul", normal(64, 32), normal(32, 40)),
    Case("matmul", normal(5, 30, 32), normal(32, 40)),
    Case("matmul", normal(2, 3, 24, 32), normal(2, 3, 32, 17)),
    Case("matmul", normal(2, 3, 24, 32), normal(3, 32, 17)),
    Case("matmul", normal(2, 1, 24, 32), normal(3, 32, 17)),
    Case("matmul", normal(1, 24, 32), normal(2, 5, 32, 17)),
    Case("matmul", normal(64, 32), normal(4, 32, 17)),
    Case("outer", normal(200), normal(180)),
    Case("addmm", normal(33), normal(70, 64), normal(64, 33)),
    Case("addmm", normal(70, 1), normal(70, 64), normal(64, 33), beta=0.5, alpha=2.0),
    Case("addmm", normal(70, 33), normal(70, 64), normal(64, 33), beta=0, alpha=-1),
    Case("baddbmm", normal(4, 33, 31), normal(4, 33, 20), normal(4, 20, 31)),
    Case("baddbmm", normal(31), normal(4, 33, 20), normal(4, 20, 31), alpha=0.3),
    Case("addbmm", normal(33, 31), normal(4, 33, 20), normal(4, 20, 31), beta=2),
    Case("mm", normal(64, 33), normal(33, 40)),
    Case("bmm", normal(4, 33, 20), normal(4, 20, 31)),
]
VECTORS = [
    Case("matmul", normal(4, 90, 96), normal(96)),
    Case("matmul", normal(96), normal(4, 96, 90)),
    Case("matmul", normal(300), normal(300, 120)),
    Case("mv", normal(300, 120), normal(120)),
]
ELEMENTS = [
    Case("gelu", normal(100, 100)),
    Case("gelu", normal(100, 100), approximate="tanh"),
    Case("silu", normal(100, 100)),
    Case("mish", normal(3, 4000)),
]
CONVOLUTIONS = [
    Case("conv2d", normal(2, 3, 12, 12), normal(8, 3, 3, 3), normal(8), padding=1),
    Case("conv2d", normal(2, 16, 9, 11), normal(20, 16, 3, 3), stride=2, padding=1),
    Case("conv2d", normal(2, 16, 8, 8), normal(24, 16, 1, 1), normal(24)),
    Case("conv2d", normal(2, 16, 9, 9), normal(16, 4, 3, 3), groups=4, padding="same"),
    Case("conv2d", normal(2, 16, 13, 13), normal(16, 1, 3, 3), normal(16), groups=16, dilation=2, stride=(2, 1)),
    Case("conv2d", normal(2, 16, 12, 13), normal(16, 1, 5, 5), normal(16), groups=16, padding=2),
    Case("conv2d", normal(2, 16, 13, 14), normal(16, 1, 3, 7), groups=16, stride=(1, 2), padding=(0, 3)),
    Case("conv2d", normal(2, 16, 11, 12), normal(16, 1, 4, 4), groups=16, padding="same"),
    Case("conv2d", normal(8, 14, 14), normal(9, 8, 4, 4), padding="same"),
    Case("conv2d", normal(2, 1, 28, 28), normal(6, 1, 5, 5), normal(6)),
    Case("conv1d", normal(2, 8, 120), normal(12, 8, 5), normal(12), padding=2),
    Case("conv1d", normal(2, 16, 121), normal(20, 4, 3), normal(20), stride=2, groups=4, dilation=3),
    Case("conv1d", normal(16, 200), normal(16, 1, 7), padding="same", groups=16),
    Case("conv_transpose2d", normal(2, 16, 8, 8), normal(16, 12, 4, 4), normal(12), stride=2, padding=1),
    Case("conv_transpose2d", normal(2, 16, 9, 7), normal(16, 3, 3, 3), stride=(2, 3), output_padding=(1, 2)),
    Case("conv_transpose2d", normal(16, 9, 9), normal(16, 5, 3, 3), normal(20), groups=4, dilation=2),
    Case("conv_transpose2d", normal(2, 16, 13, 13), normal(16, 1, 3, 3), normal(16), stride=2, groups=16),
    Case("conv_transpose2d", normal(5, 8, 13, 12), normal(8, 20, 1, 1), normal(20)),
    Case("conv3d", normal(2, 8, 5, 6, 7), normal(12, 8, 3, 3, 3), normal(12), padding=1, stride=(1, 2, 1)),
    Case("conv3d", normal(8, 5, 9, 7), normal(12, 4, 2, 3, 2), groups=2, padding="same", dilation=(1, 2, 1)),
    Case("conv_transpose1d", normal(2, 16, 40), normal(16, 8, 4), normal(8), stride=2, padding=1),
    Case("conv_transpose1d", normal(16, 61), normal(16, 5, 3), groups=4, dilation=2),
    Case("conv_transpose3d", normal(2, 8, 3, 4, 5), normal(8, 8, 3, 3, 3), normal(8), stride=2, output_padding=1),
    Case("conv_transpose3d", normal(8, 4, 6, 5), normal(8, 6, 2, 3, 2), normal(12), groups=2, padding=(0, 1, 1)),
]
FEW_WINDOWS = [  # whose kernels' gradients are one product
    Case("conv2d", normal(2, 256, 3, 3), normal(256, 256, 3, 3), normal(256), padding=1),
    Case("conv2d", normal(3, 256, 5, 4), normal(256, 256, 3, 3), stride=2, padding="valid"),
    Case("conv2d", normal(2, 128, 5, 6), normal(256, 128, 4, 4), stride=(2, 3), padding=(2, 1), dilation=(1, 2)),
    Case("conv2d", normal(2, 256, 4, 4), normal(256, 256, 3, 3), padding=1),
    Case("conv2d", normal(2, 256, 4, 4), normal(256, 256, 3, 3), normal(256), padding=2, dilation=2),
    Case("conv2d", normal(2, 256, 4, 3), normal(256, 256, 2, 4), padding="same"),
    Case("conv2d", normal(4, 512, 4, 4), normal(1024, 512, 1, 1)),
    Case("conv1d", normal(2, 512, 9), normal(512, 512, 3), padding=1),
    Case("conv_transpose2d", normal(2, 256, 2, 2), normal(256, 128, 4, 4), normal(128), stride=2, padding=1),
]
ROWS = [
    Case("softmax", normal(100, 100), dim=-1),
    Case("softmax", normal(4, 30, 77), dim=2),
    Case("log_softmax", normal(100, 100), dim=1),
    Case("layer_norm", normal(100, 96), (96,), normal(96), normal(96)),
    Case("layer_norm", normal(5, 20, 96), (96,), normal(96)),
    Case("layer_norm", normal(5, 20, 96), (96,)),
]
ATTENTION = [
    Case("scaled_dot_product_attention", *[normal(2, 3, 40, 16)] * 3),
    Case("scaled_dot_product_attention", *[normal(2, 3, 40, 16)] * 3, is_causal=True),
    Case("scaled_dot_product_attention", *[normal(2, 600, 8)] * 3, is_causal=True, scale=0.3),
    Case("scaled_dot_product_attention", normal(3, 70, 16), normal(3, 90, 16), normal(3, 90, 24)),
]
SELF = [
    Case("self_attention", normal(2, 40, 144), 3),
    Case("self_attention", normal(2, 40, 144), 3, is_causal=True),
    Case("self_attention", normal(1, 300, 48), 2, is_causal=True),
]
MASKED = [
    Case("scaled_dot_product_attention", *[normal(2, 3, 70, 8)] * 3, normal(70, 70)),
    Case("scaled_dot_product_attention", *[normal(2, 3, 70, 8)] * 3, normal(2, 1, 1, 70), scale=0.5),
    Case("scaled_dot_product_attention", *[normal(2, 3, 70, 8)] * 3, booleans(70, 70)),
    Case("scaled_dot_product_attention", *[normal(2, 3, 70, 8)] * 3, booleans(2, 1, 1, 70)),
    Case("scaled_dot_product_attention", *[normal(5, 70, 8)] * 3, booleans(5, 70, 70)),
    Case("scaled_dot_product_attention", normal(2, 6, 70, 8), *[normal(2, 2, 70, 8)] * 2, enable_gqa=True),
    Case("scaled_dot_product_attention", normal(4, 70, 8), *[normal(1, 70, 8)] * 2, is_causal=True, enable_gqa=True),
]
TWO = [Case(name, *[normal(400, 400)] * 2) for name in ("add", "sub", "mul")]
RELU = Case("relu", normal(400, 400))
CASES = [RELU, *TWO, *MASKED, *PRODUCTS, *VECTORS, *ELEMENTS, *CONVOLUTIONS, *FEW_WINDOWS, *ROWS, *ATTENTION, *SELF]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_values_and_gradients_are_those_of_float64_within_tolerance(case, dtype):
    if case in [*ATTENTION, *SELF, *MASKED] and attention.has_fast_matmul(dtype) and dtype != float32:
        check_rounded_weights(case, dtype)
    else:
        check_precision(case, dtype)


def check_rounded_weights(case, dtype):
    """Attention beside that in float64, where the machine multiplies 16-bit formats and weights are rounded to them."""
    low = case.tensors(dtype)
    high = case.tensors(arrays=[t.array.astype(float) if t.requires_grad else t.array for t in low])
    (found,), (truth,) = case(*low), case(*high)
    relative, _ = TOLERANCE[dtype]
    assert_close(found, truth, (relative, relative / 2))  # half an ulp of each weight, before they are summed
    gradient = np.random.default_rng(0).standard_normal(truth.shape).astype(dtype)
    pairs = (
        grad(y, [t for t in given if t.requires_grad], Tensor(gradient.astype(y.dtype)))
        for y, given in ((found, low), (truth, high))
    )
    for got, want in zip(*pairs, strict=True):
        assert_close(got, want, GRADIENT_TOLERANCE[dtype])


@pytest.fixture
def bfloat16_units(monkeypatch, computed):
    """As if this machine had AMX: oneDNN multiplies bfloat16 everywhere, slowly where there are no units."""
    monkeypatch.setattr(im2col, "has_amx", lambda: True)
    yield from multiplying(monkeypatch, float32, bfloat16)


@pytest.fixture
def no_units(monkeypatch, computed):
    """As if this machine multiplied float32 alone."""
    yield from multiplying(monkeypatch, float32)


def multiplying(monkeypatch, *formats):
    for module, name in ((gemm, "has_fast_matmul"), (conv, "has_fast_conv"), (attention, "has_fast_matmul")):
        monkeypatch.setattr(module, name, lambda dtype: dtype in formats)
    yield


@pytest.mark.parametrize("case", [*PRODUCTS, *CONVOLUTIONS, *FEW_WINDOWS], ids=repr)
def test_products_of_bfloat16_as_it_is_stored_are_those_of_float64_within_tolerance(case, bfloat16_units):
    check_precision(case, bfloat16)


# Images, kernels, stride, padding: oneDNN 3.2 computed these wrongly with AMX.
MISREAD = [
    ((4, 80, 8, 8), (160, 80, 2, 2), 2, 0),
    ((4, 48, 8, 8), (64, 48, 4, 4), 4, 0),
    ((1, 24, 13, 12), (48, 24, 4, 4), 4, 0),
    ((2, 3, 64, 64), (16, 3, 32, 32), 32, 0),
    ((4, 100, 6, 3), (80, 100, 3, 3), (4, 4), 1),
    ((4, 80, 9, 3), (160, 80, 2, 2), 4, 1),
    ((1, 32, 21, 5, 7), (9, 32, 1, 2, 4), (4, 1, 1), 0),
    ((3, 8, 18, 13, 33), (16, 8, 3, 1, 3), (5, 6, 6), 0),
]


@pytest.mark.parametrize(("images", "kernels", "stride", "padding"), MISREAD, ids=str)
def test_strided_convolutions_of_bfloat16_and_their_gradients_are_those_of_float64(
    images, kernels, stride, padding, bfloat16_units
):
    draw = np.random.default_rng(0)
    x, w = (Tensor(draw.standard_normal(shape).astype(bfloat16)) for shape in (images, kernels))
    apply = ops.conv2d if len(images) == 4 else ops.conv3d
    found = []
    for of in (lambda tensor: tensor, lambda tensor: tensor.double()):
        pair = [of(tensor).detach().requires_grad_() for tensor in (x, w)]
        y = apply(*pair, stride=stride, padding=padding)
        seed = Tensor(np.random.default_rng(1).standard_normal(y.shape).astype(bfloat16))
        found.append([y.detach(), *grad([y], pair, [of(seed)])])
    for low, high in zip(*found, strict=True):
        truth = high.numpy()
        np.testing.assert_allclose(low.double().numpy(), truth, rtol=0, atol=0.01 * np.abs(truth).max())


@pytest.mark.parametrize("case", [*ATTENTION, *MASKED], ids=repr)
def test_attention_whose_weights_are_rounded_to_bfloat16_is_that_of_float64_to_their_precision(case, bfloat16_units):
    check_rounded_weights(case, bfloat16)


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("case", FEW_WINDOWS, ids=repr)
def test_gradients_of_large_kernels_over_few_windows_are_one_product(case, units, monkeypatch, request):
    seen, product = [], im2col.weight_gradient
    monkeypatch.setattr(im2col, "weight_gradient", lambda *given: (seen.append(given), product(*given))[1])
    request.getfixturevalue("bfloat16_units" if units else "no_units")
    x, w, *rest = case.tensors(bfloat16)
    (out,) = case(x.detach(), w, *rest)
    out.float().sum().backward()
    ((images, dy, *_),) = seen
    assert images.dtype == dy.dtype == (bfloat16 if units else float32)


@pytest.mark.parametrize(
    ("case", "times"), [(FEW_WINDOWS[0], 2), (FEW_WINDOWS[1], 1), (FEW_WINDOWS[4], 2), (FEW_WINDOWS[5], 2)], ids=repr
)
def test_matrix_units_make_few_windows_as_rows_of_one_product(case, times, monkeypatch, bfloat16_units):
    seen, product = [], im2col._gemm_into
    monkeypatch.setattr(im2col, "_gemm_into", lambda *given: (seen.append(given), product(*given))[1])
    (out,) = case(*case.tensors(bfloat16))
    assert len(seen) == 1
    out.float().sum().backward()
    assert len(seen) == times


@pytest.mark.parametrize(("groups", "stride", "kind"), [(32, 2, float32), (32, 1, bfloat16), (1, 2, bfloat16)])
def test_only_strided_depthwise_convolutions_leave_their_gradient_to_float32(
    groups, stride, kind, monkeypatch, bfloat16_units
):
    seen, made = [], convolution._input_gradient_call
    monkeypatch.setattr(convolution, "_input_gradient_call", lambda c: (seen.append(c.dtype), made(c))[1])
    monkeypatch.setattr(convolution, "cached", lambda key, build: build())
    x = Tensor(np.ones((2, 32, 12, 13), bfloat16), requires_grad=True)
    w = Tensor(np.ones((32, 32 // groups, 3, 3), bfloat16))
    ops.conv2d(x, w, stride=stride, groups=groups).float().sum().backward()
    assert seen == [kind] and x.grad.dtype == bfloat16


def test_pixels_that_no_window_reads_have_a_gradient_of_0_whatever_the_library_writes(monkeypatch):
    nothing = SimpleNamespace(pack=lambda *given: None, run=lambda *arrays: None)
    monkeypatch.setattr(convolution, "_packed_call", lambda *given: nothing)
    monkeypatch.setattr(convolution, "empty_channels_last", lambda shape, dtype: np.full(shape, np.nan, dtype))
    geometry = ConvGeometry((2, 1), (2, 2), (1, 1), ((0, 0), (0, 0)), (5, 6))
    signature = convolution.Conv((1, 32, 5, 6), (32, 32, 2, 1), geometry, 1, bfloat16, bfloat16)
    dy, kernels = np.ones((1, 32, 2, 3), bfloat16), np.ones((32, 32, 2, 1), bfloat16)
    dx = convolution.input_gradient(dy, kernels, signature, None)
    assert not geometry.reads_all and not dx[:, :, 4].any() and not dx[..., 1::2].any()
    assert geometry._replace(kernel=(3, 2), padding=((0, 0), (0, 0))).reads_all


@pytest.mark.parametrize(("width", "strips"), [(3, 0), (4, 2), (5, 2), (7, 3)])
def test_the_gradient_of_wide_depthwise_kernels_is_made_in_narrow_strips(width, strips, monkeypatch):
    seen, made = [], convolution._weight_gradient_call
    monkeypatch.setattr(convolution, "_weight_gradient_call", lambda c: (seen.append(c.kernels[-1]), made(c))[1])
    monkeypatch.setattr(convolution, "cached", lambda key, build: build())
    Case("conv2d", normal(2, 32, 12, 13), normal(32, 1, 5, width), groups=32, padding=1)(
        x := Tensor(np.ones((2, 32, 12, 13), np.float32)),
        w := Tensor(np.ones((32, 1, 5, width), np.float32), requires_grad=True),
    )[0].sum().backward()
    assert x.grad is None and w.grad is not None
    assert len(seen) == max(strips, 1) and sum(seen) == width and max(seen) <= 3


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(("images", "width", "strips"), [((4, 5), 3, 1), ((4, 4), 5, 2), ((2, 7), 5, 2)])
def test_images_lower_than_depthwise_kernels_are_met_with_their_padding(images, width, strips, dtype, monkeypatch):
    seen, made = [], convolution._weight_gradient_call
    monkeypatch.setattr(convolution, "_weight_gradient_call", lambda c: (seen.append(c.geometry), made(c))[1])
    monkeypatch.setattr(convolution, "cached", lambda key, build: build())
    case = Case("conv2d", normal(3, 64, *images), normal(64, 1, 5, width), groups=64, padding=(2, width // 2))
    check_precision(case, dtype)
    assert len(seen) == strips
    assert all(w.kernel[0] <= w.input_size[0] and w.padding == ((0, 0), (0, 0)) for w in seen)


TURNS = {
    "rows": lambda a: a,
    "columns": lambda a: np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2),
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "backwards": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "misaligned": lambda a: np.concatenate([[0], a.reshape(-1)]).astype(a.dtype)[1:].reshape(a.shape),
    "the same row": lambda a: np.broadcast_to(a[..., :1, :], a.shape),
}


@pytest.mark.parametrize(
    "case",
    [
        Case("conv1d", normal(32, 64, 1), normal(64, 64, 3), stride=2, padding=1),
        Case("conv2d", normal(8, 64, 5, 1), normal(64, 64, 3, 3), stride=2, padding=1),
        Case("conv3d", normal(16, 32, 4, 5, 5), normal(32, 32, 5, 2, 2), padding="same"),
        Case("conv3d", normal(16, 8, 4, 5, 5), normal(8, 4, 5, 2, 2), padding="same", groups=2, dilation=(1, 2, 1)),
    ],
    ids=repr,
)
def test_kernels_longer_than_the_images_have_the_gradients_of_float64(case):
    check_precision(case, bfloat16)


@pytest.mark.parametrize("second", TURNS)
@pytest.mark.parametrize("first", TURNS)
def test_operands_may_lie_as_they_like(first, second):
    rng = np.random.default_rng(0)
    a = TURNS[first](rng.standard_normal((3, 32, 48)).astype(np.float32))
    b = TURNS[second](rng.standard_normal((3, 48, 40)).astype(np.float32))
    found = ops.bmm(Tensor(a), Tensor(b)).numpy()
    np.testing.assert_allclose(found, a.astype(float) @ b.astype(float), rtol=1e-5, atol=1e-4)


def _in_layout(array, order, gap, lone):
    # With this order of axes, gaps between the elements, and this stride of all axes of length 1.
    ordered = np.repeat(np.ascontiguousarray(array.transpose(order)), gap, -1)[..., ::gap].transpose(np.argsort(order))
    steps = [lone * array.itemsize if n == 1 else step for n, step in zip(array.shape, ordered.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(ordered, array.shape, steps)


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_operands_may_have_any_strides_where_their_axes_have_length_1(batch):
    # In a mixed order, for oneDNN keeps the primitives of layouts that it takes for equal.
    sizes = [each for each in product((1, 17), (1, 3), (1, 5)) if 1 in each]
    layouts = list(product(list(permutations(range(len(batch) + 2))), (1, 2), (1, 4, 40)))
    cases, rng = list(product(sizes, layouts, layouts)), np.random.default_rng(0)
    for at in rng.permutation(len(cases))[:600]:
        (m, k, n), *pair = cases[at]
        a, b = (
            _in_layout(rng.standard_normal((*batch, *shape)).astype(np.float32), *layout)
            for shape, layout in zip(((m, k), (k, n)), pair, strict=True)
        )
        out = np.full((*batch, m, n), np.nan, np.float32)
        assert gemm.matmul_into(a, b, out)
        np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "case",
    [*PRODUCTS, *VECTORS, *CONVOLUTIONS, *ATTENTION, *MASKED],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
def test_no_reference_runs(case, dtype, monkeypatch):
    if case in VECTORS and dtype == float32:
        pytest.skip("NumPy reads a matrix as fast")
    ran, run, multiply = [], Call.__call__, widening_matmul.matmul_into
    monkeypatch.setattr(Call, "__call__", lambda self, *arrays: (ran.append(self), run(self, *arrays)))
    monkeypatch.setattr(widening_matmul, "matmul_into", lambda *given: multiply(*given) and (ran.append(given) or True))
    (out,) = case(*case.tensors(dtype))
    assert out.node.kernel is not out.node.op.forward.reference
    forward = len(ran)
    assert forward >= 1
    out.float().sum().backward()
    assert len(ran) >= forward + 2


def test_more_axes_than_onednn_takes_are_left_to_the_reference():
    lead = (1,) * 12
    a, b = (Tensor(np.ones((*lead, 64, 64), np.float32), requires_grad=True) for _ in range(2))
    out = ops.matmul(a, b)
    out.sum().backward()
    assert (out.array == 64).all()
    assert (a.grad.array == 64).all()
    assert ops.gelu(Tensor(np.ones((*lead, 100, 100), np.float32))).shape == (*lead, 100, 100)


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,kj->ik",
        "ji,jk->ki",
        "bij,bjk->bik",
        "bqhd,bkhd->bhqk",
        "bhqk,bkhd->bqhd",
        "abi,ic->cab",
        "i,j->ji",
    ],
)
def test_equations_that_spell_a_product_run_as_one_forward_and_backward(equation, dtype, monkeypatch):
    lengths = dict(zip("abchdijkq", (5, 4, 32, 5, 40, 60, 70, 80, 30), strict=True))
    if equation == "i,j->ji":
        lengths |= {"i": 300, "j": 200}
    parts = equation.partition("->")[0].split(",")
    case = Case("einsum", equation, *(normal(*(lengths[letter] for letter in part)) for part in parts))
    check_precision(case, dtype)
    (out,) = case(*(given := case.tensors(dtype)))
    assert out.node.kernel.name == "einsum_cpu"
    monkeypatch.setattr(out.node.op.backward_primitive.reference, "run", None)
    out.backward(Tensor(np.ones(out.shape, out.dtype)))
    assert all(t.grad is not None for t in given if t.requires_grad)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii,ij->ij", [(80, 80), (80, 90)]),
        ("ij,jk->k", [(80, 70), (70, 90)]),
        ("ij,jk->ik", [(80, 1), (90, 70)]),
        ("ij,jk,kl->il", [(40, 50), (50, 60), (60, 70)]),
        ("...ij,...jk->...ik", [(2, 1, 40, 50), (3, 50, 40)]),
    ],
)
def test_other_equations_are_left_to_the_reference(equation, shapes):
    given = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    tensors = [Tensor(a, requires_grad=True) for a in given]
    out = ops.einsum(equation, *tensors)
    np.testing.assert_allclose(out.detach().numpy(), np.einsum(equation, *given), rtol=1e-4, atol=1e-4)
    out.sum().backward()
    with reference_only():
        truth = grad(ops.einsum(equation, *tensors).sum(), tensors)
    for t, want in zip(tensors, truth, strict=True):
        np.testing.assert_allclose(t.grad.numpy(), want.numpy(), rtol=1e-4, atol=1e-4)


def test_small_products_and_other_formats_are_left_to_the_reference():
    op = ops.mm
    small, double = np.ones((4, 4), np.float32), np.ones((64, 64))
    assert op.forward.select("cpu", small, small) is op.forward.reference
    assert op.forward.select("cpu", double, double) is op.forward.reference
    whole = np.ones((64, 64), np.int64)
    assert op.forward.select("cpu", whole, whole) is op.forward.reference


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@pytest.mark.parametrize("case", ELEMENTS, ids=repr)
def test_what_is_not_finite_stays_not_finite(case, dtype):
    values = np.zeros(case.inputs[0].shape)
    values.reshape(-1)[:8] = [np.nan, np.inf, -np.inf, 1e4, -1e4, -0.0, 1e18, -1e18]
    with np.errstate(over="ignore"):  # float16 ends at 65504
        values = values.astype(dtype)
    x = Tensor(values, requires_grad=True)
    with reference_only():
        truth = case(Tensor(values))[0].array.reshape(-1)[:8].astype(float)
    (out,) = case(x)
    assert out.node.kernel is not out.node.op.forward.reference
    found = out.array.reshape(-1)[:8].astype(float)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(truth))
    np.testing.assert_allclose(found[np.isfinite(truth)], truth[np.isfinite(truth)], rtol=1e-2)
    out.sum().backward()
    assert np.isnan(x.grad.array.reshape(-1)[0])


@pytest.mark.parametrize("wild", [False, True], ids=["finite gradients", "gradients of every kind"])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_relu_keeps_nan_and_its_gradient_is_the_reference_s(dtype, wild):
    values = np.random.default_rng(0).standard_normal((401, 399))
    values[0, :6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40 if dtype == float32 else 2e-38]
    gradients = np.random.default_rng(1).standard_normal(values.shape)
    if wild:
        gradients[0, 2], gradients[-1, -1] = np.nan, np.inf

    def run():
        x = Tensor(values.astype(dtype), requires_grad=True)
        y = ops.relu(x)
        y.backward(Tensor(gradients.astype(dtype)))
        return y.detach().numpy().astype(float), x.grad.numpy().astype(float)

    found = run()
    with reference_only():
        truth = run()
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_array_equal(got, want)
    assert np.isnan(found[0][0, 0])


@pytest.mark.parametrize("causal", [False, True])
def test_what_dropout_keeps_of_attention_is_what_the_reference_keeps(causal):
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((2, 3, 150, 8)).astype(np.float32) for _ in range(4)]

    def run():
        ampkit.manual_seed(3)
        q, k, v = (Tensor(a, requires_grad=True) for a in given[:3])
        out = ops.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=causal)
        return [out, *grad(out, [q, k, v], Tensor(given[3]))]

    found = run()
    with reference_only():
        truth = run()
    assert found[0].node.kernel is not truth[0].node.kernel
    for got, want in zip(found, truth, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("causal", [False, True])
def test_no_mask_of_a_whole_long_sequence_is_drawn(causal):
    rows = 2048
    q = Tensor(np.ones((1, 2, rows, 16), np.float32), requires_grad=True)
    tracemalloc.start()
    try:
        out = ops.scaled_dot_product_attention(q, q, q, dropout_p=0.3, is_causal=causal)
        out.backward(out.detach())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    words, mask = 2 * 2 * rows * rows, 2 * rows * rows
    assert peak < words + mask / 2


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize(("length", "dropout_p", "causal"), [(40, 0.0, True), (40, 0.3, False), (150, 0.3, True)])
def test_self_attention_has_the_bits_of_its_links(length, dropout_p, causal, dtype):
    values = np.random.default_rng(0).standard_normal((2, length, 144)).astype(dtype)

    def run(attend):
        ampkit.manual_seed(3)
        x = Tensor(values, requires_grad=True)
        out = attend(x, 3, dropout_p, causal)
        return [out, *grad(out, x, out.detach())]

    for got, want in zip(run(ops.self_attention), run(self_attention_by_ops), strict=True):
        np.testing.assert_array_equal(got.array, want.array)


def test_second_derivatives_of_self_attention_are_those_of_its_links():
    values = np.random.default_rng(0).standard_normal((2, 40, 72)).astype(np.float32)

    def run(attend):
        x = Tensor(values, requires_grad=True)
        (gradient,) = grad(attend(x, 3, 0.0, True).square().sum(), x, create_graph=True)
        return grad(gradient.square().sum(), x)[0]

    assert_close(run(ops.self_attention), run(self_attention_by_ops), (1e-5, 1e-5))


@pytest.mark.parametrize("mask", [np.eye(80, dtype=bool), np.where(np.eye(80), 0, -np.inf).astype(np.float32)])
def test_a_query_that_may_look_nowhere_gets_zeros(mask):
    mask = mask.copy()
    mask[7] = False if mask.dtype == bool else -np.inf
    q, k, v = (Tensor(np.random.default_rng(i).standard_normal((2, 80, 8)).astype(np.float32)) for i in range(3))
    found = ops.scaled_dot_product_attention(q, k, v, Tensor(mask)).numpy()
    assert (found[:, 7] == 0).all()
    np.testing.assert_allclose(np.delete(found, 7, 1), np.delete(v.numpy(), 7, 1), rtol=1e-6)


def test_a_score_of_what_is_masked_does_no_harm_whatever_it_is():
    q, k, v = (np.random.default_rng(i).standard_normal((2, 80, 8)).astype(np.float32) for i in range(3))
    k[:, 60:] = np.inf
    k[:, 70] = np.nan
    out = ops.scaled_dot_product_attention(Tensor(q), Tensor(k), Tensor(v), is_causal=True)
    assert out.numpy()[:, :60].shape == (2, 60, 8)
    assert np.isfinite(out.numpy()[:, :60]).all()
    assert np.isnan(out.numpy()[:, 71:]).all()


@pytest.mark.parametrize("formats", [(float32, bfloat16), (bfloat16, float32), (float32, float16)], ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_a_narrower_operand_is_widened_on_the_way(name, formats):
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((90, 100)).astype(dtype) for dtype in formats]
    x, y = (Tensor(array, requires_grad=True) for array in given)
    z = getattr(ops, name)(x, y)
    wide = [Tensor(array.astype(float), requires_grad=True) for array in given]
    truth = getattr(ops, name)(*wide)
    assert z.dtype == float32
    assert_close(z, truth)
    gradients = rng.standard_normal(z.shape)
    z.backward(Tensor(gradients.astype(np.float32)))
    truth.backward(Tensor(gradients))
    for low, high in zip((x, y), wide, strict=True):
        assert low.grad.dtype == low.dtype
        assert_close(low.grad, high.grad, GRADIENT_TOLERANCE[low.dtype])


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_two_gradients_of_one_tensor_add_up(dtype):
    values = np.random.default_rng(0).standard_normal((400, 400)).astype(dtype)
    x = Tensor(values, requires_grad=True)
    y = x.abs()
    (y * 3 + y * y).sum().backward()
    with np.errstate(all="ignore"):
        want = (3 + 2 * np.abs(values.astype(float))) * np.sign(values.astype(float))
    assert_close(x.grad, want.astype(dtype), GRADIENT_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_what_is_split_and_joined_is_the_same(dtype):
    values = np.random.default_rng(0).standard_normal((90, 30, 50)).astype(dtype)
    x = Tensor(values, requires_grad=True)
    y = ops.cat([part * 2 for part in x.split([7, 20, 3], 1)][::-1], 1)
    assert y.node.kernel is not y.node.op.forward.reference
    gradients = np.random.default_rng(1).standard_normal(values.shape).astype(dtype)
    y.backward(Tensor(gradients))
    np.testing.assert_array_equal(
        y.detach().numpy(), np.concatenate(np.split(values * dtype.type(2), [7, 27], 1)[::-1], 1)
    )
    back = np.concatenate(np.split(gradients, [3, 23], 1)[::-1], 1)
    np.testing.assert_array_equal(x.grad.numpy(), back * dtype.type(2))


def test_activations_keep_the_order_of_axes_in_memory():
    values = np.random.default_rng(0).standard_normal((2, 50, 50, 8)).astype(np.float32).transpose(0, 3, 1, 2)
    x = Tensor(values, requires_grad=True)
    y = ops.gelu(x)
    y.backward(y.detach())
    assert y.array.strides == values.strides


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_slice_that_holds_what_is_not_finite_becomes_nan(name):
    values = np.random.default_rng(0).standard_normal((100, 100)).astype(np.float32)
    values[3, 5], values[7, 0], values[8, 99], values[11], values[12, 3] = np.nan, np.inf, np.nan, -np.inf, -np.inf
    with reference_only():
        truth = getattr(ops, name)(Tensor(values), -1).numpy()
    found = getattr(ops, name)(Tensor(values), -1).numpy()
    np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-7)
    assert np.isnan(found).all(1).nonzero()[0].tolist() == [3, 7, 8, 11]


def _channels_last(values):
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(
    "turn", [_channels_last, lambda values: values[:, :, 0, 0].repeat(60, 0)], ids=["images", "rows"]
)
def test_batch_norm_and_its_gradients_are_those_of_float64(turn, dtype):
    rng = np.random.default_rng(0)
    values = turn(rng.standard_normal((8, 24, 9, 9)) * 3 + 5).astype(dtype)
    weight, bias, gradients = rng.standard_normal(24), rng.standard_normal(24), rng.standard_normal(values.shape)

    def run(kind):
        x, w, b = (Tensor(a.astype(kind), True) for a in (values, weight.astype(float32), bias.astype(float32)))
        running = Tensor(np.zeros(24, np.float32)), Tensor(np.ones(24, np.float32))
        y = ops.batch_norm(x, *running, w, b, training=True)
        return y, running, grad(y, [x, w, b], Tensor(gradients.astype(dtype).astype(y.dtype)))

    (y, running, found), (truth, stats, wanted) = run(dtype), run(np.dtype(float))
    assert y.node.kernel is not y.node.op.forward.reference
    assert y.array.strides == values.strides
    assert_close(y, truth)
    for got, want in zip(running, stats, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5 if dtype == float32 else 1e-2)
    for got, want in zip(found, wanted, strict=True):
        assert_close(got, want, GRADIENT_TOLERANCE[dtype])


def test_convolutions_of_no_channels_are_left_to_the_reference():
    images = Tensor(np.ones((64, 0, 40, 40), np.float32))
    assert (ops.conv2d(images, Tensor(np.ones((2, 0, 3, 3), np.float32))).array == 0).all()
    many = Tensor(np.ones((64, 8, 40, 40), np.float32))
    assert ops.conv_transpose2d(many, Tensor(np.ones((8, 0, 3, 3), np.float32))).shape == (64, 0, 42, 42)


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv_transpose2d"])
def test_maps_of_images_that_lie_channels_last_do_too(name):
    length = (60,) if name == "conv1d" else (10, 12)
    images = np.moveaxis(np.ones((4, *length, 8), np.float32), -1, 1)
    x = Tensor(images, True)
    y = getattr(ops, name)(x, Tensor(np.ones((8, 8, *(3,) * len(length)), np.float32), True))
    assert np.moveaxis(y.array, 1, -1).flags.c_contiguous
    (dx,) = grad(y.sum(), [x])
    assert dx.array.strides == images.strides
