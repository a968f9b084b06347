"""Frozen modules and parameters."""

import copy

import pytest

import ampkit
from ampkit import nn
from ampkit.base.errors import ConfigError


def network():
    block = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Dropout(0.5))
    return nn.ModuleDict(
        {"stem": block, "blocks": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "bn": nn.BatchNorm2d(2)}
    )


def test_what_a_pattern_names_and_all_below_is_frozen():
    model = nn.utils.freeze(network(), "stem", "blocks.*.bias")
    assert [name for name, p in model.named_parameters() if p.requires_grad] == [
        "blocks.0.weight", "blocks.1.weight", "bn.weight", "bn.bias",
    ]  # fmt: skip


def test_a_frozen_batch_norm_stays_in_eval_mode_and_keeps_its_statistics():
    model = nn.utils.freeze(network(), "stem")
    for each in (model, copy.deepcopy(model)):
        each.eval()
        each.train()
        assert not each.stem[1].training
        assert each.bn.training and each.stem[2].training
        each.stem(ampkit.ones(3, 2, 4, 4) * 7)
        assert each.stem[1].running_mean.tolist() == [0, 0]


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_name():
    model = network()
    with pytest.raises(ConfigError, match=r"freeze: needs the path of a module or parameter of the model, got 'block'\n"
                                          r"help: did you mean 'blocks'\?"):  # fmt: skip
        nn.utils.freeze(model, "stem", "block")
    assert all(p.requires_grad for p in model.parameters())
