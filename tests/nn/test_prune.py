"""Pruning; the expected masks are those of PyTorch 2.13."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import nn, tensor
from ampkit.base.errors import ArgumentError
from ampkit.nn.utils import prune

ROWS = [[1.0, -2.0, 3.0, -4.0], [0.5, 0.6, -0.7, 0.8], [9.0, 8.0, 7.0, 6.0]]


def layer():
    made = nn.Linear(4, 3)
    made.weight.data, made.bias.data = tensor(ROWS), tensor([0.0, 1.0, 2.0])
    return made


def test_elements_and_slices_are_removed_among_those_that_are_left():
    pruned = layer()
    prune.l1_unstructured(pruned, "weight", 3)
    assert pruned.weight_mask.tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]]
    prune.l1_unstructured(pruned, "weight", 0.5)
    assert pruned.weight_mask.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]
    prune.ln_structured(pruned, "weight", 1, 2, 1)
    assert pruned.weight.tolist() == [[0, 0, 0, -4], [0, 0, 0, 0], [9, 8, 0, 6]]
    assert sorted(pruned.state_dict()) == ["bias", "weight_mask", "weight_orig"]
    pruned(ampkit.ones(1, 4)).sum().backward()
    assert pruned.weight_orig.grad.tolist() == pruned.weight_mask.tolist()


def test_a_pruned_parameter_is_made_an_ordinary_one():
    pruned, before = layer(), ROWS
    kept = pruned.weight
    prune.l1_unstructured(pruned, "weight", 11)
    assert prune.is_pruned(nn.Sequential(pruned))
    prune.remove(pruned, "weight")
    assert pruned.weight is kept
    assert pruned.weight.sum().item() == before[2][0]
    assert sorted(pruned.state_dict()) == ["bias", "weight"]
    assert not prune.is_pruned(pruned)
    with pytest.raises(ArgumentError, match="prune.remove: needs the name of a pruned Parameter, got 'weight'"):
        prune.remove(pruned, "weight")


def test_several_parameters_are_pruned_as_one_vector():
    a, b = layer(), layer()
    prune.identity(b, "weight")
    prune.global_unstructured([(a, "weight"), (b, "weight"), (a, "bias")], prune.L1Unstructured, amount=0.4)
    assert a.weight_mask.tolist() == b.weight_mask.tolist() == [[0, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]
    assert a.bias_mask.tolist() == [0, 1, 1]


def test_random_pruning_removes_as_many_as_asked():
    pruned = layer()
    prune.random_structured(pruned, "weight", 1, 0)
    assert sorted(pruned.weight_mask.sum(1).tolist()) == [0, 4, 4]
    prune.random_unstructured(pruned, "weight", 0.5)
    assert pruned.weight_mask.sum().item() == 4


def test_a_method_of_one_s_own_and_a_mask():
    class EverySecond(prune.BasePruningMethod):
        def compute_mask(self, t, default_mask):
            mask = default_mask.clone()
            mask.view(-1)[::2] = 0
            return mask

    class FirstRow(prune.BasePruningMethod):
        def compute_mask(self, t, default_mask):
            mask = default_mask.clone()
            mask[0] = 0
            return mask

    pruned = layer()
    EverySecond.apply(pruned, "bias")
    assert pruned.bias.tolist() == [0, 1, 0]
    FirstRow.apply(pruned, "weight")
    assert pruned.weight_mask.tolist() == [[0] * 4, [1] * 4, [1] * 4]
    pruned = layer()
    prune.custom_from_mask(pruned, "weight", tensor([[1, 0, 0, 0]] * 3))
    assert pruned.weight.tolist() == [[1, 0, 0, 0], [0.5, 0, 0, 0], [9, 0, 0, 0]]


@pytest.mark.parametrize("amount", [-1, 1.5, 13, "all", True])
def test_an_amount_that_cannot_be_removed_is_refused_with_nothing_changed(amount):
    pruned = layer()
    with pytest.raises(ArgumentError, match="prune: needs (an )?amount"):
        prune.l1_unstructured(pruned, "weight", amount)
    assert sorted(pruned.state_dict()) == ["bias", "weight"]


def test_a_mask_of_ones_own_is_combined_with_what_is_left():
    left, mask = ampkit.tensor([[0.0, 1.0], [1.0, 1.0]]), ampkit.tensor([[True, False], [True, True]])
    assert prune.CustomFromMask(mask).compute_mask(left, left).tolist() == [[0, 0], [1, 1]]


def test_a_method_among_the_hooks_restores_the_parameter_and_leaves_its_hook_to_be_deleted():
    layer = prune.l1_unstructured(nn.Linear(4, 3), "weight", amount=0.3)
    pruned = layer.weight.tolist()
    for key, hook in list(layer._forward_pre_hooks.items()):  # as Lightning's ModelPruning does
        assert isinstance(hook, prune.BasePruningMethod)
        hook.remove(layer)
        del layer._forward_pre_hooks[key]
    assert set(layer.state_dict()) == {"weight", "bias"} and not prune.is_pruned(layer)
    assert layer.weight.tolist() == pruned
