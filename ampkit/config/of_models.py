"""The [model] sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .words import Count, Positive, Section, Share, Sizes

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
    """`models.resnet18` and its kin; the CIFAR stem keeps the size of the image.

    width: channels of the first stage. depth: a factor of the blocks in each.
    """

    name: Literal["resnet18", "resnet34", "resnet50"]
    stem: Literal["cifar", "imagenet"] = "cifar"
    width: Count = 64
    depth: Positive = 1.0


class LeNet5(Section):
    """`models.lenet5`, for square images."""

    name: Literal["lenet5"]


class AlexNet(Section):
    """`models.alexnet`, for images of at least 63 pixels; `hidden` units in each of its two hidden Linear."""

    name: Literal["alexnet"]
    hidden: Count = 4096
    dropout: Share = 0.5


class VGG(Section):
    """`models.vgg16` and its kin, for images of at least 32 pixels; `widths`: channels of each stage."""

    name: Literal["vgg11", "vgg13", "vgg16", "vgg19"]
    batch_norm: bool = False
    widths: Annotated[tuple[Count, Count, Count, Count, Count], Field(strict=False)] = (64, 128, 256, 512, 512)
    hidden: Count = 4096
    dropout: Share = 0.5


class EfficientNet(Section):
    """`models.efficientnet_b0` or `b4`, its channels times `width` and its blocks times `depth`."""

    name: Literal["efficientnet_b0", "efficientnet_b4"]
    width: Positive = 1.0
    depth: Positive = 1.0


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


class Segmentation(Section):
    """`models.fcn_resnet50` or `models.deeplabv3_resnet50`; aux_loss: a second answer, from the third stage.

    width, depth: see ResNet.
    """

    name: Literal["fcn_resnet50", "deeplabv3_resnet50"]
    aux_loss: bool = False
    width: Count = 64
    depth: Positive = 1.0


class Wav2Letter(Section):
    """`models.wav2letter`: of waveforms, or of `num_features` features; `width` and `wide`: channels inside."""

    name: Literal["wav2letter"]
    input_type: Literal["waveform", "power_spectrum", "mfcc"] = "waveform"
    num_features: Count = 1
    width: Count = 250
    wide: Count = 2000


class BERT(Section):
    """`models.bert`, by default of the size "tiny"."""

    name: Literal["bert"]
    vocab_size: Count = 30522
    hidden_size: Count = 128
    num_hidden_layers: Count = 2
    num_attention_heads: Count = 2
    intermediate_size: Count = 512
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    max_position_embeddings: Count = 512


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
