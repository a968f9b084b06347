"""The backward pass of attention in slices, over an emulated cuDNN: the bits of one call, and bounded workspace."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, manual_seed, ops
from ampkit.backends.cuda.libs import attention_slices
from ampkit.base.dtypes import bfloat16, float16
from ampkit.core.autograd.tape import grad

ROWS, KEYS, WIDTH = 7, 9, 8  # odd: what is sliced off does not begin where cuDNN can read it
HEAD = ROWS * (2 * KEYS + 12)  # bytes of workspace for a head of query in the emulated cuDNN


@pytest.fixture
def gpu(device):
    """The emulated GPU; `gpu.used` are the bytes of workspace of the calls that `gpu.cudnn` was given."""
    run, device.used = type(device.cudnn).attention_backward, []

    def attention_backward(call):
        device.used.append(device.cudnn.backward_workspace(call))
        return run(device.cudnn, call)

    device.cudnn.attention_backward = attention_backward
    return device


def drawn(*shapes, dtype=float16):
    generator = np.random.default_rng(0)
    return [generator.normal(size=shape).astype(dtype) for shape in shapes]


def shapes(batch, heads, heads_of_key):
    keys = (batch, heads_of_key, KEYS, WIDTH)
    return (batch, heads, ROWS, WIDTH), keys, keys


def gradients(arrays, place, mask=None, **options):
    tensors = [Tensor(place(array), True) for array in arrays]
    manual_seed(3)
    out = ops.scaled_dot_product_attention(*tensors, attn_mask=mask, enable_gqa=True, **options)
    (seed,) = drawn(out.shape, dtype=arrays[0].dtype)
    return [gradient.array.get().view(np.uint16) for gradient in grad([out], tensors, [Tensor(place(seed))])]


def compared(gpu, monkeypatch, arrays, heads, place=None, **options):
    """The workspace of the calls where a call has memory for `heads` heads of query; the bits are those of one call."""
    place = place or gpu.asarray
    want = gradients(arrays, place, **options)
    assert len(gpu.used) == 1
    gpu.used.clear()
    monkeypatch.setattr(attention_slices, "WORKSPACE", heads * HEAD)
    for found, expected in zip(gradients(arrays, place, **options), want, strict=True):
        np.testing.assert_array_equal(found, expected)
    return [used // HEAD for used in gpu.used]


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("sizes", "heads", "calls"),
    [
        ((5, 2, 2), 10, [10]),
        ((5, 2, 2), 9, [6, 4]),
        ((5, 2, 2), 5, [4, 4, 2]),
        ((3, 4, 4), 3, [2, 2] * 3),
        ((1, 7, 7), 3, [3, 3, 1]),
        ((2, 6, 3), 6, [6, 6]),
        ((2, 6, 3), 4, [4, 2] * 2),
        ((2, 6, 3), 1, [2, 2, 2] * 2),
        ((2, 4, 1), 1, [4, 4]),
    ],
    ids=str,
)
def test_slices_of_batch_and_heads_give_the_bits_of_one_call(sizes, heads, calls, dtype, gpu, monkeypatch):
    arrays = drawn(*shapes(*sizes), dtype=dtype)
    assert compared(gpu, monkeypatch, arrays, heads, is_causal=True) == calls


MASKS = [(ROWS, KEYS), (1, KEYS), (ROWS, 1), (2, 1, 1, KEYS), (6, ROWS, KEYS), (2, 6, ROWS, KEYS), (1, 6, 1, KEYS)]


@pytest.mark.parametrize("heads", [6, 2])
@pytest.mark.parametrize("kind", ["added", "boolean"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_a_mask_is_sliced_along_the_axes_that_it_has(shape, kind, heads, gpu, monkeypatch):
    generator = np.random.default_rng(3)
    mask = generator.normal(size=shape).astype(float16) if kind == "added" else generator.random(shape) < 0.7
    calls = compared(gpu, monkeypatch, drawn(*shapes(2, 6, 3)), heads, mask=Tensor(gpu.asarray(mask)))
    assert calls == [heads] * (12 // heads)


@pytest.mark.parametrize("heads", [6, 2])
def test_what_dropout_keeps_is_sliced(heads, gpu, monkeypatch):
    calls = compared(gpu, monkeypatch, drawn(*shapes(2, 6, 3)), heads, dropout_p=0.3)
    assert calls == [heads] * (12 // heads)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (1, 0, 2, 3)], ids=str)
def test_operands_in_any_order_of_axes_are_sliced(order, gpu, monkeypatch):
    def place(array):
        ordered = gpu.asarray(np.ascontiguousarray(array.transpose(order)))
        return ordered.transpose(*np.argsort(order).tolist(), *range(len(order), 4))

    assert compared(gpu, monkeypatch, drawn(*shapes(3, 4, 2)), 2, place) == [2] * 6


def test_three_axes_are_sliced_by_heads(gpu, monkeypatch):
    arrays = [array[0] for array in drawn(*shapes(1, 4, 2))]
    assert compared(gpu, monkeypatch, arrays, 2) == [2, 2]


@pytest.mark.filterwarnings("ignore:scaled_dot_product_attention. cuDNN has no")
def test_where_a_slice_has_no_engine_the_reference_runs(gpu, monkeypatch):
    run = gpu.cudnn.attention_backward
    gpu.cudnn.attention_backward = lambda call: len(gpu.used) < 1 and run(call)
    monkeypatch.setattr(attention_slices, "WORKSPACE", 2 * HEAD)
    found = gradients(drawn(*shapes(2, 2, 2)), gpu.asarray)
    gpu.cudnn.lacks = {"attention_backward"}
    for part, want in zip(found, gradients(drawn(*shapes(2, 2, 2)), gpu.asarray), strict=True):
        np.testing.assert_array_equal(part, want)
    assert len(gpu.used) == 1


def test_a_compiled_step_runs_its_slices(gpu, monkeypatch):
    arrays = drawn(*shapes(2, 4, 2))

    def step(*tensors):
        tensors = [t.detach().requires_grad_() for t in tensors]
        out = ops.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
        return ampkit.grad(out.float().square().sum(), tensors)

    def bits(run, scale):
        return [g.array.get().view(np.uint16) for g in run(*(Tensor(gpu.asarray(a * scale)) for a in arrays))]

    wanted = [bits(step, scale) for scale in (1, 2, 3)]
    monkeypatch.setattr(attention_slices, "WORKSPACE", 2 * HEAD)
    compiled = ampkit.compile(step, warmup=1)
    gpu.used.clear()
    for scale, want in enumerate(wanted, 1):
        for found, expected in zip(bits(compiled, scale), want, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert set(gpu.used) == {2 * HEAD} and len(gpu.used) >= 8, "four slices in an eager call, and in the recording"


def test_nondeterministic_algorithms_need_fewer_slices(gpu, monkeypatch):
    monkeypatch.setattr(attention_slices, "WORKSPACE", 12 * ROWS * (4 * WIDTH + 12))
    arrays = drawn((2, 6, ROWS, WIDTH), *[(2, 6, 8 * KEYS, WIDTH)] * 2)
    gradients(arrays, gpu.asarray)
    assert len(gpu.used) > 1
    gpu.used.clear()
    ampkit.use_deterministic_algorithms(False)
    try:
        gradients(arrays, gpu.asarray)
    finally:
        ampkit.use_deterministic_algorithms(True)
    assert len(gpu.used) == 1
