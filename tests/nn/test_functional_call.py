"""The names of torch.func."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import func, nn, tensor
from ampkit.base.errors import ArgumentError, DTypeError, StateError


def test_a_module_is_called_with_other_tensors_and_keeps_its_own():
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    before = {name: value.tolist() for name, value in model.state_dict().items()}
    weight, mean = tensor([[1.0, 2.0]], requires_grad=True), ampkit.zeros(1)
    given = [{"0.weight": weight, "0.bias": ampkit.zeros(1)}, {"1.running_mean": mean}]
    out = func.functional_call(model, given, tensor([[1.0, 1.0], [3.0, 5.0]]))
    (out * tensor([[1.0], [3.0]])).sum().backward()
    assert weight.grad is not None
    assert model[0].weight.grad is None
    assert mean.item() == pytest.approx(0.8)
    after = {name: value.tolist() for name, value in model.state_dict().items()}
    assert {name for name in after if after[name] != before[name]} == {"1.running_var", "1.num_batches_tracked"}
    layer = nn.Linear(2, 1, bias=False)
    assert func.functional_call(layer, {"weight": weight}, (tensor([1.0, 1.0]),), {}).item() == 3


def test_a_tied_weight_is_replaced_with_its_twin_unless_told_not_to():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    model[0].weight.data = tensor([[2.0]])
    for tie, expected in ((True, 9), (False, 6)):
        given = {"0.weight": tensor([[3.0]])}
        assert func.functional_call(model, given, tensor([[1.0]]), tie_weights=tie).item() == expected


def test_unknown_and_missing_names_and_errors_leave_the_module_as_it_was():
    layer = nn.Linear(2, 1)
    weight = layer.weight
    with pytest.raises(ArgumentError, match="did you mean 'weight'"):
        func.functional_call(layer, {"weigth": weight}, tensor([1.0, 1.0]))
    with pytest.raises(StateError, match="functional_call: needs a tensor for each name, got none for bias"):
        func.functional_call(layer, {"weight": weight}, tensor([1.0, 1.0]), strict=True)
    with pytest.raises(ampkit.ShapeError):
        func.functional_call(layer, {"weight": ampkit.ones(1, 2)}, tensor([1.0]))
    assert layer.weight is weight


def test_gradients_of_functions_nest():
    x = tensor([1.0, 2.0])
    assert func.grad(lambda t: (t**3).sum())(x).tolist() == [3, 12]
    assert func.grad(lambda t: func.grad(lambda s: (s**3).sum())(t).sum())(x).tolist() == [6, 12]
    found, value = func.grad_and_value(lambda a, b: (a * b).sum(), (0, 1))(x, x + 1)
    assert [g.tolist() for g in found] == [[2, 3], [1, 2]]
    assert (value.item(), value.requires_grad, x.requires_grad) == (8, False, False)
    assert func.grad(lambda t: (t.sum(), {"more": t + 1}), has_aux=True)(x)[1]["more"].tolist() == [2, 3]


def test_keywords_are_names():
    with pytest.raises(DTypeError, match="functional_call: needs kwargs with names of arguments as keys, got 0"):
        func.functional_call(nn.Linear(3, 4), {}, ampkit.ones(2, 3), {0: 1})


def test_tied_weights_have_one_tensor_and_are_not_missing():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    model[1].weight = model[0].weight
    x, three, two = tensor([[1.0]]), tensor([[3.0]]), tensor([[2.0]])
    assert func.functional_call(model, {"1.weight": three}, x, strict=True).item() == 9
    assert func.functional_call(model, {"0.weight": three, "1.weight": three}, x).item() == 9
    both = {"0.weight": three, "1.weight": two}
    assert func.functional_call(model, both, x, tie_weights=False).item() == 6
    with pytest.raises(ArgumentError, match="one tensor for 1.weight and what is tied to it, got several"):
        func.functional_call(model, both, x)
