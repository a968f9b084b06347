"""Sequential, ModuleList, ModuleDict, ParameterList."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

import ampkit
from ampkit import nn
from ampkit.base.errors import ArgumentError, DTypeError, RangeError, StateError
from ampkit.nn import Identity, Linear, Module, ModuleDict, ModuleList, Parameter, ParameterList, Sequential


class Add(Module):
    def __init__(self, text):
        super().__init__()
        self.text = text

    def forward(self, x):
        return x + self.text


def test_sequential_applies_its_modules_in_order():
    assert Sequential(Add("a"), Add("b"))("") == "ab"
    assert Sequential()("x") == "x"
    named = Sequential(OrderedDict(first=Add("a"), second=Add("b")))
    assert named("") == "ab"
    assert named.second.text == "b"
    assert [n for n, _ in named.named_children()] == ["first", "second"]


@pytest.mark.parametrize(
    "kind", [lambda *a: Sequential(*a), lambda *a: ModuleList(a)], ids=["Sequential", "ModuleList"]
)
def test_lists_of_modules_behave_like_lists(kind):
    a, b, c = Add("a"), Add("b"), Add("c")
    modules = kind(a, b)
    assert len(modules) == 2
    assert modules[0] is a
    assert modules[-1] is b
    assert list(modules) == [a, b]
    modules.append(c)
    assert list(modules[1:]) == [b, c]
    assert type(modules[1:]) is type(modules)
    modules.insert(0, c)
    assert [m.text for m in modules] == ["c", "a", "b", "c"]
    assert [n for n, _ in modules.named_children()] == ["0", "1", "2"]
    assert modules.pop() is c
    del modules[0]
    modules[0] = c
    assert list(modules) == [c, b]
    assert list(modules._modules) == ["0", "1"]
    modules.extend([a])
    assert list(modules) == [c, b, a]


def test_slices_of_a_named_sequential_keep_the_names():
    named = Sequential(OrderedDict(first=Add("a"), second=Add("b")))
    assert list(named[1:]._modules) == ["second"]


def test_wrong_entries_and_indices_are_refused():
    with pytest.raises(DTypeError, match="Sequential: needs entries of type Module, got a int"):
        Sequential(1)
    with pytest.raises(RangeError, match="ModuleList: needs an index below 1, got 1"):
        ModuleList([Identity()])[1]
    with pytest.raises(ArgumentError, match="ModuleDict: needs one of a, got 'b'"):
        ModuleDict({"a": Identity()})["b"]


def test_module_dict_registers_by_name():
    layers = ModuleDict({"a": Linear(1, 2)})
    layers["b"] = Identity()
    assert list(layers) == ["a", "b"]
    assert "a" in layers
    assert len(layers) == 2
    assert layers.a is layers["a"]
    assert list(layers.state_dict()) == ["a.weight", "a.bias"]
    layers.pop("a")
    assert list(layers.keys()) == ["b"]
    assert list(layers.items()) == [("b", layers["b"])]
    layers.clear()
    assert not list(layers.values())


def test_parameter_list_registers_by_number():
    class Model(Module):
        def __init__(self):
            super().__init__()
            self.weights = ParameterList([Parameter(np.ones(2)), Parameter(np.ones(3))])

    model = Model()
    model.weights.append(Parameter(np.ones(4)))
    assert [name for name, _ in model.named_parameters()] == ["weights.0", "weights.1", "weights.2"]
    assert model.weights[-1].shape == (4,)
    assert "2: Parameter [4] float64" in repr(model).replace("(2)", "2")


def test_lists_join():
    assert len(ModuleList([Identity()]) + [Identity()]) == 2  # noqa: RUF005


def test_sequentials_are_added_and_multiplied():
    a, b = nn.Linear(2, 2), nn.ReLU()
    assert list(nn.Sequential(a) + nn.Sequential(b)) == [a, b]
    assert list(nn.Sequential(a, b) * 2) == list(2 * nn.Sequential(a, b)) == [a, b, a, b]
    grown = nn.Sequential(a)
    grown += nn.Sequential(b)
    grown *= 2
    assert list(grown) == [a, b, a, b]
    assert list(grown.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for wrong in (lambda: grown + nn.ReLU(), lambda: grown * 0, lambda: grown * 1.5):
        with pytest.raises((TypeError, ValueError)):
            wrong()


def test_a_module_list_may_hold_none_for_a_layer():
    layers = nn.ModuleList([None, nn.Linear(2, 2)])
    layers.append(None)
    assert (len(layers), layers[0], list(layers.state_dict())) == (3, None, ["1.weight", "1.bias"])
    assert "(0): None" in repr(layers)


def test_a_parameter_list_holds_tensors_as_parameters_and_other_lists():
    inner = nn.ParameterList([ampkit.ones(1)])
    values = nn.ParameterList([ampkit.ones(2), inner])
    values.append(ampkit.zeros(3))
    assert [name for name, _ in values.named_parameters()] == ["0", "2", "1.0"]
    assert values[1] is inner
    values[1] = ampkit.ones(4)
    assert [tuple(p.shape) for p in values] == [(2,), (4,), (3,)]
    del values[0]
    assert list(values.state_dict()) == ["0", "1"]


def test_an_entry_without_a_module_is_named_where_it_is_called():
    layers = nn.Sequential(nn.ReLU(), nn.ReLU())
    layers.register_module("1", None)
    with pytest.raises(StateError, match="Sequential: needs a module in each entry, got None in '1'"):
        layers(ampkit.ones(2))


def test_a_sequential_takes_modules_before_any_position_and_no_further():
    layers = Sequential(Add("a"), Add("b"))
    assert layers.insert(-1, Add("c")).insert(3, Add("d"))("") == "acbd"
    with pytest.raises(RangeError, match="an index from -4 to 4, got -5"):
        layers.insert(-5, Add("e"))


def test_lists_of_parameters_and_modules_grow_by_any_sequence_in_place():
    grown, layers = ParameterList([Parameter(np.ones(1))]), ModuleList([Identity()])
    same = grown
    grown += [Parameter(np.zeros(1))]
    layers += (Add("a"),)
    assert same is grown
    assert [p.item() for p in grown] == [1, 0]
    assert [type(each) for each in layers] == [Identity, Add]
    with pytest.raises(TypeError):
        grown += 1


def test_dicts_take_pairs_and_a_plain_dict_of_parameters_gets_the_order_of_its_names():
    assert list(ModuleDict([("b", Identity()), ("a", Identity())])) == ["b", "a"]
    plain = {"b": Parameter(np.ones(1)), "a": Parameter(np.ones(1))}
    assert list(nn.ParameterDict(plain)) == ["a", "b"]
    assert list(nn.ParameterDict(OrderedDict(plain))) == list(nn.ParameterDict([*plain.items()])) == ["b", "a"]


def test_dir_lists_entries_by_name_but_not_by_number():
    outer = Sequential(OrderedDict(first=Identity(), second=Sequential(Identity())))
    assert {"first", "second"} <= set(dir(outer))
    assert "0" not in dir(outer.second)


def test_a_parameter_of_nothing_is_empty():
    assert (Parameter().shape, Parameter().dtype, Parameter().requires_grad) == ((0,), ampkit.float32, True)


def test_a_name_that_cannot_be_registered_is_a_key_error_and_a_missing_forward_is_not_implemented():
    outer = Module()
    outer.taken = 1
    for register in (outer.add_module, outer.register_module, outer.register_buffer, outer.register_parameter):
        for name in ("taken", "a.b", ""):
            with pytest.raises(KeyError, match="registering: needs a name"):
                register(name, None)
        with pytest.raises(TypeError, match="needs .*name"):
            register(1, None)
    with pytest.raises(NotImplementedError, match="ModuleList: needs a method `forward`"):
        ModuleList()(1)
