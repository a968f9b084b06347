"""Module: registration, traversal, modes, moving, hooks, repr."""

from __future__ import annotations

import copy
import pickle
from typing import get_type_hints

import numpy as np
import pytest

import ampkit
from ampkit import Tensor, nn, optim, tensor
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DeviceError, DTypeError, StateError
from ampkit.nn import Identity, Linear, Module, ModuleList, Parameter, Sequential
from ampkit.optim import SGD


class Pair(Module):
    def __init__(self, tied=False):
        super().__init__()
        self.first, self.second = Linear(2, 3), Linear(2, 3)
        self.scale = Parameter(np.ones(1, np.float32))
        self.register_buffer("count", tensor(0))
        self.register_buffer("scratch", tensor([1.0]), persistent=False)
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x):
        return x


NAMES = ["scale", "first.weight", "first.bias", "second.weight", "second.bias"]


def test_assignment_registers_parameters_and_modules():
    pair = Pair()
    assert [name for name, _ in pair.named_parameters()] == NAMES
    assert [name for name, _ in pair.named_buffers()] == ["count", "scratch"]
    assert [name for name, _ in pair.named_children()] == ["first", "second"]
    assert [name for name, _ in pair.named_modules()] == ["", "first", "second"]
    assert len(list(pair.parameters(recurse=False))) == 1


def test_the_annotations_of_every_layer_can_be_resolved():
    for kind in vars(nn).values():
        if isinstance(kind, type) and issubclass(kind, nn.Module):
            assert get_type_hints(kind)["training"] is bool


def test_a_name_lives_in_one_table_only():
    pair = Pair()
    pair.scale = Linear(1, 1)
    assert "scale.weight" in dict(pair.named_parameters())
    assert "scale" not in dict(pair.named_parameters())
    pair.first = None
    assert "first" in pair._modules
    assert pair.first is None
    assert "first" not in dict(pair.named_children())
    del pair.second
    assert not hasattr(pair, "second")


def test_a_tensor_in_the_place_of_a_parameter_is_refused():
    with pytest.raises(
        DTypeError, match=r"Pair\.scale: needs a Parameter or None, got a Tensor\nhelp: to set its values"
    ):
        Pair().scale = tensor([1.0])


def test_a_buffer_can_be_replaced_by_a_tensor():
    pair = Pair()
    pair.count = tensor(3)
    assert dict(pair.named_buffers())["count"].item() == 3


def test_assignment_before_init_says_what_to_call():
    class Hasty(Module):
        def __init__(self):
            self.part = Identity()

    with pytest.raises(StateError, match=r"help: call super\(\).__init__\(\) first"):
        Hasty()


@pytest.mark.parametrize("name", ["", "a.b", "training", "forward"])
def test_names_that_cannot_be_registered_are_refused(name):
    with pytest.raises(ArgumentError, match="registering"):
        Pair().register_buffer(name, tensor(1.0))


def test_tied_parameters_are_listed_once_but_saved_under_both_names():
    pair = Pair(tied=True)
    assert "second.weight" not in dict(pair.named_parameters())
    assert "second.weight" in dict(pair.named_parameters(remove_duplicate=False))
    assert {"first.weight", "second.weight"} <= set(pair.state_dict())


def test_listing_gives_parameters_their_longest_name():
    pair = Pair()
    outer = ModuleList([pair])
    list(pair.first.parameters())
    assert pair.first.weight._dotted_name == "weight"
    list(outer.parameters())
    list(pair.parameters())
    assert pair.first.weight._dotted_name == "0.first.weight"


def test_parts_are_found_by_dotted_name():
    pair = Pair()
    assert pair.get_submodule("first") is pair.first
    assert pair.get_submodule("") is pair
    assert pair.get_parameter("second.bias") is pair.second.bias
    assert pair.get_buffer("count") is pair.count
    with pytest.raises(ArgumentError, match=r"'first.wieght'\nhelp: did you mean 'first.weight'"):
        pair.get_parameter("first.wieght")


def test_train_and_eval_reach_every_module():
    pair = Pair()
    assert pair.eval() is pair
    assert not any(m.training for m in pair.modules())
    assert all(m.training for m in pair.train().modules())
    with pytest.raises(ArgumentError, match="mode True or False"):
        pair.train("yes")


def test_apply_visits_the_parts_before_the_whole():
    seen = []
    pair = Pair()
    pair.apply(seen.append)
    assert seen == [pair.first, pair.second, pair]


