"""ampkit.compile on a GPU: what a launch does to its arguments and reads of them is what an eager call does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import memory

import ampkit
from ampkit import nn, optim
from ampkit.base.errors import StateError

CALLS = 6
Made = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], list[Any]]  # step, arguments of a call, what it changes


@pytest.fixture(autouse=True)
def device(gpu: Any) -> Iterator[Any]:
    """A GPU as the backend "cuda"."""
    yield gpu
    memory.hooks.clear()


def on(values: Any, **options: Any) -> Any:
    return ampkit.tensor(values, device="cuda", **options)


def numbers(values: Any) -> Any:
    """Values of tensors in nested lists."""
    if isinstance(values, ampkit.Tensor):
        return values.numpy(force=True).tolist()
    return [numbers(one) for one in values] if isinstance(values, (list, tuple)) else values


def outcome(make: Callable[[], Made], compiled: bool) -> tuple[list[Any], list[str]]:
    """What each call returns and leaves in its arguments, and what is left in the end; why calls ran eagerly."""
    ampkit.manual_seed(0)
    step, arguments, state = make()
    call = ampkit.compile(step, warmup=1) if compiled else step
    found = []
    for _ in range(CALLS):
        given = arguments()
        found.append((numbers(call(*given)), [numbers(one) for one in given if isinstance(one, (ampkit.Tensor, list))]))
    return [*found, numbers(state)], getattr(call, "eager_because", [])


# changes in place: recorded


def an_argument() -> Made:
    x = on([1.0, 2.0])
    return lambda x: (x.mul_(2), x + 1), lambda: (x,), []


def a_view_of_an_argument() -> Made:
    x = on([[1.0, 2.0], [3.0, 4.0]])
    return lambda x: (x.T[1:].mul_(2), x + 1), lambda: (x,), []


def an_argument_that_is_a_view() -> Made:
    base = on([1.0, 2.0, 3.0, 4.0])
    return lambda x: x.mul_(2).sum(), lambda: (base[::2],), [base]


def the_same_argument_twice() -> Made:
    x = on([1.0, 2.0])
    return lambda x, y: (x.mul_(2), y + x, x is y), lambda: (x, x), []


def weights_and_moments() -> Made:
    weight, moment = nn.Parameter(on([1.0, 2.0])), on([0.0, 0.0])

    @ampkit.no_grad()
    def step(weight: Any, gradient: Any, moment: Any) -> None:
        moment.mul_(0.9).add_(gradient)
        weight.sub_(moment, alpha=0.1)

    return step, lambda: (weight, on([1.0, 2.0]), moment), []


def out_of_an_op() -> Made:
    out = on([0.0, 0.0])
    return lambda x, out: ampkit.mul(x, 3.0, out=out) + 1, lambda: (on([1.0, 2.0]), out), []


def tensors_in_a_list() -> Made:
    held = [on([1, 2]), on([True, False])]
    return lambda held: (held[0].add_(1), held[1].logical_not_()), lambda: (held,), []


# other values, layouts and lengths: recorded, each kind once


def a_negative_zero() -> Made:
    signs = cycle([0.0, 0.0, -0.0])
    return lambda x, zero: ampkit.sign(1 / (x * zero)), lambda: (on([1.0]), next(signs)), []


def a_transposed_argument() -> Made:
    values, turns = np.arange(6, dtype="f").reshape(2, 3), cycle([True, True, False])

    def step(x: Any) -> Any:
        return (x * 2 if x.is_contiguous() else x * 3), x.stride()

    def arguments() -> Any:
        return (on(values).T if next(turns) else on(values.T.copy()),)

    return step, arguments, []


def an_argument_with_repeated_rows() -> Made:
    def step(x: Any) -> Any:
        y = ampkit.tan(x)
        y.flatten().fill_(0.5)  # a view of rows in their order
        return y * 1, x.stride()

    return step, lambda: (on([[1.0, 2.0]]).expand(3, 2),), []


def every_other_element_of_a_transposed_matrix() -> Made:
    values = on(np.arange(48, dtype="f").reshape(2, 4, 6))
    return lambda x: (x.mul_(2).sum(-1), x.stride()), lambda: (values.transpose(0, 2)[1::2, :3],), [values]


def a_length_on_the_cpu() -> Made:
    lengths = cycle([1, 1, 2])
    return lambda x, n: x[: int(n)] * 2, lambda: (on([1.0, 2.0]), ampkit.tensor(next(lengths), device="cpu")), []


RECORDED = [
    an_argument, a_view_of_an_argument, an_argument_that_is_a_view, the_same_argument_twice, weights_and_moments,
    out_of_an_op, tensors_in_a_list, a_negative_zero, a_transposed_argument, an_argument_with_repeated_rows,
    every_other_element_of_a_transposed_matrix, a_length_on_the_cpu,
]  # fmt: skip

# what no copy of an argument stands for: eager


def views_of_one_tensor() -> Made:
    x = on([1.0, 2.0, 3.0])
    return lambda x, y: (x.mul_(2), y + x), lambda: (x[:2], x[1:]), [x]


def what_the_step_changes_itself() -> Made:
    x = on([1.0, 2.0])
    return lambda y: (x.mul_(2), y + x), lambda: (x,), []


def what_it_changes_itself_and_not_at_first() -> Made:
    x, turns = on([1.0, 2.0]), cycle([False, False, False, True])
    return lambda y: (x.mul_(2), y + x), lambda: (x if next(turns) else on([1.0, 1.0]),), []


def weights_that_are_trained() -> Made:
    weight = nn.Parameter(on([1.0, 2.0]))
    optimizer = optim.SGD([weight], lr=0.1)

    def step(weight: Any, x: Any) -> None:
        ((weight * x) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda: (weight, on([1.0, 3.0])), []


def a_result_of_another_layer() -> Made:
    first, second = nn.Parameter(on([1.0, 2.0])), nn.Parameter(on([1.0, 1.0]))
    optimizer = optim.SGD([first, second], lr=0.1)

    def step(hidden: Any) -> None:
        ((hidden * second) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda: (first * 2,), [first, second]


def an_argument_that_joins_the_graph() -> Made:
    weight = nn.Parameter(on([1.0, 2.0]))

    def step(x: Any) -> None:
        x.mul_(weight)

    return step, lambda: (on([1.0, 1.0]),), []


def an_argument_with_a_gradient() -> Made:
    def step(x: Any) -> Any:
        return x * 1.0 if x.grad is None else x.grad * 2

    def arguments() -> Any:
        x = on([1.0, 2.0], requires_grad=True)
        (x * x).sum().backward()
        return (x,)

    return lambda x: step(x).detach(), arguments, []


def an_argument_with_a_hook() -> Made:
    def arguments() -> Any:
        x = on([1.0, 2.0], requires_grad=True)
        x.register_hook(lambda gradient: gradient * 3)
        return (x,)

    return lambda x: ampkit.grad((x * x).sum(), [x])[0], arguments, []


def a_column_of_a_large_matrix() -> Made:
    values = ampkit.ones(300, 1000, device="cuda")
    return lambda x: x * 2, lambda: (values[:, 0],), []


def many_values_of_the_cpu() -> Made:
    values = iter(range(CALLS))
    return lambda x, y: x * float((y + 1)[3]), lambda: (on([1.0]), ampkit.full((100,), next(values), device="cpu")), []


def a_generator() -> Made:
    generator = ampkit.Generator()
    return lambda x: ampkit.rand(3, generator=generator, device="cuda") + x, lambda: (on([1.0]),), []


EAGER = {
    views_of_one_tensor: "it changes memory that an argument shares",
    what_the_step_changes_itself: "needs arguments that share no memory with what the step changes",
    what_it_changes_itself_and_not_at_first: "it changes memory that an argument shares",
    weights_that_are_trained: "it reads or writes the gradient of an argument",
    a_result_of_another_layer: "its backward pass goes on beyond an argument",
    an_argument_that_joins_the_graph: "an argument is on the tape after it",
    an_argument_with_a_gradient: "it reads or writes the gradient of an argument",
    an_argument_with_a_hook: "an argument has hooks",
    a_column_of_a_large_matrix: "an argument is a view of much more memory",
    many_values_of_the_cpu: "it reads values of the CPU",
    a_generator: "needs the host",
}


@pytest.mark.parametrize("make", RECORDED, ids=lambda make: make.__name__)
def test_a_launch_leaves_in_its_arguments_what_an_eager_call_does(make):
    (eager, _), (found, why) = outcome(make, False), outcome(make, True)
    assert found == eager
    assert why == []


@pytest.mark.parametrize("make", EAGER, ids=lambda make: make.__name__)
def test_a_step_whose_arguments_no_copy_stands_for_runs_eagerly_and_says_why(make):
    eager, _ = outcome(make, False)
    with pytest.warns(RuntimeWarning, match="runs eagerly: "):
        found, why = outcome(make, True)
    assert found == eager
    assert len(why) == 1
    assert EAGER[make] in why[0]


def test_an_argument_that_shares_memory_with_trained_weights_is_an_error_that_names_the_cure():
    layer = nn.Linear(2, 1, bias=False).to("cuda")
    optimizer = optim.SGD(layer.parameters(), lr=0.1)

    @ampkit.compile(warmup=1)
    def step(x: Any, weight: Any) -> Any:
        loss = layer(x).sum() + weight.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x = on([[1.0, 2.0]])
    step(x, layer.weight.detach())
    with pytest.raises(StateError, match="arguments that share no memory with what the step changes.*\n.*clone"):
        step(x, layer.weight.detach())
    before = layer.weight.detach().clone()
    with pytest.warns(RuntimeWarning, match="runs eagerly"):
        step(x, layer.weight.detach())
    np.testing.assert_allclose(numbers(layer.weight), before.numpy(force=True) - [[0.1, 0.2]], rtol=1e-6)


def test_an_error_of_an_eager_call_is_one_in_each_call():
    def step(x: Any, y: Any) -> Any:
        z = x / y
        with ampkit.no_grad():
            x.detach().mul_(2), y.mul_(2)  # which share memory
        return ampkit.grad(z.sum(), [x])[0]

    call = ampkit.compile(step, warmup=1)
    for _ in range(3):
        x = on([1.0, 2.0]).requires_grad_()
        with pytest.raises(StateError, match="changed in place"):
            call(x, x.detach())
