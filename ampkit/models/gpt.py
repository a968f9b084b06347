"""GPT: a pre-norm decoder of GPT-2's shapes, with GPT-2's parameter names in Linear's layout [out, in].

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3 and table 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from .. import nn, ops
from ..base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ..base.limits import Layers, Probability, Size
from ..base.registry import Fault, divides, register_model
from ..core.arguments import shown
from ..core.tensor import Tensor
from ..nn import init
from ..nn.factory import check_sizes
from ..nn.modules.fused import add_norm, chain, norm_of_sum, self_attention
from .token_models import need_tokens, preset_sizes
from .weights import Weights, started
from .weights.tables import GPT2, has_conv1d

PRESETS: dict[str, dict[str, int]] = {
    "nano": {"vocab_size": 256, "block_size": 128, "n_layer": 4, "n_head": 4, "n_embd": 128},
    "small": {"vocab_size": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768},
    "medium": {"vocab_size": 50257, "block_size": 1024, "n_layer": 24, "n_head": 16, "n_embd": 1024},
    "large": {"vocab_size": 50257, "block_size": 1024, "n_layer": 36, "n_head": 20, "n_embd": 1280},
    "xl": {"vocab_size": 50257, "block_size": 1024, "n_layer": 48, "n_head": 25, "n_embd": 1600},
}


class CausalSelfAttention(nn.Module):
    """Causal multi-head self-attention: [N, T, n_embd] -> [N, T, n_embd]."""

    def __init__(self, n_embd: int, n_head: int, dropout: float, bias: bool):
        super().__init__()
        self.n_head, self.head_size, self.dropout = n_head, n_embd // n_head, dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias)

    def forward(self, x: Tensor) -> Tensor:
        projected, p = self.c_attn(x), self.dropout if self.training else 0.0
        heads, rest = divmod(projected.shape[-1], 3 * self.head_size)  # fewer where ranks divide them
        if rest:
            raise ShapeError("GPT", f"whole heads of {self.head_size}", f"{projected.shape[-1]} projected features")
        return self.c_proj(self_attention(projected, heads, p, is_causal=True))


class MLP(nn.Module):
    """Linear to 4 n_embd, GELU (tanh approximation), Linear back: [N, T, n_embd] -> [N, T, n_embd]."""

    def __init__(self, n_embd: int, bias: bool):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias)
        self.gelu = nn.GELU("tanh")
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias)

    def forward(self, x: Tensor) -> Tensor:
        return chain(x, self.c_fc, self.gelu, self.c_proj)


class Block(nn.Module):
    """A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)).

    (x [N, T, n_embd], branch [N, T, n_embd] or None) -> (x, branch). branch is the output of the previous block's MLP,
    which this block adds to x, so that the sum and this block's first norm run as one op.
    """

    def __init__(self, n_embd: int, n_head: int, dropout: float, bias: bool):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.attn = CausalSelfAttention(n_embd, n_head, dropout, bias)
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.mlp = MLP(n_embd, bias)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, branch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        attn, mlp, dropout = self.attn, self.mlp, self.resid_dropout
        if branch is None:
            normed = self.ln_1(x)
        else:
            x, normed = add_norm(x, branch, dropout, self.ln_1, attn, attn.c_attn)
        x, normed = add_norm(x, attn(normed), dropout, self.ln_2, mlp, mlp.c_fc)
        return x, mlp(normed)


class GPT(nn.Module):
    """A GPT-2 language model: idx [N, T] of integers -> logits of the next token [N, T, vocab_size].

    With targets [N, T] (-100 is ignored): (logits, mean cross entropy). vocab_size: number of tokens. block_size: the
    longest sequence, in tokens. n_layer: blocks. n_head: attention heads of a block. n_embd: the width of a token.
    dropout: the probability of a zero. bias: of Linear and LayerNorm. tie_weights: the head shares the embedding's
    Parameter.
    Weights are initialized from N(0, 0.02^2), those of c_proj with standard deviation 0.02/sqrt(2 n_layer), biases with
    zeros. Raises ArgumentError unless the sizes are positive integers and n_head divides n_embd; ShapeError for idx
    that is empty or longer than block_size, DTypeError for idx that is no integers.
    """

    tensor_parallel_plan: ClassVar = {  # see distributed.tensor.parallelize_module
        "transformer.wte": "rowwise",
        "transformer.h.*.attn.c_attn": "colwise_qkv",
        "transformer.h.*.attn.c_proj": "rowwise",
        "transformer.h.*.mlp.c_fc": "colwise",
        "transformer.h.*.mlp.c_proj": "rowwise",
        "lm_head": "colwise_gathered",
    }
    pipeline_layers: ClassVar = "transformer.h"  # see distributed.pipelining.ModelStage

    def __init__(
        self,
        vocab_size: Size,
        block_size: Size,
        n_layer: Layers,
        n_head: Size,
        n_embd: Size,
        dropout: Probability = 0.0,
        bias: bool = True,
        tie_weights: bool = True,
    ):
        super().__init__()
        check_sizes("GPT", vocab_size=vocab_size, block_size=block_size, n_layer=n_layer, n_head=n_head, n_embd=n_embd)
        if n_embd % n_head:
            raise ArgumentError("GPT", "n_embd that n_head divides", f"{n_embd} and {n_head}")
        self.vocab_size, self.block_size, self.tensor_parallel_heads = vocab_size, block_size, n_head
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(Block(n_embd, n_head, dropout, bias) for _ in range(n_layer)),
                "ln_f": nn.LayerNorm(n_embd, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        if tie_weights:
            self.lm_head.weight = self.transformer.wte.weight
        self.reset_parameters(n_layer)

    def reset_parameters(self, n_layer: int) -> None:
        """Initialize the weights of Linear and Embedding, and all biases."""
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                init.zeros_(parameter)
            elif parameter.ndim == 2:
                init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if has_conv1d(state_dict):  # would fit in part
            needs, got = "weights as Linear keeps them, [out, in]", "those of Hugging Face's GPT-2, [in, out]"
            raise StateError("GPT.load_state_dict", needs, got, _CURE)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        x, branch = self._before_layers(idx), None
        for block in self.transformer.h:
            x, branch = block(x, branch)
        logits = self._after_layers(x, branch)
        if targets is None:
            return logits
        return logits, ops.cross_entropy(logits.reshape(-1, self.vocab_size), targets.reshape(-1))

    def _before_layers(self, idx: Tensor) -> Any:
        need_tokens("GPT", "idx", idx, self.block_size)
        parts = self.transformer
        position = ops.arange(idx.shape[1], device=idx.device)
        return parts.drop(parts.wte(idx) + parts.wpe(position))

    def _after_layers(self, x: Tensor, branch: Any) -> Any:
        return self.lm_head(norm_of_sum(x, branch, self.transformer.drop, self.transformer.ln_f))


def gpt(preset: str = "nano", *, weights: Weights | None = None, **changes: Any) -> GPT:
    """A GPT of a preset size; `changes` override arguments of GPT: `gpt("small", dropout=0.1)`.

    Presets: nano (bytes, 4 layers of width 128) and GPT-2's small, medium, large and xl; ArgumentError for another.
    weights: a file, folder or hub name to start from, of Hugging Face's layout, or with Linear in place of Conv1D; see
    `load_weights`.
    """
    return started(GPT(**preset_sizes("gpt", PRESETS, preset, changes)), weights)


def _check(model: Any, data: Any) -> Iterator[Fault]:
    yield from divides(model, "n_head", "n_embd")


register_model(GPT, "tokens", name="gpt", defaults=PRESETS["nano"], check=_check)


_CURE = "model.load_state_dict(ampkit.models.from_hugging_face_gpt2(state_dict))"


def from_hugging_face_gpt2(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The state of `GPT` from one of Hugging Face's GPT2LMHeadModel or GPT2Model: {name: tensor} -> {name: tensor}.

    The weights of Conv1D layers [in, out] are transposed to Linear's layout [out, in], attention masks are left out,
    and names without it get the prefix `transformer.`. `load_weights` does the same for files. Raises StateError for a
    state that is not in that layout.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(name, str) for name in state_dict):
        raise DTypeError("from_hugging_face_gpt2", "a dict of tensors by name", shown(state_dict))
    if not has_conv1d(state_dict):
        raise StateError("from_hugging_face_gpt2", "the state of a Hugging Face GPT-2", "another one")
    return GPT2.convert(state_dict).state
