"""Tensors, graphs, hooks and tools are freed as soon as the program drops them, without Python's collector."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import garbage
import numpy as np
import pytest

import ampkit
from ampkit import debug, nn, ops, optim
from ampkit.autograd import Function, functional, graph
from ampkit.base.errors import AmpkitError
from ampkit.utils import data

WORKS: dict[str, Any] = {}


def work(function: Any) -> Any:
    WORKS[function.__name__] = function
    return function


def leaf(*shape: int) -> ampkit.Tensor:
    return ampkit.ones(*(shape or (3, 4)), requires_grad=True)


def new_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())


def fails(function: Any) -> None:
    with pytest.raises((AmpkitError, ValueError)) as caught:
        function()
    del caught  # it refers to this frame


@work
def leaves() -> None:
    x = leaf()
    (x * 2).sum().backward()
    x.grad = None
    x.requires_grad_(False).requires_grad_().detach().add_(1)
    nn.Parameter(x)


@work
def second_derivatives() -> None:
    x = leaf()
    (gradient,) = ampkit.grad((x * x * x).sum() + ops.softmax(x, 1).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    (x * x).sum().backward(create_graph=True)
    x.grad = None
    functional.hessian(lambda x: (x * x * x).sum(), ampkit.ones(3))


@work
def hooks() -> None:
    x = leaf()
    x.register_hook(lambda gradient: gradient * 2).remove()
    x.register_hook(lambda gradient: gradient * 2)
    x.register_post_accumulate_grad_hook(lambda x: None)
    y = x * 2
    y.register_hook(lambda gradient: None)
    y.retain_grad()
    y.grad_fn.register_hook(lambda *gradients: None)
    y.grad_fn.register_prehook(lambda *gradients: None)
    y.grad_fn.next_functions[0][0].register_hook(lambda *gradients: None)
    graph.register_multi_grad_hook([x, y], lambda gradients: None)
    edge = graph.get_gradient_edge(y)
    z = y.exp().sum()
    ampkit.grad(z, edge, retain_graph=True)
    z.backward()


@work
def saved_tensors() -> None:
    with graph.saved_tensors_hooks(lambda x: x.numpy(), ampkit.tensor):
        y = (leaf() * 2).exp()
    y.sum().backward()
    with graph.save_on_cpu():
        y = (leaf() * 2).exp()
    y.sum().backward()
    with graph.allow_mutation_on_saved_tensors():
        y = leaf() * 2
        z = y * y
        y.add_(1)
        z.sum().backward()


@work
def views_and_changes_in_place() -> None:
    y = leaf() * 2
    y[1].mul_(3)
    y[:, 0] = 1
    y.t_()
    y.add_(1).unsqueeze_(0).reshape(12)[2:].exp_()
    y.sum().backward()
    z = ampkit.zeros(4)
    z[:2].add_(leaf(2))
    z.sum().backward()
    with ampkit.no_grad():
        leaf()[0] = 3


class Exp(Function):
    @staticmethod
    def forward(ctx: Any, x: ampkit.Tensor) -> ampkit.Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        ctx.x = x
        return y

    @staticmethod
    def backward(ctx: Any, dy: ampkit.Tensor) -> ampkit.Tensor:
        return ctx.saved_tensors[1] * dy


class AddOne(Function):
    @staticmethod
    def forward(ctx: Any, x: ampkit.Tensor) -> ampkit.Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, dy: ampkit.Tensor) -> ampkit.Tensor:
        return dy


@work
def functions() -> None:
    for function in (Exp, AddOne):
        function.apply(leaf() * 2).sum().backward()
        function.apply(leaf() * 2)
    x = leaf()
    ampkit.grad(Exp.apply(x * 2).sum(), x, create_graph=True)[0].sum().backward()


@work
def recomputed() -> None:
    model, x = new_model(), leaf()
    ampkit.recompute(model, x).sum().backward()
    ampkit.recompute(model, x)


@work
def regions() -> None:
    model, x = new_model(), leaf()
    with ampkit.autocast(dtype=ampkit.bfloat16):
        model(x).sum().backward()

    @ampkit.autocast(dtype=ampkit.float16)
    def batches() -> Any:
        yield model(x)
        yield model(x)

    suspended = batches()
    next(suspended)

    async def forward() -> None:
        with ampkit.autocast(dtype=ampkit.float16):
            y = model(x)
            await asyncio.sleep(0)
            y.sum().backward()

    asyncio.run(forward())
    thread = threading.Thread(target=lambda: model(x).sum().backward())
    thread.start()
    thread.join()


@work
def compiled_steps() -> None:
    model = new_model()
    optimizer = optim.SGD(model.parameters(), 0.1)

    @ampkit.compile
    def step(x: ampkit.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    step(leaf())
    ampkit.compile(model)(leaf()).sum().backward()


@work
def tools() -> None:
    model, seen = new_model(), []
    with debug.detect_nonfinite(), ampkit.autograd.detect_anomaly():
        model(leaf()).sum().backward()
    debug.explain(lambda: (model(leaf()) / 0).sum().backward(), underflow=True)
    with ampkit.profile() as profile:
        model(leaf()).sum().backward()
    str(profile)
    with ampkit.observe.watch(lambda *event: seen.append(event[0])):
        model(leaf()).sum().backward()
    str(debug.plan(model, (leaf(),)))


@work
def errors() -> None:
    model, x = new_model(), leaf()

    def refuse(*given: Any) -> None:
        raise ValueError

    for function in (
        lambda: model(leaf(3, 5)),
        lambda: model(x).backward(),
        lambda: x + "a",
        lambda: model.load_state_dict({}),
        lambda: ops.cross_entropy(x, ampkit.tensor([9, 9, 9])),
        lambda: optim.SGD([], 0.1),
        lambda: ampkit.recompute(refuse, x),
        lambda: ampkit.GradScaler().step(optim.SGD(model.parameters(), 0.1)),
    ):
        fails(function)
    (y := x * 2).register_hook(refuse)
    fails(y.sum().backward)
    y = x * 2
    row, z = y[0], y * y
    row.add_(1)
    fails(z.sum().backward)
    (y := (x * x).sum()).backward()
    fails(y.backward)
    with pytest.raises(AmpkitError) as caught, debug.detect_nonfinite():
        (model(x) / 0).sum().backward()
    del caught


@work
def loaders() -> None:
    items = data.TensorDataset(ampkit.ones(10, 4), ampkit.arange(10))
    loader = data.DataLoader(items, batch_size=3, shuffle=True)
    assert len(list(loader)) == 4
    next(iter(loader))  # an epoch that is left
    data.DataLoader(items, sampler=data.WeightedRandomSampler([1.0] * 10, 3))
    list(data.BatchSampler(data.SequentialSampler(items), 3, drop_last=False))
    data.random_split(items, [5, 5])


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")  # on a GPU, as its leaf has no optimizer
def test_what_is_dropped_leaves_nothing_behind():
    assert not garbage.left_behind(WORKS)


@pytest.mark.usefixtures("no_collector")
def test_a_graph_holds_its_leaf_and_a_view_its_memory():
    seen: list[Any] = []
    x = leaf(3)
    x.register_hook(lambda gradient: seen.append(gradient.tolist()))
    y, held = x * 2, weakref.ref(x)
    del x
    assert held() is not None
    y.sum().backward()
    assert seen == [[2, 2, 2]]
    del y
    assert held() is None
    x = leaf(3)
    view, held, array = x[1:], weakref.ref(x), weakref.ref(x.array)
    del x
    assert held() is not None and array() is not None
    del view
    assert held() is None and array() is None


def test_a_hook_that_refers_to_its_own_leaf_is_left_to_the_collector():
    def hooked() -> Any:
        x = leaf(3)
        held = {x: x}
        x.register_hook(lambda gradient: held[x] * 2)
        x.register_post_accumulate_grad_hook(lambda p: held[p])
        x.view_as(x).grad_fn.next_functions[0][0].register_hook(lambda *gradients: held.clear())
        return weakref.ref(x)

    reference = hooked()
    gc.collect()
    assert reference() is None


@pytest.mark.usefixtures("no_collector")
def test_a_gradient_outlives_its_leaf():
    x = leaf(3)
    (x * 2).sum().backward()
    gradient, held = x.grad, weakref.ref(x)
    del x
    assert held() is None
    assert np.array_equal(gradient.numpy(), [2, 2, 2])
