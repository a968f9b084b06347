"""The kernels of convolutions on the GPU, over an emulated cuDNN: values, layouts, and what runs without an engine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, autocast, nn, ops, optim, testing
from ampkit.backends.cuda.device import CUDA
from ampkit.backends.precision import set_float32_matmul_precision
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.kernels.cuda.nn import conv

SITUATIONS = [
    ("conv2d", (2, 16, 9, 7), (24, 16, 3, 3), {"padding": 1}),
    ("conv2d", (3, 3, 11, 10), (8, 3, 5, 4), {"stride": 2, "padding": (2, 1)}),
    ("conv2d", (2, 5, 9, 9), (7, 5, 3, 2), {"dilation": (2, 1), "stride": (1, 2)}),
    ("conv2d", (2, 16, 6, 6), (8, 16, 1, 1), {}),
    ("conv2d", (2, 16, 6, 6), (8, 16, 1, 1), {"stride": 2}),
    ("conv2d", (2, 12, 6, 5), (6, 4, 3, 3), {"groups": 3, "padding": 1}),
    ("conv2d", (2, 8, 6, 5), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
    ("conv2d", (2, 8, 6, 5), (8, 8, 2, 4), {"padding": "same"}),
    ("conv2d", (8, 6, 5), (9, 8, 3, 3), {}),
    ("conv2d", (1, 1, 1, 1), (1, 1, 1, 1), {}),
    ("conv1d", (2, 8, 13), (16, 8, 3), {"stride": 2, "padding": 1}),
    ("conv1d", (3, 13), (4, 3, 5), {"dilation": 2}),
    ("conv_transpose2d", (2, 16, 5, 4), (16, 8, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ("conv_transpose2d", (2, 6, 5, 4), (6, 5, 2, 3), {"groups": 2, "dilation": 2}),
    ("conv_transpose2d", (6, 5, 4), (6, 3, 2, 2), {}),
    ("conv3d", (2, 8, 4, 5, 3), (16, 8, 3, 2, 3), {"padding": (1, 0, 2), "stride": (1, 2, 1)}),
    ("conv3d", (4, 4, 5, 3), (6, 2, 1, 2, 2), {"groups": 2, "padding": "same", "dilation": (1, 2, 1)}),
    ("conv_transpose1d", (2, 8, 7), (8, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ("conv_transpose1d", (4, 7), (4, 3, 2), {"groups": 2, "dilation": 2}),
    ("conv_transpose3d", (2, 8, 2, 3, 4), (8, 4, 3, 2, 3), {"stride": 2, "padding": 1, "output_padding": (1, 0, 1)}),
    ("conv_transpose3d", (6, 2, 3, 4), (6, 3, 1, 2, 1), {"groups": 2}),
]
IDS = [f"{name}-{'x'.join(map(str, x))}-{'x'.join(map(str, w))}-{p}" for name, x, w, p in SITUATIONS]
DTYPES = pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)


@pytest.fixture
def gpu(device):
    """The emulated GPU, with its own cuDNN: `gpu.cudnn.calls` are those of the test."""
    return device


def channels_last(array):
    """The same array, lying in memory with its channels innermost."""
    order = (0, *range(2, array.ndim), 1)
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def drawn(name, x, w, p, dtype):
    """Input, weight, bias, and the gradient of the result, as NumPy arrays."""
    generator = np.random.default_rng(0)
    gives = w[1] * p.get("groups", 1) if name.startswith("conv_transpose") else w[0]
    arrays = [generator.normal(size=shape).astype(dtype) for shape in (x, w, (gives,))]
    shape = getattr(ops, name)(*map(Tensor, arrays), **p).shape
    return [*arrays, generator.normal(size=shape).astype(dtype)]


def computed(name, arrays, p, place=lambda array: array, needs=(True, True, True)):
    """The result, its gradients, and the kernel that ran."""
    *tensors, seed = [Tensor(place(a), need) for a, need in zip(arrays, (*needs, False), strict=True)]
    out = getattr(ops, name)(*tensors, **p)
    found = grad([out], [t for t in tensors if t.requires_grad], [seed])
    return out, found, out._tape_edge[0].kernel.name


def compared(name, arrays, p, device, dtype, place=None):
    truth = [a.astype(float64) for a in arrays]
    want, gradients, _ = computed(name, truth, p)
    out, found, kernel = computed(name, arrays, p, place or device.asarray)
    testing.assert_close(out.numpy(force=True), want.array)
    for got, gradient in zip(found, gradients, strict=True):
        assert got.dtype == dtype
        testing.assert_close(got.numpy(force=True), gradient.array, testing.GRADIENT_TOLERANCE[dtype], "gradient")
    return kernel


@DTYPES
@pytest.mark.parametrize(("name", "x", "w", "p"), SITUATIONS, ids=IDS)
def test_values_and_gradients_agree_with_float64(name, x, w, p, dtype, gpu):
    kernel = compared(name, drawn(name, x, w, p, dtype), p, gpu, dtype)
    assert kernel == f"{name}_cuda"
    calls = ["conv_data", "conv_forward", "conv_weight"]
    pointwise = max(w[2:]) == 1  # whose weight gradient is a matrix product
    assert sorted({call for call, _ in gpu.cudnn.calls}) == calls[: 2 if pointwise else 3]


_BY_DEPTH = ("conv2d", (2, 6, 7, 6), (6, 1, 3, 3), {"groups": 6, "padding": 1})


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    "place", [np.ascontiguousarray, channels_last, np.asfortranarray], ids=["first", "last", "else"]
)
@pytest.mark.parametrize("situation", [*SITUATIONS[1:3], SITUATIONS[11], _BY_DEPTH], ids=lambda s: str(s[1]))
def test_few_channels_are_read_as_eight_where_images_are_large(situation, place, dtype, gpu, monkeypatch):
    name, x, w, p = situation
    read, run = [], gpu.cudnn.conv_forward

    def forward(images, *more, **options):
        read.append(images.shape[1])
        return run(images, *more, **options)

    monkeypatch.setattr(gpu.cudnn, "conv_forward", forward)
    monkeypatch.setattr(conv, "LARGE", np.prod(x))
    arrays = drawn(name, x, w, p, dtype)
    assert compared(name, arrays, p, gpu, dtype, lambda a: gpu.asarray(place(a) if a.ndim > 1 else a)) == f"{name}_cuda"
    monkeypatch.setattr(conv, "LARGE", np.prod(x) + 1)
    compared(name, arrays, p, gpu, dtype)
    channels = x[-3] if name == "conv2d" else x[0]
    assert read == [channels if "groups" in p else 8, channels]


@pytest.mark.parametrize(
    "lacks", [c for n in (1, 2, 3) for c in itertools.combinations(("conv_forward", "conv_data", "conv_weight"), n)]
)
def test_where_there_is_no_engine_the_reference_runs(lacks, gpu):
    gpu.cudnn.lacks = set(lacks)
    for name, x, w, p in (SITUATIONS[0], SITUATIONS[10], SITUATIONS[12], SITUATIONS[15], SITUATIONS[19]):
        compared(name, drawn(name, x, w, p, float16), p, gpu, float16)


def test_without_cudnn_the_reference_runs(gpu):
    gpu.cudnn.unavailable_reason = lambda: "no cuDNN"
    name, x, w, p = SITUATIONS[0]
    assert compared(name, drawn(name, x, w, p, float32), p, gpu, float32) == "conv2d"
    assert not gpu.cudnn.calls


def test_engines_for_float32_alone_serve_16_bit_operands_widened(gpu, monkeypatch):
    name, x, w, p = SITUATIONS[0]
    engines = {each: getattr(gpu.cudnn, each) for each in ("conv_forward", "conv_data", "conv_weight")}

    def refuse(run):
        return lambda *arrays, **more: arrays[0].dtype == float32 and more["tf32"] and run(*arrays, **more)

    for each, run in engines.items():
        monkeypatch.setattr(gpu.cudnn, each, refuse(run))
    assert compared(name, drawn(name, x, w, p, bfloat16), p, gpu, bfloat16) == "conv2d_cuda"
    assert len(gpu.cudnn.calls) == 3


def test_widened_16_bit_numbers_lose_nothing_to_tf32():
    from cuda_on_cpu.emulated_cudnn import _to_tf32

    for dtype in (float16, bfloat16):
        every = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
        every = every[~np.isnan(every)]
        kept = _to_tf32(every)
        normal = np.abs(every) >= np.finfo(np.float32).smallest_normal
        np.testing.assert_array_equal(kept[normal], every[normal])


@pytest.mark.parametrize(("word", "exact"), [("highest", True), ("high", False), ("medium", False)])
def test_float32_is_rounded_to_tf32_only_where_that_is_asked_for(word, exact, gpu):
    name, x, w, p = SITUATIONS[0]
    arrays = drawn(name, x, w, p, float32)
    set_float32_matmul_precision(word)
    try:
        out, found, _ = computed(name, arrays, p, gpu.asarray)
    finally:
        set_float32_matmul_precision("highest")
    want, gradients, _ = computed(name, [a.astype(float64) for a in arrays], p)
    for got, value in zip([out, *found[:2]], [want, *gradients[:2]], strict=True):
        off = np.abs(got.numpy(force=True) - value.array).max() / np.abs(value.array).max()
        assert (off < 1e-6) == exact, off


def test_a_chain_turns_nothing_but_its_first_images(gpu, monkeypatch):
    turns = []
    monkeypatch.setattr(conv, "channels_last", watching(conv.channels_last, turns))
    generator = np.random.default_rng(0)
    x, *weights = (
        Tensor(gpu.asarray(generator.normal(size=s).astype(float16)), True)
        for s in ((2, 8, 6, 6), (16, 8, 3, 3), (16, 16, 3, 3), (8, 16, 1, 1))
    )
    first = ops.conv2d(x, weights[0], padding=1)
    second = ops.conv2d(first, weights[1], padding=1)
    third = ops.conv2d(second, weights[2])
    maps = [out.array.data.ptr for out in (first, second, third)]
    forward = [addresses for name, addresses in gpu.cudnn.calls if name == "conv_forward"]
    assert [a[0] for a in forward[1:]] == maps[:2], "what a convolution gave was copied before the next one read it"
    assert [a[-1] for a in forward] == maps
    assert turns == [(2, 8, 6, 6), (16, 8, 3, 3), (2, 16, 6, 6), (16, 16, 3, 3), (2, 16, 6, 6), (2, 8, 6, 6)]

    turns.clear()
    seed = Tensor(gpu.asarray(channels_last(generator.normal(size=third.shape).astype(float16))))
    grad([third], [x, *weights], [seed])
    data = [addresses for name, addresses in gpu.cudnn.calls if name == "conv_data"]
    assert data[0][0] == seed.array.data.ptr
    assert [a[0] for a in data[1:]] == [a[-1] for a in data[:2]], "a gradient was copied before the next one read it"


def watching(make, shapes):
    def made(like, shape, dtype):
        shapes.append(tuple(shape))
        return make(like, shape, dtype)

    return made


@DTYPES
@pytest.mark.parametrize("kind", ["channels last", "every other", "unaligned", "channels last, unaligned", "backwards"])
def test_images_that_lie_otherwise(kind, dtype, gpu):
    name, x, w, p = SITUATIONS[0]

    def place(array):
        if array.ndim < 4:
            return gpu.asarray(array)
        if kind == "channels last":
            return gpu.asarray(channels_last(array))
        if kind == "every other":
            return gpu.asarray(np.repeat(array, 2, axis=3))[:, :, :, ::2]
        if kind == "backwards":
            return gpu.asarray(np.ascontiguousarray(array[:, :, ::-1]))[:, :, ::-1]
        flat, last = gpu.xp.empty((array.size + 1,), array.dtype), kind.startswith("channels last")
        array = array.transpose(0, 2, 3, 1) if last else array
        flat[1:] = gpu.asarray(array.ravel())
        shifted = flat[1:].reshape(array.shape)
        return shifted.transpose(0, 3, 1, 2) if last else shifted

    assert compared(name, drawn(name, x, w, p, dtype), p, gpu, dtype, place) == "conv2d_cuda"


@pytest.mark.parametrize("needs", [n for n in itertools.product((True, False), repeat=3) if any(n)])
def test_gradients_of_some_inputs_alone(needs, gpu):
    name, x, w, p = SITUATIONS[0]
    arrays = drawn(name, x, w, p, float32)
    _, found, _ = computed(name, arrays, p, gpu.asarray, needs)
    _, want, _ = computed(name, arrays, p, needs=needs)
    for got, gradient in zip(found, want, strict=True):
        testing.assert_close(got.numpy(force=True), gradient.array, testing.GRADIENT_TOLERANCE[float32])


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_a_bias_is_added_before_the_one_rounding(name, gpu):
    # 2048 + 1 is no float16; with 0.75 more, the sum is 2050 if it is rounded once, 2048 if twice.
    ones = np.full((1, 8, 1, 1), 1, float16)
    weight = np.zeros((8, 8, 1, 1), float16)
    weight[0, :3, 0, 0], weight[0, 0, 0, 0] = 0.5, 2048
    weight = weight.swapaxes(0, 1) if name == "conv_transpose2d" else weight
    tensors = [Tensor(gpu.asarray(a)) for a in (ones, np.ascontiguousarray(weight), np.full(8, 0.25, float16))]
    assert getattr(ops, name)(*tensors).numpy(force=True)[0, 0, 0, 0] == 2050


@pytest.mark.parametrize("shape", [(0, 8, 6, 6), (2, 0, 6, 6)])
def test_nothing_to_convolve_gives_what_the_reference_gives(shape, gpu):
    x, w = np.zeros(shape, float32), np.ones((4, shape[1], 3, 3), float32)
    with reference_only():
        want = ops.conv2d(Tensor(x), Tensor(w)).array
    got = ops.conv2d(Tensor(gpu.asarray(x)), Tensor(gpu.asarray(w))).numpy(force=True)
    np.testing.assert_array_equal(got, want)
    assert not gpu.cudnn.calls


def test_float64_runs_the_reference(gpu):
    name, x, w, p = SITUATIONS[0]
    assert computed(name, drawn(name, x, w, p, float64), p, gpu.asarray)[2] == "conv2d"


@DTYPES
def test_infinities_and_nan_go_where_the_reference_lets_them(dtype, gpu):
    name, x, w, p = SITUATIONS[0]
    arrays = drawn(name, x, w, p, dtype)
    arrays[0][0, 0, 4, 4], arrays[0][1, 3, 2, 2] = np.nan, np.inf
    with np.errstate(all="ignore"):
        assert compared(name, arrays, p, gpu, dtype) == "conv2d_cuda"


def test_the_gradient_of_a_parameter_is_float32_and_does_not_overflow(gpu):
    from ampkit import autocast, nn

    weight = nn.Parameter(gpu.asarray(np.ones((8, 8, 1, 1), float32)))
    x = Tensor(gpu.asarray(np.full((4, 8, 8, 8), 300, float16)))
    with autocast("cuda", float16):
        out = ops.conv2d(x, weight)
    out.backward(Tensor(gpu.asarray(np.full(out.shape, 100, float16))))
    assert weight.grad.dtype == float32
    np.testing.assert_array_equal(weight.grad.numpy(force=True), 300 * 100 * 4 * 64)


def test_the_gradient_of_a_larger_kernel_is_rounded_to_16_bits_and_overflows_where_the_scaler_sees_it(gpu):
    from ampkit import autocast, nn

    weight = nn.Parameter(gpu.asarray(np.ones((8, 8, 3, 3), float32)))
    x = Tensor(gpu.asarray(np.full((4, 8, 8, 8), 300, float16)))
    with autocast("cuda", float16):
        out = ops.conv2d(x, weight)
    with np.errstate(over="ignore"):
        out.backward(Tensor(gpu.asarray(np.full(out.shape, 100, float16))))
    assert weight.grad.dtype == float32
    np.testing.assert_array_equal(weight.grad.numpy(force=True), np.inf)


@pytest.mark.parametrize(("o", "c", "groups"), [(8, 16, 1), (8, 3, 1), (5, 8, 1), (5, 3, 1), (16, 16, 2), (6, 4, 2)])
def test_the_float32_gradient_of_a_parameter_for_any_number_of_channels(o, c, groups, gpu):
    from ampkit import autocast, nn

    generator = np.random.default_rng(0)
    x, w = generator.normal(size=(2, c, 6, 5)), generator.normal(size=(o, c // groups, 3, 2))
    x, w = x.astype(float16), w.astype(float16)
    weight, truth = nn.Parameter(gpu.asarray(w.astype(float32))), Tensor(w.astype(float64), True)
    with autocast("cuda", float16):
        out = ops.conv2d(Tensor(gpu.asarray(x)), weight, groups=groups)
    gradient = generator.normal(size=out.shape).astype(float16)
    out.backward(Tensor(gpu.asarray(gradient)))
    (want,) = grad(
        [ops.conv2d(Tensor(x.astype(float64)), truth, groups=groups)], [truth], [Tensor(gradient.astype(float64))]
    )
    testing.assert_close(weight.grad.numpy(force=True), want.array, testing.GRADIENT_TOLERANCE[float16])
    assert [name for name, _ in gpu.cudnn.calls] == ["conv_forward", "conv_weight"]


def test_the_host_waits_for_nothing(gpu):
    name, x, w, p = SITUATIONS[1]
    arrays = [gpu.asarray(a) for a in drawn(name, x, w, p, float16)]
    gpu.xp.waits[0] = 0
    computed(name, arrays, p)
    assert gpu.xp.waits[0] == 0


def test_without_cudnn_the_product_of_a_weight_gradient_is_cublaslts(device, monkeypatch):
    rng = np.random.default_rng(0)
    x, k = (rng.normal(size=shape).astype("f") for shape in ((2, 4, 6, 6), (6, 2, 3, 3)))
    monkeypatch.setattr(type(device.cudnn), "unavailable_reason", lambda self: "none here")
    answers = []
    for place in (np.asarray, device.asarray):
        images, kernels = Tensor(place(x), True), Tensor(place(k), True)
        out = ops.conv2d(images, kernels, padding=1, groups=2)
        out.sum().backward()
        answers.append([out.numpy(force=True), images.grad.numpy(), kernels.grad.numpy()])
    for got, want in zip(*answers, strict=True):
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    assert device.cublaslt.ran


@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_the_gradient_of_a_kernel_of_one_element_is_written_where_an_optimizer_keeps_it(dtype, device, monkeypatch):
    ampkit.set_default_device("cuda")
    layer, x = nn.Conv2d(8, 16, 1, stride=2, bias=False), ampkit.randn(4, 8, 6, 6)
    optimizer, copies, copy = optim.SGD(layer.parameters(), lr=0.1), [], CUDA.copy
    monkeypatch.setattr(CUDA, "copy", lambda self, *arrays: (copies.append(arrays), copy(self, *arrays))[1])

    def gradient():
        with autocast("cuda", dtype=dtype, enabled=dtype != float32):
            layer(x).square().mean().backward()
        found = layer.weight.grad.numpy()
        optimizer.zero_grad()
        return found

    found = gradient()
    assert not copies
    with reference_only():
        np.testing.assert_allclose(found, gradient(), rtol=2e-2 if dtype == bfloat16 else 1e-5, atol=1e-3)
