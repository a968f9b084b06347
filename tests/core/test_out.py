"""`out=`: every op and function writes its result into a tensor, as in PyTorch."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import ops


@pytest.fixture
def x():
    return ampkit.tensor([[1.0, 2.0], [3.0, 4.0]])


def test_an_empty_tensor_takes_the_shape_of_the_result_and_is_returned(x):
    for call in (
        lambda out: ops.add(x, 1, out=out),
        lambda out: ops.matmul(x, x, out=out),
        lambda out: ops.cat([x, x], out=out),
        lambda out: ops.stack([x, x], 1, out=out),
        lambda out: ops.sum(x, dim=0, out=out),
        lambda out: ops.einsum("ij,jk->ik", x, x, out=out),
        lambda out: ampkit.zeros(2, 3, out=out),
        lambda out: ampkit.arange(5, out=out),
        lambda out: ampkit.linalg.inv(x, out=out),
        lambda out: ampkit.special.i0e(x, out=out),
    ):
        out = ampkit.empty(0)
        assert call(out) is out
        assert ampkit.equal(out, call(None).to(out.dtype))


def test_the_result_is_rounded_to_the_dtype_of_out_and_written_into_its_memory(x):
    for dtype in (ampkit.float16, ampkit.bfloat16, ampkit.float64):
        held = ampkit.zeros(4, 2, dtype=dtype)
        ops.exp(x, out=held[1:3])
        assert ampkit.equal(held[1:3], ops.exp(x).to(dtype)) and not held[0].any() and not held[3].any()
    counts = ampkit.zeros(2, 2, dtype=ampkit.float32)
    assert ops.gt(x, 2, out=counts).tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_an_operand_may_be_overwritten(x):
    start = x.clone()
    assert ops.matmul(x, x, out=x) is x
    assert ampkit.equal(x, start @ start)
    assert ampkit.equal(ops.clamp(x, max=10, out=x), (start @ start).clamp(max=10))


def test_several_results_go_into_several_tensors(x):
    values, indices = ampkit.empty(0), ampkit.empty(0, dtype=ampkit.int64)
    found = ops.max(x, 1, out=(values, indices))
    assert found.values is values and found.indices is indices
    assert values.tolist() == [2.0, 4.0] and indices.tolist() == [1, 1]
    assert ops.topk(x, 1, out=(values.new_empty(0), indices.new_empty(0)))[0].tolist() == [[2.0], [4.0]]


def test_a_tensor_that_the_tape_saved_must_not_change_unseen(x):
    w = x.clone().requires_grad_()
    y = ops.exp(w)
    loss = (y * y).sum()
    with ampkit.no_grad():
        ops.add(x, 1, out=y)
    with pytest.raises(ampkit.StateError, match="changed in place"):
        loss.backward()


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda x: ops.add(x, 1.5, out=ampkit.zeros(2, 2, dtype=ampkit.int64)),
            "needs out of a dtype that holds float32",
        ),
        (lambda x: ops.add(x.long(), 1, out=ampkit.zeros(2, 2).bool()), "add: needs out of a dtype that holds int64"),
        (lambda x: ops.add(x, 1, out=ampkit.zeros(3)), "add: needs out of shape .2, 2., or without elements, got .3,."),
        (lambda x: ops.add(x.clone().requires_grad_(), 1, out=ampkit.zeros(2, 2)), "add: needs no gradient with out="),
        (lambda x: ops.cat([x, x.clone().requires_grad_()], out=ampkit.empty(0)), "cat: needs no gradient with out="),
        (lambda x: ops.add(x, 1, out=x.clone().requires_grad_()), "add: needs no gradient with out="),
        (lambda x: ops.add(x, 1, out=3), "add: needs out as a Tensor, or a tuple of them, got int"),
        (lambda x: ops.max(x, 1, out=ampkit.empty(0)), "max: needs out of 2 tensors, got 1"),
    ],
    ids=range(8),
)
def test_what_cannot_be_written_is_refused_and_changes_nothing(x, call, line):
    before = x.tolist()
    with pytest.raises(ampkit.AmpkitError, match=line):
        call(x)
    assert x.tolist() == before
