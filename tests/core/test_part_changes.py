"""Changes in place of a part of memory: a backward that reads other elements goes on, one that reads these raises."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import StateError


class UncheckedAssign(ampkit.autograd.Function):
    """Writes into a part of a buffer through `.data`, as ODE solvers collect their stages."""

    @staticmethod
    def forward(ctx, buffer, value, index):
        ctx.index = index
        buffer.data[index] = value
        return buffer

    @staticmethod
    def backward(ctx, dy):
        return dy, dy[ctx.index], None


WRITES = {
    "data": lambda buffer, i, value: UncheckedAssign.apply(buffer, value, (..., i)),
    "item": lambda buffer, i, value: (buffer.__setitem__((..., i), value), buffer)[1],
    "view": lambda buffer, i, value: (buffer[..., i].copy_(value), buffer)[1],
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_stages_that_are_collected_in_one_buffer_have_the_gradient_of_stages_in_memory_of_their_own(write):
    rate = ampkit.tensor(0.5, dtype=ampkit.float64, requires_grad=True)
    start = ampkit.tensor([1.0, -2.0], dtype=ampkit.float64)

    buffer, stages = ampkit.zeros(2, 4, dtype=ampkit.float64), []
    for i in range(4):
        weights = ampkit.arange(1, i + 1, dtype=ampkit.float64)
        y = start + (buffer[..., :i] * weights * rate).sum(-1)
        buffer = write(buffer, i, (y * y * rate).sin())
    buffer.sum().backward()
    found, rate.grad = rate.grad.item(), None

    for _ in range(4):
        y = start + sum(((j + 1) * rate * stage for j, stage in enumerate(stages)), ampkit.zeros(2))
        stages.append((y * y * rate).sin())
    sum(stages).sum().backward()
    assert found == pytest.approx(rate.grad.item(), rel=1e-12)


CHANGES = [
    lambda x: x.data.__setitem__(slice(1, 3), 7.0),
    lambda x: x.data[2:4].mul_(2),
    lambda x: x.data.__setitem__(ampkit.tensor([0]), 7.0),  # which elements index arrays name is not kept
    lambda x: x.data.mul_(2),
    lambda x: [x.data.__setitem__(i, 7.0) for i in (1, 0, 0)],
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_an_element_that_backward_reads_raises(change):
    x, w = ampkit.tensor([1.0, 2.0, 3.0, 4.0]), ampkit.tensor(2.0, requires_grad=True)
    y = x[1::2] * w
    x[0] = 5.0
    x.data[2] = 6.0
    change(x)
    x[0] = 8.0
    with pytest.raises(StateError, match="`input` of mul changed in place since"):
        y.sum().backward()


def test_changes_of_elements_that_lie_between_those_that_backward_reads_are_no_error():
    x, w = ampkit.tensor([1.0, 2.0, 3.0, 4.0]), ampkit.tensor(2.0, requires_grad=True)
    y = x[1::2] * w
    x[0], x.data[2], x[:1] = 5.0, 6.0, 7.0
    y.sum().backward()
    assert w.grad.item() == 6


def test_a_change_of_a_part_after_one_of_everything_raises():
    x, w = ampkit.tensor([1.0, 2.0]), ampkit.tensor(2.0, requires_grad=True)
    y = x[1:] * w
    x *= 2
    x[0] = 5.0
    with pytest.raises(StateError, match="`input` of mul changed in place since"):
        y.sum().backward()


def test_a_function_that_saved_a_part_reads_it_after_changes_of_others():
    class Square(ampkit.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x)
            return x * x * w

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return None, (dy * x * x).sum()

    x, w = ampkit.tensor([1.0, 2.0, 3.0]), ampkit.tensor(2.0, requires_grad=True)
    y = Square.apply(x[1:], w)
    x[0] = 9.0
    y.sum().backward(retain_graph=True)
    assert w.grad.item() == 13
    x[1] = 9.0
    with pytest.raises(StateError, match="a tensor that Square saved changed in place since"):
        y.sum().backward()
