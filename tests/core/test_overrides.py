"""Subclasses of Tensor, and classes and modes that take over functions by `__torch_function__`."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops
from ampkit.core.dispatch import overrides
from ampkit.core.dispatch.overrides import DisableTorchFunction, DisableTorchFunctionSubclass, TorchFunctionMode


class Kept(ampkit.Tensor):
    """Results stay of the class."""


class Labelled(ampkit.Tensor):
    """A constructor of its own, and results that keep the label of the first argument that has one."""

    def __new__(cls, values, label=""):
        made = ampkit.Tensor._make_subclass(cls, ampkit.tensor(values))
        made.label = label
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        labels = [arg.label for arg in args if isinstance(arg, cls)]
        if isinstance(out, cls) and labels:
            out.label = f"{labels[0]}.{func.__name__}"
        return out


class Plain(ampkit.Tensor):
    """Takes over nothing."""

    __torch_function__ = overrides.disabled


def test_results_of_functions_and_methods_are_of_the_subclass():
    x = ampkit.tensor([[1.0, -2.0], [3.0, 4.0]])
    t = x.as_subclass(Kept)
    values, indices = t.max(dim=0)
    made = [
        t + 1, 2 - t, x * t, t @ x, -t, t[0], t.T, t.data, t.detach(), t.sum(), ops.relu(t), ops.cat([x, t]),
        ops.stack([t, t]), ops.zeros_like(t), t.to(ampkit.float64), values, indices, ops.interpolate(t[None, None], 4),
        nn.Linear(2, 3)(t), nn.functional.normalize(t), ampkit.linalg.norm(t), t == 1.0,
    ]  # fmt: skip
    assert [type(each) for each in made] == [Kept] * len(made)
    assert type(t.as_subclass(ampkit.Tensor)) is type(x + x) is ampkit.Tensor
    t.mul_(2)
    assert x.tolist() == [[2.0, -4.0], [6.0, 8.0]] and repr(t).startswith("Kept([[")
    t += 1
    assert type(t) is Kept and x[0, 0].item() == 3.0


def test_gradients_flow_through_a_change_of_class():
    leaf = ampkit.tensor([1.0, 2.0], requires_grad=True)
    loss = (leaf.as_subclass(Kept) * leaf).sum()
    assert type(loss) is Kept and not loss.is_leaf
    loss.backward()
    assert leaf.grad.tolist() == [2.0, 4.0]
    own = ampkit.Tensor._make_subclass(Kept, ampkit.ones(2), True)
    with ampkit.autocast(dtype=ampkit.bfloat16):
        out = ops.linear(own, nn.Parameter(ampkit.ones(3, 2)))
    assert type(out) is Kept and out.dtype == ampkit.bfloat16
    out.sum().backward()
    assert own.is_leaf and own.grad.tolist() == [3.0, 3.0]


def test_a_class_takes_over_functions_by_its_own_method():
    a, b = Labelled([1.0, 2.0], "a"), Labelled([3.0, 4.0], label="b")
    assert (a + b).label == "a.add" and (1 - b).label == "b.__rsub__" and a.exp().label == "a.exp"
    assert ops.logsumexp(b, 0).label == "b.logsumexp" and ops.pad(a, (1, 1)).label == "a.pad"
    for twin in (copy.deepcopy(a), pickle.loads(pickle.dumps(a)), copy.copy(a)):
        assert type(twin) is Labelled and twin.label == "a" and twin.tolist() == [1.0, 2.0]
    with DisableTorchFunctionSubclass():
        assert type(a + b) is ampkit.Tensor
    assert type(a + b) is Labelled


def test_parameters_and_classes_that_take_over_nothing_give_tensors():
    plain = ampkit.ones(2).as_subclass(Plain)
    assert type(plain * 2) is type(nn.Parameter(plain) * 2) is type(nn.Buffer(plain) + 1) is ampkit.Tensor
    assert type(plain * ampkit.ones(2).as_subclass(Kept)) is Kept
    assert ampkit.ones(2).requires_grad_().as_subclass(Plain).requires_grad


class Twice:
    """No tensor, and of functions it knows two."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is ops.add:
            return cls(sum(getattr(arg, "value", arg) for arg in args))
        if func is ops.stack:
            return [each.value for each in args[0]], kwargs
        if func is ops.zeros_like:
            return "zeros"
        return NotImplemented


