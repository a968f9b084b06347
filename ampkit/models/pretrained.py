"""from_pretrained: build the model that a config.json of Hugging Face describes, with its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .. import nn
from ..base.errors import ArgumentError, FileError, one_of
from .bert import BertConfig, BertForMaskedLM, BertModel
from .gpt import GPT
from .resnet import BasicBlock, Bottleneck, ResNet
from .vit import VisionTransformer
from .weights import source, started
from .weights.source import PathOrName

Config = Mapping[str, Any]


class _Built(NamedTuple):
    # build(config, arguments) -> the model; keys: {argument here: (key of config.json, its default)}.
    build: Callable[[Config, dict[str, Any]], nn.Module]
    keys: Mapping[str, tuple[str, Any]]


def _bert(config: Config, arguments: dict[str, Any]) -> nn.Module:
    bert, kinds = BertConfig(**arguments), config.get("architectures") or ()
    with_lm_head = {"BertForMaskedLM", "BertForPreTraining"} & {*kinds}
    return BertForMaskedLM(bert) if with_lm_head else BertModel(bert)


def _vit(config: Config, arguments: dict[str, Any]) -> nn.Module:
    return VisionTransformer(**{"num_classes": _labels(config), **arguments})


def _resnet(config: Config, arguments: dict[str, Any]) -> nn.Module:
    kind, depths = config.get("layer_type", "bottleneck"), config.get("depths", (3, 4, 6, 3))
    block = Bottleneck if kind == "bottleneck" else BasicBlock
    width, expected = arguments["width"], config.get("hidden_sizes", [256, 512, 1024, 2048])
    if len(depths) != 4 or list(expected) != [width * block.expansion * 2**stage for stage in range(4)]:
        got = f"{expected}, {len(depths)} depths and embedding_size {width}"
        raise ArgumentError("from_pretrained", "hidden_sizes of four stages, each twice the one before", got)
    return ResNet(block, tuple(depths), **{"num_classes": _labels(config), **arguments})


def _labels(config: Config) -> int:
    return len(config["id2label"]) if config.get("id2label") else config.get("num_labels", 2)


_SAME = {name: (name, default) for name, default in vars(BertConfig()).items()}
_BUILT = {
    "gpt2": _Built(
        lambda config, arguments: GPT(**arguments),
        {
            "vocab_size": ("vocab_size", 50257),
            "block_size": ("n_positions", 1024),
            "n_layer": ("n_layer", 12),
            "n_head": ("n_head", 12),
            "n_embd": ("n_embd", 768),
            "dropout": ("resid_pdrop", 0.1),
            "tie_weights": ("tie_word_embeddings", True),
        },
    ),
    "bert": _Built(_bert, _SAME),
    "vit": _Built(
        _vit,
        {
            "image_size": ("image_size", 224),
            "patch_size": ("patch_size", 16),
            "num_layers": ("num_hidden_layers", 12),
            "num_heads": ("num_attention_heads", 12),
            "hidden_dim": ("hidden_size", 768),
            "mlp_dim": ("intermediate_size", 3072),
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "in_channels": ("num_channels", 3),
            "layer_norm_eps": ("layer_norm_eps", 1e-12),
        },
    ),
    "resnet": _Built(_resnet, {"width": ("embedding_size", 64), "in_channels": ("num_channels", 3)}),
}


def from_pretrained(pretrained_model_name_or_path: PathOrName, **changes: Any) -> Any:
    """The model that a config.json of Hugging Face describes, with its weights, in eval mode.

    pretrained_model_name_or_path: a folder with config.json and the weights (one file, or several with their index), a
    file beside config.json, or `owner/model` of the Hugging Face Hub. Models: GPT for "gpt2", for "bert"
    BertForMaskedLM where its head was trained and BertModel for all other tasks, VisionTransformer for "vit", ResNet
    for "resnet". changes: arguments of the model in place of
    those of config.json, such as num_classes=10 for another head or dropout=0.0. `pretrained` of the result is the
    LoadedWeights. Call `train()` on it to train it, as with transformers.
    Raises FileError without config.json, ArgumentError for an architecture that ampkit has not, and what `load_weights`
    raises.
    """
    path = source.find("from_pretrained", pretrained_model_name_or_path)
    config = source.config(path)
    if not config:
        cure = "other weights load into a model that is built: models.resnet18(weights=PATH)"
        raise FileError("from_pretrained", "config.json beside the weights", f"none in {str(path.parent)!r}", cure)
    kind = config["model_type"]
    if kind not in _BUILT:
        raise ArgumentError("from_pretrained", f"a model_type {one_of(_BUILT)} in config.json", repr(kind))
    built = _BUILT[kind]
    arguments = {name: config.get(key, default) for name, (key, default) in built.keys.items()} | changes
    return started(built.build(config, arguments), path).eval()