@pytest.mark.cpu
def test_freezing_and_zero_grad_reach_every_parameter():
    pair = Pair()
    for parameter in pair.parameters():
        parameter.grad = Tensor(np.ones(parameter.shape, np.float32))
    pair.zero_grad(set_to_none=False)
    assert all(not p.grad.array.any() for p in pair.parameters())
    pair.zero_grad()
    assert all(p.grad is None for p in pair.parameters())
    assert not any(p.requires_grad for p in pair.requires_grad_(False).parameters())


@pytest.mark.cpu
def test_to_casts_floats_alone_and_keeps_objects_ties_and_gradients():
    pair = Pair(tied=True)
    weight = pair.first.weight
    weight.grad = Tensor(np.full(weight.shape, 2.0, np.float32))
    version = weight._version_counter[0]
    assert pair.to(dtypes.bfloat16) is pair
    assert weight._version_counter[0] > version
    assert pair.first.weight is weight is pair.second.weight
    assert weight.dtype == dtypes.bfloat16
    assert pair.count.dtype == dtypes.int64
    assert pair.scratch.dtype == dtypes.bfloat16
    assert weight.grad.dtype == dtypes.float32
    assert weight.grad.array[0, 0] == 2
    assert pair.double().scale.dtype == dtypes.float64
    assert weight.grad.dtype == dtypes.float64
    assert pair.half().scale.dtype == dtypes.float16
    assert pair.float().scale.dtype == dtypes.float32


def test_to_takes_pytorchs_forms():
    for args, kwargs in [
        (("cpu", dtypes.float64), {}),
        (("cpu",), {"dtype": dtypes.float64}),
        ((tensor([1.0], dtype=dtypes.float64),), {}),
        ((), {"dtype": "float64"}),
    ]:
        assert Pair().to(*args, **kwargs).scale.dtype == dtypes.float64
    assert Pair().cpu().scale.dtype == dtypes.float32
    with pytest.raises(DTypeError, match="floating-point"):
        Pair().to(dtypes.int64)
    with pytest.raises(ArgumentError, match="divice"):
        Pair().to(divice="cpu")
    with pytest.raises(DeviceError, match="'tpu'"):
        Pair().to("tpu")
    with pytest.raises(DTypeError, match="'flot32'"):
        Pair().to("cpu", "flot32")


def test_an_optimizer_follows_a_model_to_another_dtype():
    pair = Pair()
    weight = pair.second.weight
    optimizer = SGD([weight], lr=0.5, momentum=0.5)
    before = weight.tolist()
    for kind in (dtypes.float32, dtypes.float16, dtypes.float64):
        assert pair.to(kind).second.weight.dtype == kind
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
    moved = 0.5 * (1 + 1.5 + 1.75)
    np.testing.assert_allclose(weight.tolist(), np.array(before) - moved, rtol=2e-3)


def test_hooks_see_and_replace_arguments_and_output_until_removed():
    layer, seen = Identity(), []
    before = layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    after = layer.register_forward_hook(lambda m, args, out: seen.append((args, out)))
    assert layer(1) == 2
    assert seen == [((2,), 2)]
    before.remove()
    after.remove()
    after.remove()
    assert layer(1) == 1
    assert len(seen) == 1


def test_hooks_run_in_order_and_take_keywords_if_asked():
    layer = Identity()
    layer.register_forward_hook(lambda m, args, out: out + "b")
    layer.register_forward_hook(lambda m, args, out: out + "a", prepend=True)
    layer.register_forward_pre_hook(lambda m, args, kwargs: (args, {"input": kwargs["input"] + "!"}), with_kwargs=True)
    assert layer(input="x") == "x!ab"
    with pytest.raises(DTypeError, match="needs hook as a function, got None"):
        layer.register_forward_hook(None)


def test_the_repr_is_a_tree():
    model = Sequential(Linear(2, 3), Sequential(Identity()))
    assert repr(model) == (
        "Sequential(\n"
        "  (0): Linear(in_features=2, out_features=3, bias=True)\n"
        "  (1): Sequential(\n"
        "    (0): Identity()\n"
        "  )\n"
        ")"
    )


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_equal_independent_and_tied_alike(again):
    pair = Pair(tied=True)
    twin = again(pair)
    assert twin.first.weight is twin.second.weight
    assert all(np.array_equal(a.array, b.array) for a, b in zip(pair.parameters(), twin.parameters(), strict=True))
    twin.first.weight.data = twin.first.weight.array + 1
    assert not np.array_equal(pair.first.weight.array, twin.first.weight.array)


def test_a_module_without_forward_says_so():
    with pytest.raises(StateError, match="Module: needs a method `forward`"):
        Module()(1)


