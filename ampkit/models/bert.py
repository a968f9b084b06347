"""BERT: a post-norm encoder, with Hugging Face's parameter names.

Devlin, Chang, Lee, Toutanova 2018, arXiv:1810.04805, section 3; the sizes below base are those of Turc et al. 2019,
arXiv:1908.08962, table 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import nn, ops
from ..base.errors import ArgumentError, ShapeError
from ..base.limits import Layers, Positive, Probability, Size
from ..base.registry import Fault, divides, register_model
from ..core.tensor import Tensor
from ..nn.factory import check_probability, check_sizes, new_parameter
from ..nn.modules.fused import linear_gelu, norm_of_sum
from .token_models import need_tokens, preset_sizes
from .weights import Weights, started


@dataclass(frozen=True)
class BertConfig:
    """The configuration of a BERT, by default of BERT-base.

    vocab_size: number of tokens. hidden_size: the width of a token. num_hidden_layers: encoder layers.
    num_attention_heads: of a layer. intermediate_size: the hidden width of a layer's feed-forward network.
    hidden_dropout_prob: the probability of a zero after each layer. attention_probs_dropout_prob: the same of the
    attention weights. max_position_embeddings: the longest sequence. type_vocab_size: the number of token types.
    initializer_range: the standard deviation of initial weights. layer_norm_eps: added to the variance in LayerNorm.
    pad_token_id: the token whose embedding stays 0. Raises ArgumentError unless the sizes are positive integers and
    num_attention_heads divides hidden_size.
    """

    vocab_size: Size = 30522
    hidden_size: Size = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    initializer_range: Positive = 0.02
    layer_norm_eps: Positive = 1e-12
    pad_token_id: int | None = 0

    def __post_init__(self) -> None:
        counted = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        check_sizes(
            "BertConfig", **{n: getattr(self, n) for n in (*counted, "max_position_embeddings", "type_vocab_size")}
        )
        check_probability("BertConfig", self.hidden_dropout_prob)
        check_probability("BertConfig", self.attention_probs_dropout_prob)
        if self.hidden_size % self.num_attention_heads:
            got = f"{self.hidden_size} and {self.num_attention_heads}"
            raise ArgumentError("BertConfig", "hidden_size that num_attention_heads divides", got)


def _preset(layers: int, width: int, heads: int) -> dict[str, int]:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": 4 * width}


PRESETS: dict[str, dict[str, int]] = {
    "tiny": _preset(2, 128, 2),
    "mini": _preset(4, 256, 4),
    "small": _preset(4, 512, 8),
    "medium": _preset(8, 512, 8),
    "base": _preset(12, 768, 12),
    "large": _preset(24, 1024, 16),
}


class BertEmbeddings(nn.Module):
    """Sum of word, token type and position embeddings, normalized: [N, T] integers -> [N, T, hidden_size]. Figure 2."""

    def __init__(self, config: BertConfig):
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        if token_type_ids is None:
            token_type_ids = ops.zeros_like(input_ids)
        if position_ids is None:
            position_ids = ops.arange(input_ids.shape[1], device=input_ids.device)
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(x + self.position_embeddings(position_ids)))


class BertSelfAttention(nn.Module):
    """Self-attention to the positions where allowed [N, 1, 1, T] is True: [N, T, hidden_size] -> the same shape."""

    def __init__(self, config: BertConfig):
        super().__init__()
        width = config.hidden_size
        self.head_size, self.dropout = width // config.num_attention_heads, config.attention_probs_dropout_prob
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        n, t = x.shape[:2]
        projected = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.reshape(n, t, -1, self.head_size).transpose(1, 2) for part in projected)
        p = self.dropout if self.training else 0.0
        return ops.scaled_dot_product_attention(q, k, v, allowed, p).transpose(1, 2).reshape(n, t, -1)


class BertOutput(nn.Module):
    """LayerNorm(residual + dropout(Linear(x))): x [..., before], residual [..., hidden_size] -> [..., hidden_size]."""

    def __init__(self, before: int, config: BertConfig):
        super().__init__()
        self.dense = nn.Linear(before, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return norm_of_sum(residual, self.dense(x), self.dropout, self.LayerNorm)


class BertAttention(nn.Module):
    """BertSelfAttention and BertOutput: [N, T, hidden_size] -> [N, T, hidden_size]."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config.hidden_size, config)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        return self.output(self.self(x, allowed), x)


class BertLayer(nn.Module):
    """An encoder layer: attention, then a feed-forward network with GELU, each followed by residual and norm.

    x [N, T, hidden_size] -> the same shape.
    """

    def __init__(self, config: BertConfig):
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = BertOutput(config.intermediate_size, config)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        x = self.attention(x, allowed)
        return self.output(linear_gelu(x, self.intermediate.dense), x)


