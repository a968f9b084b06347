"""Attributes that scripts hang on tensors: any name works, none reaches what the library keeps of a tensor."""

from __future__ import annotations

import copy
import pickle

import pytest

import ampkit
from ampkit import GradScaler, nn, optim

NAMES = (
    "tag",
    "version",
    "segment",
    "name",
    "copies",
    "views",
    "edge",
    "node",
    "lr_scale",
    "_no_weight_decay",
    "metadata",
)
OUR_OWN = {"array"}  # documented: the NumPy or CuPy array


def losses(mark):
    ampkit.manual_seed(0)
    model, x = nn.Linear(8, 8, bias=False), ampkit.arange(32).reshape(4, 8) / 32
    optimizer, scaler = optim.SGD(model.parameters(), 0.5), GradScaler("cpu")
    for _ in range(3):
        mark(model.weight)
        given = x.clone()
        mark(given)
        with ampkit.autocast(dtype=ampkit.bfloat16):
            loss = (model(given).float() - 1).pow(2).mean()
        mark(loss)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        yield loss.item()


@pytest.mark.parametrize("value", ["decay", 1])
@pytest.mark.parametrize("name", NAMES)
def test_training_does_not_read_the_attributes_of_scripts(name, value):
    assert list(losses(lambda t: setattr(t, name, value))) == list(losses(lambda t: None))
    t = ampkit.ones(2)
    setattr(t, name, value)
    assert getattr(t, name) == value and vars(t) == {name: value}


def test_attributes_stay_with_the_object():
    layer = nn.Linear(2, 2)
    weight = layer.weight
    weight.tag = "first"
    layer.double()
    weight.data = ampkit.zeros(2, 2)
    weight.requires_grad_(False)
    optim.SGD([layer.bias], lr=0.1)
    assert (layer.weight.tag, weight.to(ampkit.float32).tag) == ("first", "first")
    for other in (weight.detach(), weight.data, weight.clone(), weight.double(), nn.Parameter(weight), weight + 0):
        assert not hasattr(other, "tag")


@pytest.mark.parametrize("make", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer, lambda t: t])
def test_attributes_are_copied_and_pickled(make, kind):
    t = kind(ampkit.ones(2))
    t.groups = ["a"]
    t.version = 3
    twin = make(t)
    assert (type(twin), twin.tolist(), twin.groups, twin.version) == (type(t), [1, 1], ["a"], 3)
    assert twin.groups is not t.groups
    assert not vars(make(kind(ampkit.ones(2))))


def test_subclasses_of_parameter_keep_class_and_attributes():
    class Scaled(nn.Parameter):
        pass

    p = Scaled(ampkit.ones(2))
    p.scale = 2
    twin = copy.deepcopy(p)
    assert (type(twin), twin.scale) == (Scaled, 2)


def test_no_field_of_a_tensor_has_a_name_that_a_script_may_choose():
    fields = [name for name in ampkit.Tensor.__slots__ if name not in OUR_OWN]
    private = {"_grad", "_edge", "_segment", "_hooks"}
    assert all((name.startswith("_") and name.count("_") > 1) or name in private for name in fields)


def test_tensors_change_places():
    p, other = nn.Parameter(ampkit.ones(2)), nn.Parameter(ampkit.zeros(3, dtype=ampkit.float64), requires_grad=False)
    p.tag, memory = "p", p.data
    (p * 3).sum().backward()
    ampkit.utils.swap_tensors(p, other)
    assert (p.tolist(), p.dtype, p.requires_grad, p.grad, vars(p)) == ([0, 0, 0], ampkit.float64, False, None, {})
    assert (other.tolist(), other.requires_grad, other.grad.tolist(), other.tag) == ([1, 1], True, [3, 3], "p")
    memory.fill_(5)
    assert other.tolist() == [5, 5]
    t = ampkit.ones(1)
    ampkit.utils.swap_tensors(t, p)
    assert (type(t), type(p), p.tolist()) == (nn.Parameter, ampkit.Tensor, [1])
    with pytest.raises(ampkit.StateError, match="swap_tensors: needs leaves"):
        ampkit.utils.swap_tensors(t, other * 2)


def test_an_optimizer_trains_what_took_the_place_of_a_parameter():
    p, other = nn.Parameter(ampkit.ones(2)), nn.Parameter(ampkit.full((2,), 5.0))
    optimizer = optim.SGD([p], lr=1.0)
    ampkit.utils.swap_tensors(p, other)
    p.sum().backward()
    optimizer.step()
    assert (p.tolist(), other.tolist()) == ([4, 4], [1, 1])


def test_finfo_has_the_resolution_of_a_format():
    kinds = (ampkit.float16, ampkit.bfloat16, ampkit.float32, ampkit.float64)
    assert [ampkit.finfo(kind).resolution for kind in kinds] == [1e-3, 1e-2, 1e-6, 1e-15]
