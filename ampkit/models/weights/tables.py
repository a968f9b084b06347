"""The layouts that ampkit reads; a new one is a row here. See `layout` for what a row says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isqrt
from typing import Any

from .layout import Layout, Part, Rule, Setting, State, fits, transposed


def _blocks(pattern: str, what: str = "blocks") -> Any:
    """A function of names that says how many fit the pattern, one in each block."""
    return lambda names: f"{sum(fits(pattern, name) for name in names)} {what}"


_RESNETS = {
    "8 basic blocks": 18,
    "16 basic blocks": 34,
    "16 bottlenecks": 50,
    "33 bottlenecks": 101,
    "50 bottlenecks": 152,
}


def _resnet_size(names: Iterable[str]) -> str:
    basic, deep = (sum(fits(f"*layer#.#.conv{conv}.weight", name) for name in names) for conv in (2, 3))
    found = f"{deep} bottlenecks" if deep else f"{basic} basic blocks"
    return f"{found} (resnet{_RESNETS[found]})" if found in _RESNETS else found


# What shapes show of a model's arguments.


def _axis(name: str, axis: int) -> Callable[[State], int | None]:
    """The length of an axis of the tensor `name` here."""

    def length(state: State) -> int | None:
        shape = getattr(state.get(name), "shape", ())
        return int(shape[axis]) if len(shape) > axis else None

    return length


def _count(pattern: str) -> Callable[[State], int | None]:
    """How many names fit, None if none does."""
    return lambda state: sum(fits(pattern, name) for name in state) or None


def _stem(state: State) -> str | None:
    return {3: "cifar", 7: "imagenet"}.get(_axis("conv1.weight", 2)(state) or 0)


def _image_size(state: State) -> int | None:
    positions, patch = _axis("encoder.pos_embedding", 1)(state), _axis("conv_proj.weight", 2)(state)
    return isqrt(positions - 1) * patch if positions and patch else None


def _of_resnet(lead: str = "") -> dict[str, Any]:
    conv = f"{lead}conv1.weight"
    return {"width": _axis(conv, 0), "in_channels": _axis(conv, 1)}


# torchvision: the names here are its own.

_RESNET: Any = {"head": ("fc.*",), "size": _resnet_size, "arguments": _of_resnet() | {"stem": _stem}}
_VIT: Any = {
    "head": ("heads.*",), "heads": "num_heads",
    "arguments": {
        "hidden_dim": _axis("conv_proj.weight", 0),
        "mlp_dim": _axis("encoder.layers.encoder_layer_0.mlp.0.weight", 0),
        "num_layers": _count("encoder.layers.encoder_layer_#.ln_1.weight"),
        "patch_size": _axis("conv_proj.weight", 2), "image_size": _image_size,
        "in_channels": _axis("conv_proj.weight", 1),
    },
}  # fmt: skip
_VGG_ARGUMENTS = {"hidden": _axis("classifier.0.weight", 0), "in_channels": _axis("features.0.weight", 1)}
_ALEXNET_ARGUMENTS = {"hidden": _axis("classifier.1.weight", 0), "in_channels": _axis("features.0.weight", 1)}

TORCHVISION = (
    Layout("torchvision's ResNet", "ResNet", ("conv1.weight", "layer1.0.conv1.weight"), **_RESNET),
    Layout("torchvision's VGG", "VGG", ("features.0.weight", "classifier.0.weight"), head=("classifier.6.*",),
           size=_blocks("features.#.bias", "layers with weights"), arguments=_VGG_ARGUMENTS),
    Layout("torchvision's AlexNet", "AlexNet", ("features.0.weight", "classifier.1.weight", "classifier.4.weight"),
           head=("classifier.6.*",), arguments=_ALEXNET_ARGUMENTS),
    Layout("torchvision's EfficientNet", "EfficientNet", ("features.0.0.weight", "features.#.0.block.#.fc1.weight"),
           head=("classifier.1.*",), size=_blocks("features.#.#.block.0.0.weight")),
    Layout("torchvision's VisionTransformer", "VisionTransformer",
           ("conv_proj.weight", "encoder.layers.encoder_layer_#.ln_1.weight"), **_VIT,
           rules=(("*.mlp.linear_1.*", "*.mlp.0.*"), ("*.mlp.linear_2.*", "*.mlp.3.*"), ("*", "*"))),
    Layout("torchvision's segmentation models", "Segmentation", ("backbone.layer1.0.conv1.weight", "classifier.*"),
           head=("classifier.4.*", "aux_classifier.4.*"), optional=("aux_classifier.*",),
           size=_resnet_size, arguments=_of_resnet("backbone.")),
    Layout("torchvision's ResNet", "Segmentation", ("conv1.weight", "layer1.0.conv1.weight"),
           rules=(("fc.*", None), ("*", "backbone.*")), head=("classifier.*", "aux_classifier.*"),
           size=_resnet_size, arguments=_of_resnet("backbone.")),
)  # fmt: skip


# Hugging Face: ResNet and ViT.


def _resnet_rules() -> tuple[Rule, ...]:
    rules: list[Rule] = [
        ("embedder.embedder.convolution.weight", "conv1.weight"),
        ("embedder.embedder.normalization.*", "bn1.*"),
        ("classifier.1.*", "fc.*"),
    ]
    for stage in range(4):
        block, here = f"encoder.stages.{stage}.layers.#.", f"layer{stage + 1}.#."
        rules += [
            (f"{block}shortcut.convolution.weight", f"{here}downsample.0.weight"),
            (f"{block}shortcut.normalization.*", f"{here}downsample.1.*"),
        ]
        for conv in range(3):
            rules += [
                (f"{block}layer.{conv}.convolution.weight", f"{here}conv{conv + 1}.weight"),
                (f"{block}layer.{conv}.normalization.*", f"{here}bn{conv + 1}.*"),
            ]
    return tuple(rules)


_BLOCK = "encoder.layers.encoder_layer_#."
# Of the attention of a block: q, k and v one below the other, weights and biases apart.
_IN = {"weight": f"{_BLOCK}self_attention.in_proj_weight", "bias": f"{_BLOCK}self_attention.in_proj_bias"}


def _vit_rules() -> tuple[Rule, ...]:
    """Names as in files, `encoder.layer.#`, and as in the modules of transformers 5, `layers.#`."""
    rules: list[Rule] = [
        ("embeddings.cls_token", "class_token"),
        ("embeddings.position_embeddings", "encoder.pos_embedding"),
        ("embeddings.mask_token", None),
        ("embeddings.patch_embeddings.projection.*", "conv_proj.*"),
        ("layernorm.*", "encoder.ln.*"),
        ("classifier.*", "heads.head.*"),
        ("pooler.*", None),
    ]
    files, modules = "encoder.layer.#.", "layers.#."
    for i, (old, new) in enumerate((("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))):
        for kind, here in _IN.items():
            rules += [(f"{files}attention.attention.{old}.{kind}", here, Part(i, 3))]
            rules += [(f"{modules}attention.{new}.{kind}", here, Part(i, 3))]
    for old, new, here in (
        ("attention.output.dense", "attention.o_proj", "self_attention.out_proj"),
        ("intermediate.dense", "mlp.fc1", "mlp.0"),
        ("output.dense", "mlp.fc2", "mlp.3"),
        ("layernorm_before", "layernorm_before", "ln_1"),
        ("layernorm_after", "layernorm_after", "ln_2"),
    ):
        rules += [(f"{lead}.*", f"{_BLOCK}{here}.*") for lead in (files + old, modules + new)]
    return tuple(rules)


def _only(*values: Any) -> Any:
    return lambda model: values


def _model_type(name: str) -> Setting:
    return Setting("model_type", name, _only(name))


IMAGES = (
    Layout("Hugging Face's ResNet", "ResNet", ("embedder.embedder.convolution.weight",), _resnet_rules(), "resnet.",
           **_RESNET,
           settings=(_model_type("resnet"), Setting("hidden_act", "relu", _only("relu")),
                     Setting("downsample_in_bottleneck", False, _only(False)))),
    Layout("Hugging Face's ViT", "VisionTransformer",
           ("embeddings.patch_embeddings.projection.weight", "*layer*.#.layernorm_before.weight"), _vit_rules(), "vit.",
           **_VIT,
           settings=(_model_type("vit"), Setting("hidden_act", "gelu", _only("gelu")),
                     Setting("num_attention_heads", 12, lambda model: (_attention(model).num_heads,)),
                     Setting("layer_norm_eps", 1e-12, lambda model: (model.encoder.ln.eps,)))),
    Layout("timm's VisionTransformer", "VisionTransformer", ("patch_embed.proj.weight", "blocks.#.attn.qkv.weight"),
           (("cls_token", "class_token"), ("pos_embed", "encoder.pos_embedding"), ("patch_embed.proj.*", "conv_proj.*"),
            ("blocks.#.norm1.*", f"{_BLOCK}ln_1.*"), ("blocks.#.norm2.*", f"{_BLOCK}ln_2.*"),
            ("blocks.#.attn.qkv.weight", _IN["weight"]), ("blocks.#.attn.qkv.bias", _IN["bias"]),
            ("blocks.#.attn.proj.*", f"{_BLOCK}self_attention.out_proj.*"),
            ("blocks.#.mlp.fc1.*", f"{_BLOCK}mlp.0.*"), ("blocks.#.mlp.fc2.*", f"{_BLOCK}mlp.3.*"),
            ("norm.*", "encoder.ln.*"), ("head.*", "heads.head.*")), **_VIT),
)  # fmt: skip


def _attention(model: Any) -> Any:
    return next(iter(model.encoder.layers)).self_attention


# Hugging Face: GPT-2 and BERT.


def has_conv1d(state: State) -> bool:
    """Whether the weights of a GPT-2 are those of Hugging Face's Conv1D, [in, out].

    The layout of Linear has the same names. `c_attn`, whose output is three times as wide as its input, tells them
    apart; the square weights beside it follow.
    """
    found = [value for name, value in state.items() if re.search(r"h\.\d+\.attn\.c_attn\.weight$", name)]
    shapes = [tuple(getattr(value, "shape", ())) for value in found]
    return any(len(shape) == 2 and shape[1] == 3 * shape[0] for shape in shapes)


_GPT_SIGNS = ("h.#.attn.c_attn.weight", "wte.weight")
_GPT_MASKS: tuple[Rule, ...] = (("h.#.attn.bias", None), ("h.#.attn.masked_bias", None))  # older versions saved them
_GPT_SIZES: Any = {
    "heads": "n_head",
    "arguments": {
        "n_embd": _axis("transformer.wte.weight", 1),
        "n_layer": _count("transformer.h.#.ln_1.weight"),
        "block_size": _axis("transformer.wpe.weight", 0),
        "vocab_size": _axis("transformer.wte.weight", 0),
    },
}
_LM_HEAD: Rule = ("lm_head.weight", "lm_head.weight")
_GELU_TANH = ("gelu_new", "gelu_pytorch_tanh")

GPT2 = Layout(
    "Hugging Face's GPT-2", "GPT", _GPT_SIGNS,
    rules=(
        ("h.#.attn.c_attn.weight", "transformer.h.#.attn.c_attn.weight", transposed),
        ("h.#.attn.c_proj.weight", "transformer.h.#.attn.c_proj.weight", transposed),
        ("h.#.mlp.c_fc.weight", "transformer.h.#.mlp.c_fc.weight", transposed),
        ("h.#.mlp.c_proj.weight", "transformer.h.#.mlp.c_proj.weight", transposed),
        *_GPT_MASKS, _LM_HEAD, ("*", "transformer.*"),
    ),
    prefix="transformer.",
    settings=(
        _model_type("gpt2"),
        Setting("n_head", 12, lambda model: (model.transformer.h[0].attn.n_head,)),
        Setting("activation_function", "gelu_new", _only(*_GELU_TANH)),
        Setting("layer_norm_epsilon", 1e-5, lambda model: (model.transformer.ln_f.eps,)),
        Setting("scale_attn_weights", True, _only(True)),
        Setting("scale_attn_by_inverse_layer_idx", False, _only(False)),
        Setting("add_cross_attention", False, _only(False)),
    ),
    holds=has_conv1d,
    **_GPT_SIZES,
)  # fmt: skip
_GPT = Layout(
    "GPT-2 with Linear", "GPT", _GPT_SIGNS, (*_GPT_MASKS, _LM_HEAD, ("*", "transformer.*")), "transformer.",
    holds=lambda state: not has_conv1d(state), **_GPT_SIZES,
)  # fmt: skip


_BERT_SIGNS = ("embeddings.token_type_embeddings.weight", "encoder.layer.#.attention.self.query.weight")


def _bert_norms(there: str, here: str) -> tuple[Rule, ...]:
    """The norms in files that came from TensorFlow, which call the weight gamma and the bias beta."""
    return (
        (f"{there}*LayerNorm.gamma", f"{here}*LayerNorm.weight"),
        (f"{there}*LayerNorm.beta", f"{here}*LayerNorm.bias"),
    )


def _bert_settings(config: Any) -> tuple[Setting, ...]:
    return (
        _model_type("bert"),
        Setting("num_attention_heads", 12, lambda model: (config(model).num_attention_heads,)),
        Setting("layer_norm_eps", 1e-12, lambda model: (config(model).layer_norm_eps,)),
        Setting("hidden_act", "gelu", _only("gelu")),
        Setting("position_embedding_type", "absolute", _only("absolute")),
        Setting("is_decoder", False, _only(False)),
    )


def _bert_sizes(lead: str) -> Any:
    first, embeddings = f"{lead}encoder.layer.0.intermediate.dense.weight", f"{lead}embeddings."
    arguments = {
        "hidden_size": _axis(first, 1),
        "intermediate_size": _axis(first, 0),
        "num_hidden_layers": _count(f"{lead}encoder.layer.#.output.dense.weight"),
        "vocab_size": _axis(f"{embeddings}word_embeddings.weight", 0),
        "max_position_embeddings": _axis(f"{embeddings}position_embeddings.weight", 0),
        "type_vocab_size": _axis(f"{embeddings}token_type_embeddings.weight", 0),
    }
    return {"arguments": arguments, "heads": "num_attention_heads"}


# What BERT's other heads have; `position_ids` is a constant that older versions saved.
_BERT_OTHERS: tuple[Rule, ...] = (
    ("embeddings.position_ids", None), ("cls.seq_relationship.*", None), ("classifier.*", None), ("qa_outputs.*", None),
)  # fmt: skip
BERT = (
    Layout("Hugging Face's BERT", "BertForMaskedLM", _BERT_SIGNS, prefix="bert.",
           rules=(*_BERT_OTHERS, ("pooler.*", None), *_bert_norms("cls.predictions.", "cls.predictions."),
                  ("cls.predictions.*", "cls.predictions.*"), *_bert_norms("", "bert."), ("*", "bert.*")),
           head=("cls.predictions.*",), **_bert_sizes("bert."),
           settings=_bert_settings(lambda model: model.bert.config)),
    Layout("Hugging Face's BERT", "BertModel", _BERT_SIGNS, prefix="bert.",
           rules=(*_BERT_OTHERS, ("cls.*", None), *_bert_norms("", ""), ("*", "*")),
           head=("pooler.*",), optional=("pooler.*",), **_bert_sizes(""),
           settings=_bert_settings(lambda model: model.config)),
)  # fmt: skip


LAYOUTS = (
    *TORCHVISION,
    *IMAGES,
    GPT2,
    _GPT,
    *BERT,
)

# Architectures that ampkit has no model for, by a name that only their files have.
STRANGERS = {
    "*model.layers.#.self_attn.q_proj.weight": "a decoder of Llama's kind",
    "*roberta.embeddings.word_embeddings.weight": "RoBERTa",
    "*distilbert.embeddings.word_embeddings.weight": "DistilBERT",
    "*decoder.block.#.layer.0.SelfAttention.q.weight": "T5",
    "*vision_model.embeddings.class_embedding": "CLIP",
    "features.denseblock1.*": "torchvision's DenseNet",
    "features.#.#.attn.relative_position_bias_table": "torchvision's SwinTransformer",
    "features.#.conv.0.0.weight": "torchvision's MobileNetV2",
    "Mixed_5b.*": "torchvision's Inception",
}