class BertModel(nn.Module):
    """input_ids [N, T] of integers -> (states [N, T, hidden_size], pooled [N, hidden_size] or None).

    attention_mask [N, T]: 1 or True for tokens, 0 or False for padding. token_type_ids [N, T]: which of two sentences a
    token belongs to, by default the first. position_ids [N, T] or [T]: 0 to T - 1 by default. pooled is tanh of a
    Linear of the first token's state. Weights are initialized from N(0, initializer_range^2), biases with zeros.
    Raises ShapeError for input_ids that are empty or longer than max_position_embeddings and for a mask of another
    shape, DTypeError for input_ids that are no integers.
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        layers = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        pooler = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.hidden_size)})
        self.register_module("pooler", pooler if add_pooling_layer else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weights of Linear and Embedding, and their biases."""
        _initialize(self, self.config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        self._check(input_ids, attention_mask)
        allowed = None if attention_mask is None else (attention_mask != 0)[:, None, None, :]
        x = self.embeddings(input_ids, token_type_ids, position_ids)
        for layer in self.encoder.layer:
            x = layer(x, allowed)
        return x, None if self.pooler is None else ops.tanh(self.pooler.dense(x[:, 0]))

    def _check(self, input_ids: Tensor, mask: Tensor | None) -> None:
        need_tokens("BertModel", "input_ids", input_ids, self.config.max_position_embeddings)
        if mask is not None and mask.shape != input_ids.shape:
            needs = f"attention_mask {list(input_ids.shape)}, as input_ids"
            raise ShapeError("BertModel", needs, f"{list(mask.shape)}")


class BertLMPredictionHead(nn.Module):
    """Linear, GELU and LayerNorm, then the logits of all tokens: [N, T, hidden_size] -> [N, T, vocab_size]."""

    def __init__(self, config: BertConfig):
        super().__init__()
        width = config.hidden_size
        norm = nn.LayerNorm(width, config.layer_norm_eps)
        self.transform = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": norm})
        self.decoder = nn.Linear(width, config.vocab_size)
        self.bias = new_parameter((config.vocab_size,))
        self.decoder.bias = self.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.transform.LayerNorm(linear_gelu(x, self.transform.dense)))


class BertForMaskedLM(nn.Module):
    """BERT for masked language modeling: input_ids [N, T] of integers -> logits [N, T, vocab_size].

    With labels [N, T] (-100 is ignored): (logits, mean cross entropy). The decoder shares the word embedding's
    Parameter. See BertModel for the other arguments and for what is raised. Section 3.1, task 1.
    """

    tensor_parallel_plan: ClassVar = {  # see distributed.tensor.parallelize_module
        "bert.embeddings.word_embeddings": "rowwise",
        "bert.encoder.layer.*.attention.self.*": "colwise",
        "bert.encoder.layer.*.attention.output.dense": "rowwise",
        "bert.encoder.layer.*.intermediate.dense": "colwise",
        "bert.encoder.layer.*.output.dense": "rowwise",
        "cls.predictions.decoder": "colwise_gathered",
    }
    pipeline_layers: ClassVar = "bert.encoder.layer"  # see distributed.pipelining.ModelStage

    def __init__(self, config: BertConfig):
        super().__init__()
        self.bert, self.tensor_parallel_heads = BertModel(config, add_pooling_layer=False), config.num_attention_heads
        self.cls = nn.ModuleDict({"predictions": BertLMPredictionHead(config)})
        self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight
        self._reset_head()

    def reset_parameters(self) -> None:
        """Initialize the weights of Linear and Embedding, and their biases."""
        self.bert.reset_parameters()
        self._reset_head()

    def _reset_head(self) -> None:
        _initialize(self.cls.predictions.transform, self.bert.config.initializer_range)
        nn.init.zeros_(self.cls.predictions.bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Any:
        states, _ = self.bert(input_ids, attention_mask, token_type_ids, position_ids)
        logits = self.cls.predictions(states)
        if labels is None:
            return logits
        return logits, ops.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    def _before_layers(self, input_ids: Tensor) -> Any:
        self.bert._check(input_ids, None)
        return self.bert.embeddings(input_ids)

    def _after_layers(self, states: Tensor) -> Any:
        return self.cls.predictions(states)


def _initialize(model: nn.Module, std: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            module._zero_padding_row()


def bert(preset: str = "tiny", *, weights: Weights | None = None, **changes: Any) -> BertForMaskedLM:
    """A BertForMaskedLM of a preset size; `changes` override fields of BertConfig: `bert("base", vocab_size=32000)`.

    Presets: tiny, mini, small, medium, base and large, with BERT's 30,522 tokens. Raises ArgumentError for another.
    weights: a file, folder or hub name to start from, of Hugging Face's layout; see `load_weights`.
    """
    return started(_build(**preset_sizes("bert", PRESETS, preset, changes)), weights)


def _build(**config: Any) -> BertForMaskedLM:
    return BertForMaskedLM(BertConfig(**config))


def _check(model: Any, data: Any) -> Iterator[Fault]:
    yield from divides(model, "num_attention_heads", "hidden_size")
    if data is not None and data.length > (most := model.max_position_embeddings):
        yield Fault("data.length", f"at most max_position_embeddings, {most}", str(data.length))


register_model(
    _build,
    "masked tokens",
    name="bert",
    signature=BertConfig,
    exclude=("pad_token_id",),
    defaults=PRESETS["tiny"],
    check=_check,
)
