"""Learning rates by layer."""

import pytest

from ampkit import models, nn, optim
from ampkit.base.errors import ArgumentError, ConfigError


def rates(model, **options):
    groups = optim.layerwise_groups(model, 1.0, **options)
    return {name: group["lr"] for group in groups for name, _ in group["params"]}


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (
            lambda: models.gpt(vocab_size=11, block_size=6, n_layer=2, n_head=1, n_embd=8),
            [f"transformer.{name}" for name in ("wpe.weight", "h.0.ln_2.bias", "h.1.ln_1.bias", "ln_f.bias")],
        ),
        (
            lambda: models.resnet18(num_classes=3),
            ["bn1.bias", "layer1.0.bn1.bias", "layer1.1.bn1.bias", "layer2.0.downsample.0.weight", "layer2.1.bn1.bias",
             "layer3.0.bn1.bias", "layer3.1.bn1.bias", "layer4.0.bn1.bias", "layer4.1.bn1.bias", "fc.bias"],
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
            ["0.weight", "2.weight"],
        ),
    ],
    ids=["gpt", "resnet18", "sequential"],
)  # fmt: skip
def test_each_layer_has_a_share_of_the_learning_rate_of_the_next(model, layers):
    found = rates(model(), layer_decay=0.5)
    assert [found[name] for name in reversed(layers)] == [0.5**height for height in range(len(layers))]


def test_vision_transformers_number_their_layers_by_a_suffix():
    model = models.vit(image_size=8, num_classes=3, patch_size=4, hidden_dim=8, num_heads=1, mlp_dim=8, num_layers=2)
    found = rates(model, layer_decay=0.5)
    assert found["class_token"] == 0.125
    assert found["encoder.layers.encoder_layer_0.mlp.3.bias"] == 0.25
    assert found["heads.head.bias"] == found["encoder.ln.bias"] == 1.0


def test_the_last_factor_that_matches_counts_and_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    groups = optim.layerwise_groups(model, 0.5, lr_factors={"*": 3.0, "2": 10.0, "2.bias": 1.0})
    assert [(group["lr"], [name for name, _ in group["params"]]) for group in groups] == [
        (0.5, ["2.bias"]), (5.0, ["2.weight"]), (1.5, ["1.weight", "1.bias"]),
    ]  # fmt: skip
    optim.AdamW(groups)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"layer_decay": 0.0}, ArgumentError, r"layerwise_groups: needs layer_decay in \(0, 1\], got 0.0"),
        ({"lr_factors": {"0": 0.0}}, ArgumentError, "layerwise_groups: needs a factor above 0 for '0', got 0.0"),
        ({"lr_factors": {"fc": 2.0}}, ConfigError, "lr_factors: needs the path of a module or parameter of the model"),
    ],
)
def test_what_does_not_fit_is_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        optim.layerwise_groups(nn.Sequential(nn.Linear(2, 2)), 1.0, **options)
