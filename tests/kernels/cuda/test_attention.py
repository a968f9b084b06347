"""The kernel of attention on the GPU, over an emulated cuDNN: values, masks, grouped heads, layouts, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, debug, manual_seed, nn, ops, profile, testing
from ampkit.base import observe
from ampkit.base.dtypes import bfloat16, float16, float32, float64
from ampkit.base.errors import StateError
from ampkit.core.autograd.tape import grad
from ampkit.kernels.cuda.shape import join_split

BODY = "scaled_dot_product_attention_cuda"
SITUATIONS = {
    "plain": ((2, 3, 16, 8), (2, 3, 16, 8), (2, 3, 16, 8), {}),
    "causal": ((2, 3, 17, 16), (2, 3, 17, 16), (2, 3, 17, 16), {"is_causal": True}),
    "causal, few rows": ((2, 3, 5, 8), (2, 3, 19, 8), (2, 3, 19, 8), {"is_causal": True}),
    "causal, many rows": ((2, 3, 19, 8), (2, 3, 5, 8), (2, 3, 5, 8), {"is_causal": True}),
    "other widths": ((2, 3, 7, 24), (2, 3, 9, 24), (2, 3, 9, 16), {"scale": 0.5}),
    "one query": ((2, 3, 1, 8), (2, 3, 9, 8), (2, 3, 9, 8), {}),
    "grouped": ((2, 6, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8), {"enable_gqa": True}),
    "one head of key": ((2, 6, 7, 8), (2, 1, 7, 8), (2, 1, 7, 8), {"enable_gqa": True, "is_causal": True}),
    "three axes": ((4, 7, 8), (4, 9, 8), (4, 9, 8), {}),
    "three axes, grouped": ((4, 7, 8), (2, 9, 8), (2, 9, 8), {"enable_gqa": True}),
    "two axes": ((7, 8), (9, 8), (9, 8), {}),
}
LOW = pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)


@pytest.fixture
def gpu(device):
    """The emulated GPU, with its own cuDNN: `gpu.cudnn.calls` are those of the test."""
    return device


def drawn(shapes, dtype, generator=None):
    generator = generator or np.random.default_rng(0)
    return [generator.normal(size=shape).astype(dtype) for shape in shapes]


def computed(arrays, mask, p, place=lambda array: array, seed=None):
    tensors = [Tensor(place(a), True) for a in arrays]
    given = None if mask is None else Tensor(place(mask))
    out = ops.scaled_dot_product_attention(*tensors, attn_mask=given, **p)
    gradient = np.random.default_rng(1).normal(size=out.shape).astype(seed or arrays[0].dtype).astype(out.dtype)
    return out, grad([out], tensors, [Tensor(place(gradient))]), out._tape_edge[0].kernel.name


def compared(arrays, mask, p, device, place=None):
    """The kernel that ran; its results are those of float64."""
    dtype = arrays[0].dtype
    wide = mask.astype(float64) if mask is not None and mask.dtype != np.bool_ else mask
    want, gradients, _ = computed([a.astype(float64) for a in arrays], wide, p, seed=dtype)
    out, found, kernel = computed(arrays, mask, p, place or device.asarray)
    assert out.dtype == dtype
    testing.assert_close(out.numpy(force=True), want.array)
    for got, gradient in zip(found, gradients, strict=True):
        assert got.dtype == dtype
        testing.assert_close(got.numpy(force=True), gradient.array, testing.GRADIENT_TOLERANCE[dtype], "gradient")
    return kernel


@LOW
@pytest.mark.parametrize("situation", SITUATIONS)
def test_values_and_gradients_agree_with_float64(situation, dtype, gpu):
    *shapes, p = SITUATIONS[situation]
    assert compared(drawn(shapes, dtype), None, p, gpu) == BODY
    assert [name for name, _ in gpu.cudnn.calls] == ["attention_forward", "attention_backward"]


@LOW
@pytest.mark.parametrize("situation", ["causal", "other widths", "grouped", "three axes"])
def test_dropout_keeps_what_the_reference_keeps(situation, dtype, gpu):
    *shapes, p = SITUATIONS[situation]
    arrays = drawn(shapes, dtype)

    def after_seed(place, of=arrays, seed=None):
        manual_seed(5)
        return computed(of, None, p | {"dropout_p": 0.3}, place, seed)

    want, gradients, _ = after_seed(lambda a: a, [a.astype(float64) for a in arrays], dtype)
    out, found, kernel = after_seed(gpu.asarray)
    assert kernel == BODY
    testing.assert_close(out.numpy(force=True), want.array)
    for got, gradient in zip(found, gradients, strict=True):
        testing.assert_close(got.numpy(force=True), gradient.array, testing.GRADIENT_TOLERANCE[dtype], "gradient")


MASKS = [(7, 9), (1, 9), (7, 1), (2, 1, 1, 9), (3, 7, 9), (2, 3, 7, 9), (2, 1, 7, 1)]


@LOW
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_a_boolean_mask(shape, dtype, gpu):
    mask = np.random.default_rng(3).random(shape) < 0.6
    mask.reshape(-1)[0] = True
    assert compared(drawn([(2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8)], dtype), mask, {}, gpu) == BODY


@LOW
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_a_mask_that_is_added(shape, dtype, gpu):
    mask = np.random.default_rng(3).normal(size=shape).astype(dtype)
    mask.reshape(-1)[-1] = -np.inf
    assert compared(drawn([(2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8)], dtype), mask, {}, gpu) == BODY


@pytest.mark.parametrize("kind", ["boolean", "added"])
@LOW
def test_a_query_that_may_look_nowhere_gets_zeros_and_gives_none(kind, dtype, gpu):
    allowed = np.random.default_rng(4).random((2, 1, 7, 9)) < 0.5
    allowed[0, 0, 2:5] = False
    allowed[1, 0, 0] = False
    allowed[:, :, 6] = True
    mask = allowed if kind == "boolean" else np.where(allowed, 0, -np.inf).astype(dtype)
    arrays = drawn([(2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 8)], dtype)
    assert compared(arrays, mask, {"enable_gqa": True}, gpu) == BODY
    out, (dq, *_), _ = computed(arrays, mask, {"enable_gqa": True}, gpu.asarray)
    assert not out.numpy(force=True)[0, :, 2:5].any()
    assert not dq.numpy(force=True)[0, :, 2:5].any()


@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_a_mask_with_grouped_heads_is_by_head_of_query(kind, gpu):
    mask = np.random.default_rng(3).random((2, 6, 7, 9)) < 0.6
    mask[..., 0] = True
    mask = mask if kind == "boolean" else np.where(mask, 0.5, -np.inf).astype(float16)
    arrays = drawn([(2, 6, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8)], float16)
    assert compared(arrays, mask, {"enable_gqa": True}, gpu) == BODY


def test_the_gradient_of_a_mask_comes_from_the_reference(gpu):
    arrays = drawn([(2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8), (7, 9)], float16)
    arrays[3][1] = -np.inf

    def gradients(place):
        tensors = [Tensor(place(a), True) for a in arrays]
        out = ops.scaled_dot_product_attention(*tensors[:3], attn_mask=tensors[3])
        return out, grad([out], tensors, [Tensor(place(np.ones(out.shape, float16)))])

    (out, found), (_, want) = gradients(gpu.asarray), gradients(lambda a: a)
    assert out._tape_edge[0].kernel.name == BODY
    for got, gradient in zip(found, want, strict=True):
        testing.assert_close(got.numpy(force=True), gradient.array, testing.GRADIENT_TOLERANCE[float16])
    assert [name for name, _ in gpu.cudnn.calls] == ["attention_forward"]


@LOW
def test_the_saved_sums_are_those_of_the_reference(dtype, gpu):
    from ampkit.core.dispatch import reference_only

    mask = np.random.default_rng(4).random((7, 9)) < 0.5
    mask[3] = False
    arrays = drawn([(2, 6, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8)], dtype)

    def sums():
        tensors = [Tensor(gpu.asarray(a), True) for a in arrays]
        out = ops.scaled_dot_product_attention(*tensors, attn_mask=Tensor(gpu.asarray(mask)), enable_gqa=True)
        return out._tape_edge[0].saved.lse.get()

    found = sums()
    with reference_only():
        want = sums()
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_a_result_that_was_changed_in_place_has_no_backward_any_more(gpu):
    tensors = [Tensor(gpu.asarray(a), True) for a in drawn([(2, 3, 7, 8)] * 3, float16)]
    out = ops.scaled_dot_product_attention(*tensors)
    seed = Tensor(gpu.asarray(np.ones(out.shape, float16)))
    out.detach().mul_(2)
    with pytest.raises(StateError, match="changed"):
        grad([out], tensors, [seed])


@LOW
@pytest.mark.parametrize("kind", ["heads split off rows", "one projection", "backwards", "unaligned"])
def test_operands_that_lie_as_they_like(kind, dtype, gpu):
    arrays = drawn([(2, 4, 10, 8)] * 3, dtype)
    packed = gpu.asarray(np.stack(arrays).transpose(1, 3, 0, 2, 4).copy())  # [N, L, 3, H, E]
    views = [packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]

    def place(array):
        if kind == "one projection" and any(array is a for a in arrays):
            return views[[array is a for a in arrays].index(True)]
        if kind == "backwards":
            return gpu.asarray(np.ascontiguousarray(array[:, :, ::-1]))[:, :, ::-1]
        if kind == "unaligned":
            flat = gpu.xp.empty((array.size + 1,), array.dtype)
            flat[1:] = gpu.asarray(array.ravel())
            return flat[1:].reshape(array.shape)
        return gpu.asarray(np.ascontiguousarray(array.transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)

    assert compared(arrays, None, {"is_causal": True}, gpu, place) == BODY
    if kind == "one projection":
        assert gpu.cudnn.calls[0][1][:3] == tuple(v.data.ptr for v in views), "an operand was copied"


@pytest.mark.parametrize("joined", ["chunk", "unbind", "grouped"])
def test_gradients_of_parts_of_a_projection_are_written_into_one_array(joined, gpu, monkeypatch):
    sizes = (32, 16, 16) if joined == "grouped" else (32, 32, 32)
    values = drawn([(2, 10, sum(sizes)), (2, 10, 32)], float16)

    def gradient(place):
        rows = Tensor(place(values[0]), True)
        x = rows * 1.0
        if joined == "unbind":
            q, k, v = x.reshape(2, 10, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (part.reshape(2, 10, -1, 8).transpose(1, 2) for part in x.split(sizes, -1))
        out = ops.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=joined == "grouped")
        (out.transpose(1, 2).reshape(2, 10, 32) * Tensor(place(values[1]))).sum().backward()
        return rows.grad.numpy(force=True)

    want = gradient(lambda a: a)
    monkeypatch.setattr(join_split, "concatenated", None)
    testing.assert_close(gradient(gpu.asarray), want, testing.GRADIENT_TOLERANCE[float16])


def test_heads_go_back_into_their_row_without_a_copy(gpu):
    rows = [gpu.asarray(a) for a in drawn([(2, 10, 32)] * 3, float16)]
    tensors = [Tensor(a.reshape(2, 10, 4, 8).transpose(0, 2, 1, 3), True) for a in rows]
    out = ops.scaled_dot_product_attention(*tensors)
    assert out.array.transpose(0, 2, 1, 3).flags.c_contiguous
    for gradient in grad([out], tensors, [Tensor(gpu.asarray(np.ones(out.shape, float16)))]):
        assert gradient.array.transpose(0, 2, 1, 3).flags.c_contiguous


@pytest.mark.parametrize(
    ("dtype", "shapes", "p"),
    [
        (float32, [(2, 3, 7, 8)] * 3, {}),
        (float16, [(2, 3, 7, 12)] * 3, {}),
        (float16, [(1, 1, 2, 264)] * 3, {}),
        (float16, [(2, 3, 7, 8)] * 3, {"scale": 0.0}),
        (float16, [(2, 3, 7, 8), (1, 3, 7, 8), (1, 3, 7, 8)], {}),
        (float16, [(1, 2, 3, 7, 8)] * 3, {}),
        (float16, [(2, 3, 0, 8), (2, 3, 7, 8), (2, 3, 7, 8)], {}),
    ],
    ids=["float32", "ragged heads", "wide heads", "scale 0", "broadcast", "five axes", "no rows"],
)
def test_what_cudnn_is_not_asked_for_runs_the_reference(dtype, shapes, p, gpu):
    arrays = drawn(shapes, dtype)
    out, found, kernel = computed(arrays, None, p, gpu.asarray)
    assert kernel == "scaled_dot_product_attention_"
    assert not gpu.cudnn.calls
    want, gradients, _ = computed(arrays, None, p)
    testing.assert_close(out.numpy(force=True), want.array)
    for got, gradient in zip(found, gradients, strict=True):
        testing.assert_close(got.numpy(force=True), gradient.array, testing.GRADIENT_TOLERANCE[dtype])


@pytest.mark.filterwarnings("ignore:scaled_dot_product_attention. cuDNN has no")
@pytest.mark.parametrize("lacks", [("attention_forward",), ("attention_backward",), ()])
def test_where_there_is_no_engine_the_reference_runs(lacks, gpu):
    gpu.cudnn.lacks = set(lacks)
    *shapes, p = SITUATIONS["grouped"]
    kernel = compared(drawn(shapes, float16), None, p, gpu)
    assert (kernel == BODY) == ("attention_forward" not in lacks)


def test_without_cudnn_the_reference_runs(gpu):
    gpu.cudnn.unavailable_reason = lambda: "no cuDNN"
    *shapes, p = SITUATIONS["causal"]
    assert compared(drawn(shapes, float16), None, p, gpu) == "scaled_dot_product_attention_"


def test_the_host_waits_for_nothing(gpu):
    mask = gpu.asarray(np.random.default_rng(3).random((7, 9)) < 0.6)
    arrays = [gpu.asarray(a) for a in drawn([(2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8)], float16)]
    tensors, gradient = [Tensor(a, True) for a in arrays], Tensor(gpu.asarray(np.ones((2, 3, 7, 8), float16)))
    gpu.xp.waits[0] = 0
    out = ops.scaled_dot_product_attention(*tensors, attn_mask=Tensor(mask))
    grad([out], tensors, [gradient])
    assert gpu.xp.waits[0] == 0


def test_a_backward_that_cudnn_refuses_is_said_once_and_tools_name_the_reference(gpu):
    gpu.cudnn.lacks = {"attention_backward"}
    events, (q, k, v) = [], (Tensor(gpu.asarray(a), True) for a in drawn([(1, 2, 16, 8)] * 3, float16))

    def gradients():
        out = ops.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
        return grad([out], [q, k, v], [Tensor(gpu.asarray(np.ones(out.shape, float16)))])

    match = "no deterministic backward with dropout .*\nhelp: use_determin"
    with observe.observing(events.append), profile() as found, pytest.warns(RuntimeWarning, match=match):
        gradients()
    gradients()  # and says nothing more
    (kernel,) = [e.kernel.name for e in events if e.name == "scaled_dot_product_attention_backward"]
    assert kernel == "scaled_dot_product_attention_backward"  # the reference's
    assert [row.kernel for row in found.rows if row.name == "scaled_dot_product_attention_backward"] == [kernel]
    assert "refused by a library: cuDNN: attention_backward: no engine" in str(found)
    assert gpu.refusals() == ["cuDNN: attention_backward: no engine"]


@pytest.mark.filterwarnings("ignore:scaled_dot_product_attention. cuDNN has no deterministic:RuntimeWarning")
def test_a_plan_says_what_cudnn_refused(gpu):
    gpu.cudnn.lacks = {"attention_backward"}
    model, x = nn.MultiheadAttention(16, 2, dropout=0.25).to("cuda"), ampkit.ones(2, 4, 16, device="cuda")
    found = debug.plan(model, x, "float16", lambda model, x: model(x, x, x, need_weights=False)[0].sum())
    assert "refused by a library: cuDNN: attention_backward: no engine" in str(found)
