"""Shapes and indexing: agreement with NumPy, shared memory, sums of gradients, wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest

from ampkit import Tensor, ops, tensor
from ampkit.base.dtypes import bfloat16, float16
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, ShapeError, StateError
from ampkit.core.autograd.tape import grad

VALUES = np.arange(24.0).reshape(2, 3, 4)
MASK = VALUES[0] % 3 == 0
INDICES = [
    1,
    -1,
    slice(None, None, -1),
    ...,
    None,
    (0, 1, 2),
    (slice(1), ..., 2),
    (None, 0, slice(None), None, 3),
    np.array([1, 0, 1]),
    np.array(1),
    [0, 1],
    (slice(None), np.array([[0, 2], [1, -1]])),
    (np.array([0, 1]), slice(None), np.array([3, 3])),
    (np.array([0, 1]), None, 1),
    (0, MASK),
    VALUES > 7,
    (..., np.array([False, True, True, False])),
    [],
]


@pytest.mark.parametrize("index", INDICES, ids=lambda i: repr(i)[:30])
def test_indexing_is_numpys_and_its_gradient_counts_the_uses(index):
    wrap = lambda i: Tensor(i) if isinstance(i, np.ndarray) else i  # noqa: E731
    wrapped = tuple(wrap(i) for i in index) if isinstance(index, tuple) else wrap(index)
    x = Tensor(VALUES.copy(), requires_grad=True)
    want = VALUES[index]
    got = x[wrapped]
    np.testing.assert_array_equal(got.array, want)
    uses = np.bincount(want.astype(int).ravel(), minlength=24).reshape(2, 3, 4)
    np.testing.assert_array_equal(grad(got.sum(), x)[0].array, uses)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[Tensor(np.zeros(4096, int))],
        lambda x: x.index_select(0, Tensor(np.zeros(4096, int))),
        lambda x: x.gather(0, Tensor(np.zeros(4096, int))),
        lambda x: x.expand(4096),
        lambda x: x.repeat(4096),
        lambda x: x.repeat_interleave(4096),
        lambda x: ops.where(Tensor(np.ones(4096, bool)), x, 0.0),
    ],
    ids=["index", "index_select", "gather", "expand", "repeat", "repeat_interleave", "where"],
)
def test_gradients_of_repeated_16_bit_elements_are_added_in_float32(use, dtype):
    x = Tensor(np.ones(1, dtype), requires_grad=True)
    y = use(x)
    assert grad(y, x, Tensor(np.ones(4096, dtype)))[0].tolist() == [4096]


@pytest.mark.cpu
def test_views_share_memory_and_a_write_through_one_is_noticed():
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    weight = Tensor(np.ones((2, 2), np.float32), requires_grad=True)
    y = (weight * x).sum()
    x.view(4)[0].zero_()
    x.t()[1].fill_(7.0)
    assert x.tolist() == [[0, 7], [3, 7]]
    with pytest.raises(StateError, match="changed in place"):
        y.backward()


def test_split_chunk_and_unbind_cut_as_pytorch_does():
    x = Tensor(np.arange(7))
    assert [p.tolist() for p in x.split(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [p.shape[0] for p in x.split([1, 0, 6])] == [1, 0, 6]
    assert [p.shape[0] for p in x.chunk(3)] == [3, 3, 1]
    assert [p.item() for p in x[:2].unbind()] == [0, 1]
    with pytest.raises(ShapeError, match="add up to 7"):
        x.split([3, 3])


def test_only_the_piece_that_is_used_needs_a_gradient():
    x = Tensor(np.ones((4, 2)), requires_grad=True)
    assert grad(x.split(2)[1].sum(), x)[0].tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert grad(x.unbind(1)[0].sum(), x)[0].tolist() == [[1, 0]] * 4


WRONG = {
    "reshape": (lambda x: x.reshape(4, 4), ShapeError, "a shape of 6 elements"),
    "two unknown sizes": (lambda x: x.view(-1, -1), ShapeError, "a shape of 6 elements"),
    "a size that is no integer": (lambda x: x.view(2.0, 3), DTypeError, "a shape of integers"),
    "permute": (lambda x: x.permute(0, 0), ShapeError, "each dim once"),
    "too few axes": (lambda x: x.permute(1), ShapeError, "each of 2 dims once"),
    "transpose": (lambda x: x.transpose(0, 2), RangeError, "dim from -2 to 1"),
    "expand": (lambda x: x.expand(4, 3), ShapeError, r"a shape that \(2, 3\) broadcasts to"),
    "expand to fewer axes": (lambda x: x.expand(3), ShapeError, "broadcasts to"),
    "cat": (lambda x: ops.cat([x, x.t()]), ShapeError, r"agree except along dim 0, got \(2, 3\), \(3, 2\)"),
    "cat of nothing": (lambda x: ops.cat([]), ArgumentError, "at least one tensor"),
    "stack": (lambda x: ops.stack([x, x[0]]), ShapeError, "equal shapes"),
    "flatten": (lambda x: x.flatten(1, 0), ShapeError, "start_dim before end_dim"),
    "index": (lambda x: x[2], RangeError, r"within shape \(2, 3\)"),
    "too many indices": (lambda x: x[0, 0, 0], RangeError, "too many indices"),
    "index of floats": (lambda x: x[x], DTypeError, "integers, slices"),
    "narrow": (lambda x: x.narrow(1, 2, 2), RangeError, "3 elements of dim 1"),
    "negative gather": (
        lambda x: x.gather(1, tensor([[0], [-1]])),
        RangeError,
        r"from 0 to 2, got -1 at position \(1, 0\)",
    ),
    "gather of other axes": (lambda x: x.gather(1, tensor([0])), ShapeError, "an index of 2 axes"),
    "gather by floats": (lambda x: x.gather(1, x), DTypeError, "an index of integers"),
    "index_select": (lambda x: x.index_select(0, tensor([2])), RangeError, "from 0 to 1, got 2 at position 0"),
    "scatter_add": (lambda x: x.scatter_add(1, tensor([[5]]), tensor([[1.0]])), RangeError, "got 5"),
    "src too small": (lambda x: x.scatter_add(1, tensor([[0]]), x[:, :0]), ShapeError, "src that covers index's shape"),
    "tril": (lambda x: x[0].tril(), ShapeError, "at least 2 axes"),
    "pad": (lambda x: ops.pad(x, (1,)), ShapeError, "even number"),
    "pad mode": (lambda x: ops.pad(x, (1, 1), mode="mirror"), ArgumentError, "mode 'constant'"),
    "pad cuts too much": (lambda x: ops.pad(x, (-2, -2)), ShapeError, "to cut at most 3"),
    "repeat": (lambda x: x.repeat(2), ShapeError, "at least 2 sizes"),
    "roll": (lambda x: x.roll((1, 2), 0), ArgumentError, "as many shifts as dims"),
    "roll by several": (lambda x: x.roll(()), ArgumentError, "one shift, or a dim for each, got 0 shifts"),
    "t": (lambda x: x[None].t(), ShapeError, "at most 2 axes"),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(name):
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        call(Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)))


def test_an_index_that_changes_after_the_forward_changes_no_gradient():
    x = tensor([1.0, 2.0, 3.0], requires_grad=True)
    at = tensor([0, 2])
    y = (x[at] * tensor([10.0, 20.0])).sum()
    at.fill_(1)
    y.backward()
    assert x.grad.tolist() == [10.0, 0.0, 20.0]


def test_flip_shares_no_memory():
    x = tensor([1.0, 2.0])
    ops.flip(x, 0).zero_()
    assert x.tolist() == [1.0, 2.0]


# indexing as PyTorch means it; NumPy moves axes


def test_integers_and_none_apply_before_the_tensors_of_an_index():
    x, at = tensor(np.arange(18.0).reshape(2, 3, 3), requires_grad=True), tensor([2, 0, 0])
    y = x[0, :, at]
    assert y.tolist() == [[2.0, 0.0, 0.0], [5.0, 3.0, 3.0], [8.0, 6.0, 6.0]]
    y.sum().backward()
    assert x.grad.tolist() == [[[2.0, 0.0, 1.0]] * 3, [[0.0] * 3] * 3]
    assert x[0, None, at].shape == (1, 3, 3)
    assert x[tensor(1), :, at].tolist() == x[1, :, at].tolist()
    assert x[1, x[1] > 13.5].tolist() == [14.0, 15.0, 16.0, 17.0]


def test_writing_to_an_index_follows_the_same_rule():
    x = tensor(np.zeros((2, 3, 3)))
    x[0, :, tensor([2, 0, 1])] = tensor(np.arange(9.0).reshape(3, 3))
    assert x[0].tolist() == [[1.0, 2.0, 0.0], [4.0, 5.0, 3.0], [7.0, 8.0, 6.0]]


@pytest.mark.parametrize("index", [True, False, np.array([0, 1, 1], np.uint8)], ids=str)
def test_an_index_that_may_mean_two_things_is_refused(index):
    with pytest.raises(DTypeError, match="index: needs integers"):
        tensor(np.zeros((3, 4)))[tensor(index) if isinstance(index, np.ndarray) else index]


def test_a_list_that_is_no_array_of_numbers_is_an_item_for_each_axis():
    x = tensor(VALUES)
    for index in (
        [slice(None), [2, 0]], [[1, 0, 1], [0]], [0, None], [..., 1], [[0, 1], 2], [tensor([0, 1]), tensor([2, 1])],
    ):  # fmt: skip
        wanted = tuple([i.numpy() if isinstance(i, Tensor) else i for i in index])
        assert x[index].tolist() == VALUES[wanted].tolist()
    assert x[[1, 0]].tolist() == VALUES[[1, 0]].tolist() and x[[[0, 1], [1, 1]]].shape == (2, 2, 3, 4)
    x[[slice(None), [0, 2]]] = 0.0
    assert not x[:, 0].any() and x[:, 1].any()


def test_view_never_copies():
    x = tensor(np.zeros((2, 3)))
    x.view(6).fill_(1.0)
    assert x.sum().item() == 6
    with pytest.raises(StateError, match="view: needs a tensor whose memory fits the new shape"):
        x.t().view(6)


def convolved(weight=None):
    """A result that oneDNN stores with its channels innermost, and the weight that it was computed from."""
    if weight is None:
        weight = tensor(np.arange(432, dtype=np.float32).reshape(16, 3, 3, 3) / 432, requires_grad=True)
    return ops.conv2d(tensor(np.arange(384, dtype=np.float32).reshape(2, 3, 8, 8) / 384), weight), weight


def test_a_convolution_s_result_is_viewed_like_any_other():
    y, weight = convolved()
    before, flat = y.tolist(), y.view(2, -1)
    assert flat.tolist() == np.reshape(before, (2, -1)).tolist()
    flat.mul_(2)
    assert y.reshape(2, -1).tolist() == flat.tolist() == (2 * np.reshape(before, (2, -1))).tolist()
    y, weight = convolved()
    want = grad((2 * y).square().sum(), weight)[0]
    y, weight = convolved()
    assert grad(y.view(2, -1).mul_(2).square().sum(), weight)[0].tolist() == want.tolist()
    y, _ = convolved()
    assert y.view_as(y.reshape(4, -1)).shape == (4, 288)


@pytest.mark.cpu
@pytest.mark.parametrize("of", [lambda y: y.detach(), lambda y: y[0], lambda y: y[1:], lambda y: y.data[1][3:]])
def test_what_shares_memory_with_a_convolution_s_result_is_viewed_as_a_copy_that_cannot_change(of):
    y, weight = convolved()
    part = of(y)
    flat = part.view(-1)
    assert flat.tolist() == part.reshape(-1).tolist()
    if not np.may_share_memory(flat.array, y.array):  # without oneDNN some parts lie in the order that is asked for
        with pytest.raises(StateError, match="memory that can be written, got read-only memory"):
            flat.mul_(2)
    if flat.requires_grad:
        assert grad(flat.sum(), weight)[0].tolist() == grad(of(convolved(weight)[0]).sum(), weight)[0].tolist()


def test_axes_of_a_convolution_s_result_in_another_order_are_not_viewed():
    y, _ = convolved()
    for part in (y.transpose(2, 3), y[:, 2:], y[..., :2]):
        with pytest.raises(StateError, match="view: needs a tensor whose memory fits the new shape"):
            part.view(-1)


@pytest.mark.parametrize("name", ["split", "chunk", "unbind"])
def test_a_tensor_without_axes_has_no_pieces(name):
    with pytest.raises(ShapeError, match=f"{name}: needs a tensor with at least one axis"):
        getattr(ops, name)(tensor(1.0), *([] if name == "unbind" else [1]))


def test_no_lengths_add_up_to_nothing():
    with pytest.raises(ShapeError, match="split: needs lengths from 0 that add up to 3"):
        ops.split(tensor([1.0, 2.0, 3.0]), [])


def test_nothing_is_repeated_at_once_however_often():
    assert ops.repeat_interleave(ops.zeros(2, 0, 3), 2**40, 0).shape == (2**41, 0, 3)
    assert ops.repeat_interleave(ops.zeros(2, 0, 3), 2, 1).shape == (2, 0, 3)