def test_objects_that_are_no_tensors_take_over_functions_too():
    assert ops.add(Twice(2), 3).value == 5 and ops.add(ampkit.ones(()), Twice(2)).value.item() == 3.0
    assert ops.stack([Twice(1), Twice(2)], dim=1) == ([1, 2], {"dim": 1})
    assert ops.zeros_like(Twice(1)) == "zeros"
    for call in (lambda: ops.exp(Twice(1)), lambda: ops.cat([Twice(1)]), lambda: ops.flip(Twice(1), [0])):
        with pytest.raises(TypeError, match=r"no class of its arguments implements it .*: .*Twice"):
            call()


def test_the_most_derived_class_is_asked_first_and_may_decline():
    class Declines(Kept):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append([each.__name__ for each in types])
            return NotImplemented

    asked = []
    x = ampkit.ones(2)
    with pytest.raises(TypeError, match="add: no class"):
        x.as_subclass(Kept) + x.as_subclass(Declines)
    assert asked == [["Declines", "Kept"]]


class Records(TorchFunctionMode):
    def __init__(self):
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_the_calls_within_its_block():
    x, elsewhere = ampkit.ones(2), []
    with Records() as outer, Records() as inner:
        ops.exp(x)
        y = ampkit.zeros(2) + x * 2
        ops.stack([x, y])
        assert overrides.modes() == (outer, inner)
        thread = threading.Thread(target=lambda: elsewhere.append(ops.exp(x)))
        thread.start()
        thread.join()
        with DisableTorchFunction():
            ops.exp(x)
    assert inner.names == ["exp", "zeros", "mul", "add", "stack"] and outer.names == inner.names
    assert len(elsewhere) == 1 and type(elsewhere[0]) is ampkit.Tensor
    ops.exp(x)
    assert len(inner.names) == 5 and {ampkit.Tensor, nn.Parameter} <= overrides.PLAIN and not overrides.modes()
    with pytest.raises(NotImplementedError, match="needs a method __torch_function__"), TorchFunctionMode():
        ops.exp(x)


@pytest.mark.parametrize("wrong", [int, list, 3, None])
def test_another_class_raises(wrong):
    with pytest.raises(TypeError, match="as_subclass: needs a subclass of Tensor"):
        ampkit.ones(2).as_subclass(wrong)


def test_a_subclass_with_slots_of_its_own_raises():
    class Slotted(ampkit.Tensor):
        __slots__ = ("more",)

    with pytest.raises(TypeError, match="without slots of its own, got Slotted"):
        ampkit.ones(2).as_subclass(Slotted)


def test_a_constructor_may_go_on_to_those_of_tensor():
    class Deep(ampkit.Tensor):
        def __new__(cls, values, scale=1.0):
            return super().__new__(cls, np.asarray(values, np.float32))

        def __init__(self, values, scale=1.0):
            super().__init__()
            self.scale = scale

    made = Deep([1.0, 2.0], scale=3.0)
    assert type(made) is type(made + 1) is Deep and made.tolist() == [1.0, 2.0] and made.scale == 3.0
    assert Kept([1.0, 2.0]).tolist() == [1.0, 2.0] and type(Kept(2, 3)) is Kept


def test_functions_of_pytorch_itself_are_refused():
    def relu(x):
        return type(x).__torch_function__(relu, (type(x),), (x,))  # as they ask the class of an argument

    relu.__module__ = "torch.nn.functional"
    assert relu(ampkit.ones(2)) is NotImplemented  # which they raise TypeError for


def test_tensors_of_pytorch_itself_take_over_nothing_and_are_converted_or_refused():
    base = type("TensorBase", (), {"__module__": "torch._C"})

    class Foreign(base):  # as torch.Tensor is: its method calls the function again
        dtype = np.dtype(np.float32)

        def __array__(self, dtype=None, copy=None):
            return np.array([1.0, 2.0], np.float32)

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    assert ampkit.tensor(Foreign()).tolist() == [1.0, 2.0]
    for function in (nn.Linear(2, 2), ops.relu, lambda x: ops.add(ampkit.ones(2), x)):
        with pytest.raises(ampkit.AmpkitError, match="needs (a Tensor|Tensors and numbers), got"):
            function(Foreign())
