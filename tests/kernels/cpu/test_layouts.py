"""Convolutions, attention and norms of arrays that lie unaligned, backwards or turned, and of empty ones."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import kernels

import ampkit
from ampkit import ops
from ampkit.backends.cpu.native.arrays import Function
from ampkit.backends.cpu.onednn.library import library, unavailable_reason
from ampkit.base.dtypes import bfloat16, float16, float32
from ampkit.core.autograd.tape import grad
from ampkit.core.dispatch import reference_only
from ampkit.core.op import ops as registry
from ampkit.core.tensor import Tensor

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(library() is None, reason=unavailable_reason())]


def _unaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    out = raw[1:].view(array.dtype).reshape(array.shape)  # between two elements, not on the boundary of one
    out[...] = array
    return out


def _shifted(array):
    raw = np.zeros(array.size + 1, array.dtype)
    raw[1:] = array.reshape(-1)
    return raw[1:].reshape(array.shape)


TURNS = {
    "unaligned": _unaligned,
    "shifted by one": _shifted,
    "backwards": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "last axis backwards": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "turned": lambda a: np.ascontiguousarray(a.swapaxes(0, -1)).swapaxes(0, -1),
    "every other": lambda a: np.repeat(a, 2, -1)[..., ::2],
}
# a call, and the shapes of its tensors
CALLS = {
    "conv2d": (lambda x, w, b: ops.conv2d(x, w, b, padding=1), [(4, 16, 12, 12), (24, 16, 3, 3), (24,)]),
    "depthwise": (lambda x, w: ops.conv2d(x, w, groups=16, padding=1), [(4, 16, 12, 12), (16, 1, 3, 3)]),
    "conv1d": (ops.conv1d, [(4, 16, 90), (24, 16, 5), (24,)]),
    "conv_transpose2d": (ops.conv_transpose2d, [(4, 16, 10, 10), (16, 12, 3, 3), (12,)]),
    "linear": (ops.linear, [(70, 64), (40, 64), (40,)]),
    "addmm": (ops.addmm, [(40,), (70, 64), (64, 40)]),
    "batch of products": (ops.matmul, [(4, 1, 40, 32), (3, 32, 50)]),
    "1x1 maps": (ops.conv2d, [(4, 64, 4, 4), (96, 64, 1, 1), (96,)]),
    "few windows": (lambda x, w, b: ops.conv2d(x, w, b, padding=1), [(2, 256, 3, 3), (256, 256, 3, 3), (256,)]),
    "attention": (ops.scaled_dot_product_attention, [(2, 3, 70, 16)] * 3),
    "masked attention": (ops.scaled_dot_product_attention, [*[(2, 3, 70, 16)] * 3, (70, 70)]),
    "self attention": (lambda x: ops.self_attention(x, 3, is_causal=True), [(2, 70, 144)]),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, (96,), w, b), [(5, 40, 96), (96,), (96,)]),
    "group_norm": (lambda x, w, b: ops.group_norm(x, 4, w, b), [(4, 16, 20, 20), (16,), (16,)]),
    "batch_norm": (lambda x, w, b: ops.batch_norm(x, None, None, w, b, True), [(4, 16, 20, 20), (16,), (16,)]),
    "rms_norm": (lambda x, w: ops.rms_norm(x, (96,), w), [(5, 40, 96), (96,)]),
}
TOLERANCE = {float32: 2e-4, float16: 2e-2, bfloat16: 1e-1}


def _values(shapes, dtype):
    rng = np.random.default_rng(len(shapes))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def _run(call, arrays, turn=lambda a: a):
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    out = call(*tensors)
    gradient = np.random.default_rng(9).standard_normal(out.shape).astype(out.dtype)
    return [out.detach(), *grad(out, tensors, Tensor(turn(gradient)))]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("name", CALLS)
def test_however_operands_and_gradients_lie_the_answer_is_the_reference_s(name, turn, dtype):
    call, shapes = CALLS[name]
    arrays = _values(shapes, dtype)
    found = _run(call, [TURNS[turn](array) for array in arrays], TURNS[turn])
    with reference_only():
        truth = _run(call, arrays)
    for got, want in zip(found, truth, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        wide = want.array.astype(float)
        worst = np.abs(got.array.astype(float) - wide).max() / max(1.0, np.abs(wide).max())
        assert worst < TOLERANCE[dtype]


LABELS = Tensor(np.arange(120).reshape(4, 5, 6))
GRID = Tensor(np.linspace(-1, 1, 240, dtype=np.float32).reshape(3, 5, 8, 2))
# a call, the shape of its tensor, an axis that merges with the next one, and an axis whose steps lie between theirs
CROSSED = {
    "softmax": (lambda x: ops.softmax(x, -1), (4, 5, 64), 0, 2),
    "log_softmax": (lambda x: ops.log_softmax(x, 1), (4, 30, 5, 6), 2, 0),
    "cross_entropy": (lambda x: ops.cross_entropy(x, LABELS[..., 0] % 30), (4, 30, 5), 1, 2),
    "cross_entropy of rows": (lambda x: ops.cross_entropy(x, LABELS), (4, 200, 5, 6), 2, 1),
    "batch_norm": (lambda x: ops.batch_norm(x, None, None, training=True), (2, 4, 50, 3), 2, 1),
    "group_norm": (lambda x: ops.group_norm(x, 2), (2, 4, 50, 3), 2, 1),
    "instance_norm": (lambda x: ops.instance_norm(x), (2, 4, 50, 3), 2, 0),
    "sort": (lambda x: ops.sort(x, -1)[0], (4, 16, 100), 0, 2),
    "topk": (lambda x: ops.topk(x, 3, 1)[0], (4, 16, 100), 1, 0),
    "cumsum": (lambda x: ops.cumsum(x, 1), (8, 16, 50), 1, 0),
    "sum": (lambda x: ops.sum(x, 1), (8, 16, 50), 1, 0),
    "amax": (lambda x: ops.amax(x, (0, 1)), (8, 16, 50), 0, 2),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 2), (3, 4, 20, 30), 2, 1),
    "avg_pool2d": (lambda x: ops.avg_pool2d(x, 2), (3, 4, 20, 30), 1, 3),
    "grid_sample": (lambda x: ops.grid_sample(x, GRID), (3, 6, 20, 30), 2, 1),
    "gelu": (ops.gelu, (8, 16, 50), 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CROSSED)
def test_results_are_written_where_the_steps_of_an_axis_lie_between_those_of_two_that_merge(name):
    call, shape, outer, between = CROSSED[name]
    steps = [7] * len(shape)  # of elements, which share memory
    steps[outer], steps[outer + 1], steps[between] = shape[outer + 1], 1, 2
    memory = np.random.default_rng(0).standard_normal(sum(n * step for n, step in zip(shape, steps, strict=True)))
    x = np.lib.stride_tricks.as_strided(memory.astype(np.float32), shape, [4 * step for step in steps])
    with kernels.kernels_of_any_size(), kernels.poisoned_memory():
        found = _run(call, [x])
    with reference_only():
        truth = _run(call, [x.copy()])
    for got, want in zip(found, truth, strict=True):
        np.testing.assert_allclose(got.array, want.array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["biases of images", "gradients of statistics"])
def test_arrays_that_are_not_aligned_reach_no_kernel_that_reads_elements(name, monkeypatch):
    # A CPU that reads any address hides it, so what is passed to compiled functions is looked at.
    passed, call = [], Function.__call__

    def watched(self, *arguments):
        read = self.name != "execute_primitive"  # oneDNN reads bytes at any address
        passed.extend(each.flags.aligned for each in arguments if read and isinstance(each, np.ndarray))
        return call(self, *arguments)

    monkeypatch.setattr(Function, "__call__", watched)
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.uniform(0.1, 1, shape).astype(np.float32)  # noqa: E731
    if name == "biases of images":
        ops.conv2d(Tensor(draw(1, 40, 20, 20)), Tensor(draw(40, 40, 3, 3)), Tensor(_unaligned(draw(40))), padding=1)
    else:
        x = Tensor(draw(4, 16, 20, 20), requires_grad=True)
        outs = registry["batch_norm"](x, None, None, None, None, None, 1e-5)
        dy, dmean, dvar = (draw(*out.shape) for out in outs)
        grad(list(outs), [x], [Tensor(dy), Tensor(_unaligned(dmean)), Tensor(_unaligned(dvar))])
    assert all(passed)


EMPTY = {
    "conv2d": [(0, 16, 12, 12), (24, 16, 3, 3), (24,)],
    "depthwise": [(0, 16, 12, 12), (16, 1, 3, 3)],
    "conv1d": [(0, 16, 90), (24, 16, 5), (24,)],
    "conv_transpose2d": [(0, 16, 10, 10), (16, 12, 3, 3), (12,)],
    "attention": [(2, 0, 70, 16)] * 3,
    "self attention": [(0, 70, 144)],
    "layer_norm": [(5, 0, 96), (96,), (96,)],
    "group_norm": [(0, 16, 20, 20), (16,), (16,)],
    "rms_norm": [(0, 40, 96), (96,)],
}


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", EMPTY)
def test_of_nothing_there_is_nothing_and_its_weights_have_gradients_of_zero(name, dtype):
    found = _run(CALLS[name][0], _values(EMPTY[name], dtype))
    assert found[0].numel() == 0
    for gradient, shape in zip(found[1:], EMPTY[name], strict=True):
        assert gradient.shape == shape
        assert not gradient.array.astype(float).any()


def test_queries_of_no_rows_answer_with_none():
    q, k = ampkit.zeros(2, 0, 16, requires_grad=True), ampkit.zeros(2, 5000, 16, requires_grad=True)
    out = ops.scaled_dot_product_attention(q, k, k)
    assert out.shape == (2, 0, 16)
    assert not grad(out.sum(), [k])[0].array.any()