def test_gradients_have_the_precision_that_the_module_was_moved_to():
    layer = Linear(3, 1, bias=False).double()
    layer.weight.data = np.ones((1, 3))
    x = 1 + 2.0**-40
    layer(tensor([[x, 1.0, 1.0]], dtype=dtypes.float64)).sum().backward()
    assert layer.weight.grad.tolist() == [[x, 1.0, 1.0]]


def test_a_submodule_is_replaced_by_its_dotted_name():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    model.set_submodule("0.0", nn.ReLU())
    model.set_submodule("0.head", nn.Tanh())
    assert [type(module) for module in model[0]] == [nn.ReLU, nn.Tanh]
    for name, strict in (("", False), ("0.new", True), ("1.0", False), ("0.training", False)):
        with pytest.raises(ArgumentError):
            model.set_submodule(name, nn.ReLU(), strict)


def test_a_buffer_is_registered_by_assignment():
    module = nn.Module()
    module.kept, module.dropped = nn.Buffer(ampkit.ones(2)), nn.Buffer(ampkit.zeros(2), persistent=False)
    module.kept = module.kept + 1
    assert {name: value.tolist() for name, value in module.named_buffers()} == {"kept": [2, 2], "dropped": [0, 0]}
    assert list(module.state_dict()) == ["kept"]
    assert not list(module.parameters())


def test_apply_of_a_function_of_tensors_changes_parameters_buffers_and_gradients():
    layer = nn.BatchNorm1d(2)
    layer(ampkit.ones(3, 2)).sum().backward()
    layer._apply(lambda t: t * 2 if t.is_floating_point() else t)
    assert layer.weight.tolist() == [2, 2]
    assert np.allclose(layer.running_var.tolist(), 1.8)
    layer._apply(lambda t: t.double() if t.is_floating_point() else t)
    assert {layer.weight.dtype, layer.weight.grad.dtype, layer.running_var.dtype} == {ampkit.float64}
    holder = optim.SGD(layer.parameters(), lr=0.1)
    layer._apply(lambda t: t.float())
    layer(ampkit.ones(3, 2)).sum().backward()
    holder.step()
    assert layer.weight.dtype == ampkit.float32 and layer.bias.tolist() == pytest.approx([-0.6, -0.6])


def test_an_override_of_apply_moves_tensors_that_are_no_buffers():
    class Anchored(nn.Module):
        def __init__(self):
            super().__init__()
            self.anchors = ampkit.ones(2)

        def _apply(self, fn):
            super()._apply(fn)
            self.anchors = fn(self.anchors)
            return self

    assert nn.Sequential(Anchored()).half()[0].anchors.dtype == ampkit.float16


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_buffer_keeps_its_kind_in_copies(twin_of):
    buffer = nn.Buffer(ampkit.ones(2), persistent=False)
    twin = twin_of(buffer)
    twin += 1
    assert (type(twin), twin.persistent, twin.tolist(), buffer.tolist()) == (nn.Buffer, False, [2, 2], [1, 1])


def test_a_module_may_have_names_of_its_own_that_are_common():
    class Cached(nn.Module):
        """With names that libraries such as torchmetrics give to their modules' values."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self._computed = self._unsaved = self._hooked = self._table = self._members = None

        def _register(self, x):
            self._computed = x.sum()
            return x

        def forward(self, x):
            return self._register(self.linear(x))

    module = Cached()
    module.register_buffer("seen", ampkit.zeros(1), persistent=False)
    module.register_forward_hook(lambda *given: None)
    assert module(ampkit.ones(1, 2)).sum().item() == module._computed.item()
    module.weight, module._computed = nn.Parameter(ampkit.ones(1)), ampkit.ones(2)
    assert list(module.state_dict()) == ["weight", "linear.weight", "linear.bias"]
    assert module.double().linear.weight.dtype == ampkit.float64


class Renamed(Module):
    """Loads what an earlier version of itself pickled under another name."""

    def __init__(self):
        super().__init__()
        self.layer, self.width = Linear(2, 2), 2

    def __setstate__(self, state):
        super().__setstate__({"width" if name == "size" else name: value for name, value in state.items()})


def test_a_subclass_can_change_the_state_that_it_is_made_of():
    model = Renamed()
    state = dict(vars(model), size=3)
    del state["width"], state["_computed_attributes"]
    made = Renamed.__new__(Renamed)
    made.__setstate__(state)
    assert made.width == 3
    assert made.layer(ampkit.ones(1, 2)).shape == (1, 2)
    made.register_forward_hook(lambda module, args, out: None)
    assert copy.deepcopy(made).layer.weight.tolist() == model.layer.weight.tolist()
