"""The [model] sections."""

from __future__ import annotations

from typing import Literal

from .words import Count, Section, Share, Sizes

# A model's keys are the arguments of the function that builds it; what depends on the data comes from there.


class MLP(Section):
    """`models.mlp`: linear layers of `hidden` units over the flattened image."""

    name: Literal["mlp"]
    hidden: Sizes = (256, 256)
    activation: Literal["relu", "gelu", "silu", "tanh", "sigmoid"] = "relu"
    dropout: Share = 0.0


class CNN(Section):
    """`models.cnn`: `stages` of 3 x 3 convolutions with batch norm, the first of `width` channels."""

    name: Literal["cnn"]
    width: Count = 32
    stages: Count = 2
    dropout: Share = 0.0


class ResNet(Section):
    """`models.resnet18` and its kin; the CIFAR stem keeps the size of the image."""

    name: Literal["resnet18", "resnet34", "resnet50"]
    stem: Literal["cifar", "imagenet"] = "cifar"


class LeNet5(Section):
    """`models.lenet5`, for square images."""

    name: Literal["lenet5"]


class ConvMixer(Section):
    """`models.convmixer` over squares of `patch_size` pixels."""

    name: Literal["convmixer"]
    dim: Count = 64
    depth: Count = 4
    kernel_size: Count = 5
    patch_size: Count = 2


class ViT(Section):
    """`models.vit` over squares of `patch_size` pixels."""

    name: Literal["vit"]
    patch_size: Count = 4
    num_layers: Count = 6
    num_heads: Count = 4
    hidden_dim: Count = 128
    mlp_dim: Count = 256
    dropout: Share = 0.0
    attention_dropout: Share = 0.0


class GPT(Section):
    """`models.gpt`; `block_size` tokens at once, out of `vocab_size`."""

    name: Literal["gpt"]
    vocab_size: Count = 256
    block_size: Count = 128
    n_layer: Count = 4
    n_head: Count = 4
    n_embd: Count = 128
    dropout: Share = 0.0
    bias: bool = True
    tie_weights: bool = True
