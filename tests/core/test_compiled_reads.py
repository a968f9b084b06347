"""ampkit.compile: every kind of place on the host where a step reads, and steps that change what they read."""

from __future__ import annotations

import functools
import itertools
import random
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from types import MethodType

import numpy as np
import pytest
from cuda_on_cpu import memory

import ampkit
from ampkit import nn, ops, optim
from ampkit.autograd import Function
from ampkit.base import observe

VARIABLE = ContextVar("variable", default=1.0)
FACTOR, COUNT = 1.0, 0


@pytest.fixture(autouse=True)
def device(gpu):
    """A GPU as the backend "cuda"."""
    yield gpu
    memory.hooks.clear()


@dataclass
class Config:
    """Numbers of a script."""

    scale: float = 1.0
    sizes: tuple[float, ...] = (1.0, 2.0)


class Slotted:
    """A number in a slot."""

    __slots__ = ("scale",)

    def __init__(self):
        self.scale = 1.0


class Item:
    """A callable whose class decides, with a property."""

    weight = 1.0

    def __init__(self):
        self._scale = 1.0

    @property
    def scale(self):
        return self._scale * self.weight

    def __call__(self, x):
        return x * self._scale


class Scaled(Function):
    """A Function that reads a global."""

    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, dy):
        return dy * FACTOR


def set_global(name, value):
    before = globals()[name]
    globals()[name] = value
    return lambda: globals().__setitem__(name, before)


