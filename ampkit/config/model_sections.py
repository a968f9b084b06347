"""The [model] sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .field_types import Factor, Features, Layers, Section, Share, Size, Sizes

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
    width: Size = 32
    stages: Layers = 2
    dropout: Share = 0.0


class ResNet(Section):
    """`models.resnet18` and its kin; the CIFAR stem keeps the size of the image.

    width: channels of the first stage. depth: a factor of the blocks in each.
    """

    name: Literal["resnet18", "resnet34", "resnet50"]
    stem: Literal["cifar", "imagenet"] = "cifar"
    width: Size = 64
    depth: Factor = 1.0


class LeNet5(Section):
    """`models.lenet5`, for square images."""

    name: Literal["lenet5"]


class AlexNet(Section):
    """`models.alexnet`, for images of at least 63 pixels; `hidden` units in each of its two hidden Linear."""

    name: Literal["alexnet"]
    hidden: Size = 4096
    dropout: Share = 0.5


class VGG(Section):
    """`models.vgg16` and its kin, for images of at least 32 pixels; `widths`: channels of each stage."""

    name: Literal["vgg11", "vgg13", "vgg16", "vgg19"]
    batch_norm: bool = False
    widths: Annotated[tuple[Size, Size, Size, Size, Size], Field(strict=False)] = (64, 128, 256, 512, 512)
    hidden: Size = 4096
    dropout: Share = 0.5


class EfficientNet(Section):
    """`models.efficientnet_b0` or `b4`, its channels times `width` and its blocks times `depth`."""

    name: Literal["efficientnet_b0", "efficientnet_b4"]
    width: Factor = 1.0
    depth: Factor = 1.0


class ConvMixer(Section):
    """`models.convmixer` over squares of `patch_size` pixels."""

    name: Literal["convmixer"]
    dim: Size = 64
    depth: Layers = 4
    kernel_size: Size = 5
    patch_size: Size = 2


class ViT(Section):
    """`models.vit` over squares of `patch_size` pixels."""

    name: Literal["vit"]
    patch_size: Size = 4
    num_layers: Layers = 6
    num_heads: Size = 4
    hidden_dim: Size = 128
    mlp_dim: Size = 256
    dropout: Share = 0.0
    attention_dropout: Share = 0.0


class Segmentation(Section):
    """`models.fcn_resnet50` or `models.deeplabv3_resnet50`; aux_loss: a second answer, from the third stage.

    width, depth: see ResNet.
    """

    name: Literal["fcn_resnet50", "deeplabv3_resnet50"]
    aux_loss: bool = False
    width: Size = 64
    depth: Factor = 1.0


class Wav2Letter(Section):
    """`models.wav2letter`: of waveforms, or of `num_features` features; `width` and `wide`: channels inside."""

    name: Literal["wav2letter"]
    input_type: Literal["waveform", "power_spectrum", "mfcc"] = "waveform"
    num_features: Features = 1
    width: Size = 250
    wide: Size = 2000


class BERT(Section):
    """`models.bert`, by default of the size "tiny"."""

    name: Literal["bert"]
    vocab_size: Size = 30522
    hidden_size: Size = 128
    num_hidden_layers: Layers = 2
    num_attention_heads: Size = 2
    intermediate_size: Size = 512
    hidden_dropout_prob: Share = 0.1
    attention_probs_dropout_prob: Share = 0.1
    max_position_embeddings: Size = 512


class GPT(Section):
    """`models.gpt`; `block_size` tokens at once, out of `vocab_size`."""

    name: Literal["gpt"]
    vocab_size: Size = 256
    block_size: Size = 128
    n_layer: Layers = 4
    n_head: Size = 4
    n_embd: Size = 128
    dropout: Share = 0.0
    bias: bool = True
    tie_weights: bool = True