def set_attribute(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def set_item(owner, key, value):
    before = owner[key]
    owner[key] = value
    return lambda: owner.__setitem__(key, before)


# Each returns a step and a change, which returns what undoes it.


def dataclass_attribute():
    config = Config()
    return lambda x: x * config.scale, lambda: set_attribute(config, "scale", 3.0)


def tuple_of_an_attribute():
    config = Config()
    return lambda x: x * config.sizes[1], lambda: set_attribute(config, "sizes", (1.0, 3.0))


def slot():
    held = Slotted()
    return lambda x: x * held.scale, lambda: set_attribute(held, "scale", 3.0)


def callable_object():
    held = Item()
    return lambda x: held(x), lambda: set_attribute(held, "_scale", 3.0)


def property_of_an_object():
    held = Item()
    return lambda x: x * held.scale, lambda: set_attribute(held, "_scale", 3.0)


def attribute_by_its_name():
    held = Item()
    return lambda x: x * getattr(held, "_scale"), lambda: set_attribute(held, "_scale", 3.0)  # noqa: B009


def attribute_that_is_missing():
    held = Item()

    def change():
        held.boost = 3.0
        return lambda: delattr(held, "boost")

    return lambda x: x * getattr(held, "boost", 1.0), change


def attribute_of_a_tensor_that_is_missing():
    held = ampkit.ones(6, device="cuda")

    def change():
        held.boost = 3.0
        return lambda: delattr(held, "boost")

    return lambda x: x * held * getattr(held, "boost", 1.0), change


def default_argument():
    def step(x, factor=[1.0]):  # noqa: B006  what scripts do
        return x * factor[0]

    return step, lambda: set_item(step.__defaults__[0], 0, 3.0)


def partial_keyword():
    factors = {"value": 1.0}
    step = functools.partial(lambda x, factors: x * factors["value"], factors=factors)
    return step, lambda: set_item(factors, "value", 3.0)


def decorated_function():
    config = Config()

    def doubled(function):
        @functools.wraps(function)
        def call(x):
            return function(x) * config.scale

        return call

    return doubled(lambda x: x + 1), lambda: set_attribute(config, "scale", 3.0)


def inner_function():
    factor = 1.0

    def step(x):
        def scaled(y):
            return y * factor

        return scaled(x)

    def change():
        nonlocal factor
        factor = 3.0

        def undo():
            nonlocal factor
            factor = 1.0

        return undo

    return step, change


def numpy_number():
    held = {"factor": np.float32(1.0)}
    return lambda x: x * held["factor"], lambda: set_item(held, "factor", np.float32(3.0))


def element_of_an_array():
    held = np.ones(3, "f")
    return lambda x: x * float(held[1]), lambda: set_item(held, 1, 3.0)


def tensor_of_the_cpu():
    held = ampkit.tensor(1.0, device="cpu")

    def change():
        held.fill_(3.0)
        return lambda: held.fill_(1.0)

    return lambda x: x * held.item(), change


def attribute_of_a_tensor():
    held = ampkit.ones(6, device="cuda")
    held.factor = 1.0
    return lambda x: x * held * held.factor, lambda: set_attribute(held, "factor", 3.0)


def item_of_a_deque():
    held = deque([1.0, 2.0])
    return lambda x: x * held[-1], lambda: set_item(held, -1, 3.0)


def another_item():
    held = [1.0]

    def change():
        held.append(3.0)
        return held.pop

    return lambda x: x * sum(held), change


def member_of_a_set():
    held = {"scale"}

    def change():
        held.clear()
        return lambda: held.add("scale")

    return lambda x: x * 2 if "scale" in held else x, change


def context_variable():
    def change():
        token = VARIABLE.set(3.0)
        return lambda: VARIABLE.reset(token)

    return lambda x: x * VARIABLE.get(), change


def global_of_a_function():
    return Scaled.apply, lambda: set_global("FACTOR", 3.0)


def learning_rate_on_the_host():
    model = nn.Linear(6, 6).to("cuda")
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    return lambda x: x * optimizer.param_groups[0]["lr"], lambda: set_item(optimizer.param_groups[0], "lr", 3.0)


def forward_of_a_layer():
    layer = nn.ReLU()

    def change():
        layer.forward = MethodType(lambda self, x: ops.relu(x) * 3, layer)
        return lambda: delattr(layer, "forward")

    return lambda x: layer(x), change


def closure_of_a_hook():
    layer, config = nn.ReLU(), Config()
    layer.register_forward_hook(lambda module, args, out: out * config.scale)
    return lambda x: layer(x), lambda: set_attribute(config, "scale", 3.0)


def list_of_layers():
    layers = [nn.Tanh(), nn.LeakyReLU(0.5)]

    def step(x):
        for layer in layers:
            x = layer(x)
        return x

    return step, lambda: set_item(layers, 1, nn.LeakyReLU(0.1))


PLACES = [
    dataclass_attribute, tuple_of_an_attribute, slot, callable_object, property_of_an_object, attribute_by_its_name,
    attribute_that_is_missing, attribute_of_a_tensor_that_is_missing,
    default_argument, partial_keyword, decorated_function, inner_function, numpy_number, element_of_an_array,
    tensor_of_the_cpu, attribute_of_a_tensor, item_of_a_deque, another_item, member_of_a_set, context_variable,
    global_of_a_function, learning_rate_on_the_host, forward_of_a_layer, closure_of_a_hook,
    list_of_layers,
]  # fmt: skip


def results(place, compiled):
    """What each call returns: two calls as it is, two after the change, two after it is undone; and the step."""
    step, change = place()
    step, found = ampkit.compile(step, warmup=1) if compiled else step, []
    x = ampkit.tensor(np.linspace(-2, 2, 6).astype("f"), device="cuda")

    def two_calls():
        with ampkit.no_grad():
            found.extend(step(x).numpy() for _ in range(2))

    two_calls()
    undo = change()
    two_calls()
    undo()
    two_calls()
    return found, step


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_step_is_recorded_anew_where_what_it_reads_has_changed_and_not_where_it_is_as_before(place):
    want, _ = results(place, False)
    got, step = results(place, True)
    assert not np.array_equal(want[0], want[2])
    np.testing.assert_array_equal(got, want)
    assert [kind.graph.recording is not None for kind in step._variants.values()] == [True, True]


def test_an_attribute_of_an_argument_is_compared():
    config, x = Config(), ampkit.ones(2, device="cuda")
    step = ampkit.compile(lambda x, config: x * config.scale, warmup=1)
    with ampkit.no_grad():
        for config.scale in (1.0, 1.0, 3.0, 3.0, 1.0):
            assert step(x, config).tolist() == [config.scale] * 2
    assert [kind.graph.recording is not None for kind in step._variants.values()] == [True, True]


def test_a_number_in_the_hook_of_a_leaf_is_compared():
    found = []
    for compiled in (False, True):
        ampkit.manual_seed(0)
        model, config = nn.Linear(3, 1).to("cuda"), Config()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        model.weight.register_hook(lambda gradient, config=config: gradient * config.scale)

        def train(x, model=model, optimizer=optimizer):
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step, losses = ampkit.compile(train, warmup=1) if compiled else train, []
        for config.scale in (1.0, 1.0, 3.0, 3.0, 3.0, 1.0):
            losses.append(step(ampkit.ones(2, 3, device="cuda")).item())
        found.append(losses)
    assert found[0] == found[1]
    assert [kind.graph.recording is not None for kind in step._variants.values()] == [True, True]


# Each returns a step that changes what it reads, or what others read.


def global_counter():
    def step(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    return step


def attribute_counter():
    config = Config()

    def step(x):
        config.scale += 1
        return x * config.scale

    return step


def results_in_a_list():
    held = []

    def step(x):
        held.append(x * 2)
        return sum(held[1:], held[0])

    return step


def appended_results():
    held = []
    keep = held.append

    def step(x):
        keep(x * 2)
        return x * len(held)

    return step


def result_in_an_attribute():
    config, seen = Config(), []

    def step(x):
        config.last = x * 2
        return x

    def last(x):
        step(x)
        seen.append(config.last)
        return seen[0]

    return last


def state_in_an_attribute():
    config = Config()

    def step(x):
        config.state = getattr(config, "state", 0.0) * 0.5 + x
        return config.state * 1

    return step


def state_in_an_item():
    states = {}

    def step(x):
        states["h"] = states.get("h", 0.0) * 0.5 + x
        return states["h"] * 1

    return step


def state_in_a_buffer():
    layer = nn.Module()
    layer.register_buffer("mean", ampkit.zeros(2, device="cuda"))

    def step(x):
        layer.mean = layer.mean * 0.5 + x
        return layer.mean * 1

    return step


def count_of_itertools():
    numbers = itertools.count()
    return lambda x: x * next(numbers)


def python_generator():
    numbers = (float(n) for n in range(100))
    return lambda x: x * next(numbers)


def random_of_python():
    random.seed(0)
    return lambda x: x * random.random()


def random_of_numpy():
    generator = np.random.default_rng(0)
    return lambda x: x * generator.normal()


def global_random_of_numpy():
    np.random.seed(0)
    return lambda x: x * np.random.rand()


CHANGING = [
    global_counter, attribute_counter, results_in_a_list, appended_results, result_in_an_attribute,
    state_in_an_attribute, state_in_an_item, state_in_a_buffer,
    count_of_itertools, python_generator,
    random_of_python, random_of_numpy, global_random_of_numpy,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")
@pytest.mark.parametrize("make", CHANGING, ids=lambda make: make.__name__)
def test_a_step_that_changes_what_it_reads_on_the_host_runs_eagerly(make):
    found = []
    for compiled in (False, True):
        set_global("COUNT", 0)
        step = ampkit.compile(make(), warmup=1) if compiled else make()
        with ampkit.no_grad():
            found.append([step(ampkit.full((2,), float(n), device="cuda")).numpy() for n in range(1, 6)])
    np.testing.assert_array_equal(*found)
    assert len(step._variants) == 1
    (reason,) = step.eager_because
    assert reason.startswith("the step changes on the host what it reads: ")
    if make is random_of_python:
        assert reason.endswith("state of python random")


@pytest.mark.filterwarnings("ignore:compile. runs eagerly")
def test_a_step_that_advances_a_schedule_runs_eagerly():
    found = []
    for compiled in (False, True):
        ampkit.manual_seed(0)
        model = nn.Linear(3, 1).to("cuda")
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        schedule = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

        def train(x, model=model, optimizer=optimizer, schedule=schedule):
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            return loss.detach()

        step = ampkit.compile(train, warmup=2) if compiled else train
        found.append([step(ampkit.ones(2, 3, device="cuda")).item() for _ in range(7)])
    assert found[0] == found[1]
    assert step.eager_because == ["the step changes on the host what it reads: position of a schedule"]


def test_a_value_that_the_first_call_keeps_for_later_ones_does_not_prevent_a_recording():
    class Lazy:
        mask = None

        def step(self, x):
            if self.mask is None:
                self.mask = ampkit.full((2,), 2.0, device="cuda")
            return x * self.mask

    lazy = Lazy()
    step = ampkit.compile(lazy.step, warmup=1)
    with ampkit.no_grad():
        for _ in range(3):
            assert step(ampkit.ones(2, device="cuda")).numpy().tolist() == [2, 2]
        lazy.mask = ampkit.full((2,), 3.0, device="cuda")
        for _ in range(3):
            assert step(ampkit.ones(2, device="cuda")).numpy().tolist() == [3, 3]
    assert [kind.graph.recording is not None for kind in step._variants.values()] == [True, True]


def test_an_observer_sees_the_ops_of_a_recorded_step():
    step = ampkit.compile(lambda x: ops.relu(x) + 1, warmup=1)
    x = ampkit.ones(2, device="cuda")
    with ampkit.no_grad():
        for _ in range(3):
            step(x)
        seen: list[str] = []
        with observe.observing(lambda event: seen.append(event.name)):
            step(x)
    assert seen == ["relu", "add"]
