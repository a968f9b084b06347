"""BERT: its formula, masks, tied weights, starting values, and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ampkit import models, optim, tensor
from ampkit.base import dtypes
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.core import random
from ampkit.core.policy import autocast

RNG = np.random.default_rng(0)
CONFIG = models.BertConfig(
    vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=6,
)  # fmt: skip


def drawn(model):
    model.double().eval()
    for parameter in model.parameters():
        parameter.data = RNG.standard_normal(parameter.shape) / 2
    return model, {name: value.numpy() for name, value in model.state_dict().items()}


def ids(*shape):
    return RNG.integers(1, 11, shape)


class Formula:
    """BERT of one layer and two heads in NumPy."""

    def __init__(self, state):
        self.state = state

    def linear(self, x, name):
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def norm(self, x, name):
        hat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return hat * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def attention(self, x, mask, name):
        q, k, v = (
            self.linear(x, f"{name}.self.{part}").reshape(*x.shape[:2], 2, -1).swapaxes(1, 2)
            for part in ("query", "key", "value")
        )
        weight = np.exp(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) * mask[:, None, None]
        mixed = (weight / weight.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(x.shape)
        return self.norm(self.linear(mixed, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")

    def states(self, idx, mask, types, lead=""):
        table = [
            self.state[f"{lead}embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
        ]
        x = table[0][idx] + table[1][: idx.shape[1]] + table[2][types]
        x = self.norm(x, f"{lead}embeddings.LayerNorm")
        layer = f"{lead}encoder.layer.0"
        x = self.attention(x, mask, f"{layer}.attention")
        wide = gelu(self.linear(x, f"{layer}.intermediate.dense"))
        return self.norm(self.linear(wide, f"{layer}.output.dense") + x, f"{layer}.output.LayerNorm")


def gelu(x):
    return x * np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)(x)


@pytest.mark.cpu
def test_bert_is_attention_to_what_is_no_padding_and_pools_the_first_token():
    model, state = drawn(models.BertModel(CONFIG))
    idx, types, mask = ids(2, 5), RNG.integers(0, 2, (2, 5)), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    states, pooled = model(*map(tensor, (idx, mask, types)))
    expected = Formula(state).states(idx, mask, types)
    np.testing.assert_allclose(states.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    first = np.tanh(Formula(state).linear(expected[:, 0], "pooler.dense"))
    np.testing.assert_allclose(pooled.detach().numpy(), first, rtol=1e-9, atol=1e-12)


@pytest.mark.cpu
def test_the_masked_words_are_guessed_by_the_word_embedding():
    model, state = drawn(models.BertForMaskedLM(CONFIG))
    idx, labels = ids(2, 5), np.array([[3, -100, -100, 7, -100], [-100, -100, 2, -100, -100]])
    logits, loss = model(tensor(idx), labels=tensor(labels))
    use, head = Formula(state), "cls.predictions"
    x = use.states(idx, np.ones_like(idx), np.zeros_like(idx), "bert.")
    x = use.norm(gelu(use.linear(x, f"{head}.transform.dense")), f"{head}.transform.LayerNorm")
    expected = x @ state["bert.embeddings.word_embeddings.weight"].T + state[f"{head}.bias"]
    np.testing.assert_allclose(logits.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    log = expected - np.log(np.exp(expected).sum(-1, keepdims=True))
    rows = [log[0, 0, 3], log[0, 3, 7], log[1, 2, 2]]
    np.testing.assert_allclose(loss.item(), -np.mean(rows), rtol=1e-9)
    np.testing.assert_array_equal(model(tensor(idx)).detach().numpy(), logits.detach().numpy())


def test_padding_changes_nothing_for_the_other_tokens():
    model, _ = drawn(models.BertModel(CONFIG))
    idx = ids(1, 3)
    padded = np.concatenate([idx, np.zeros((1, 2), int)], 1)
    for mask in (np.array([[1, 1, 1, 0, 0]]), np.array([[True] * 3 + [False] * 2])):
        long, _ = model(tensor(padded), tensor(mask))
        np.testing.assert_allclose(long.detach().numpy()[:, :3], model(tensor(idx))[0].detach().numpy(), rtol=1e-9)


def test_positions_can_be_given():
    model, _ = drawn(models.BertModel(CONFIG))
    idx, order = ids(1, 3), np.array([[2, 0, 1]])
    turned, _ = model(tensor(idx), position_ids=tensor(order))
    straight, _ = model(tensor(idx[:, np.argsort(order[0])]))
    np.testing.assert_allclose(
        turned.detach().numpy()[:, np.argsort(order[0])], straight.detach().numpy(), rtol=1e-9, atol=1e-12
    )


def test_the_head_is_tied_to_the_embedding_and_stays_so():
    model = models.BertForMaskedLM(CONFIG).double()
    head = model.cls.predictions
    assert head.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert head.decoder.bias is head.bias
    state = model.state_dict()
    del state["cls.predictions.decoder.weight"], state["cls.predictions.decoder.bias"]
    models.BertForMaskedLM(CONFIG).load_state_dict(state)


@pytest.mark.cpu
def test_bert_starts_normal_with_biases_and_the_padding_row_at_zero():
    state = {name: value.numpy() for name, value in models.bert("tiny", vocab_size=500).state_dict().items()}
    words = state["bert.embeddings.word_embeddings.weight"]
    assert words[1:].std() == pytest.approx(0.02, rel=0.02)
    assert not words[0].any()
    assert state["bert.encoder.layer.1.intermediate.dense.weight"].std() == pytest.approx(0.02, rel=0.02)
    assert state["cls.predictions.transform.dense.weight"].std() == pytest.approx(0.02, rel=0.02)
    assert not any(v.any() for n, v in state.items() if n.endswith("bias"))
    assert all((v == 1).all() for n, v in state.items() if n.endswith("LayerNorm.weight"))


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_in_autocast_states_are_float32_and_logits_low(dtype):
    model = models.BertForMaskedLM(CONFIG).eval()
    with autocast(dtype=dtype):
        idx = tensor(ids(2, 4))
        states, _ = model.bert(idx)
        assert (states.dtype, model(idx).dtype) == (dtypes.float32, dtype)


def test_bert_learns_a_batch_by_heart():
    random.manual_seed(0)
    model = models.BertForMaskedLM(CONFIG).eval()
    idx = tensor(ids(4, 5))
    optimizer, losses = optim.AdamW(model.parameters(), lr=3e-2), []
    for _ in range(12):
        _, loss = model(idx, labels=idx)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


WRONG = [
    (
        lambda: models.bert("huge"),
        ArgumentError,
        "bert: needs a preset: tiny, mini, small, medium, base, large, got 'h",
    ),
    (
        lambda: models.bert(num_attention_heads=3),
        ArgumentError,
        "BertConfig: needs hidden_size that num_attention_heads divides, got 128 and 3",
    ),
    (lambda: models.BertConfig(vocab_size=0), ArgumentError, "BertConfig: needs vocab_size as a positive integer"),
    (lambda: models.BertConfig(hidden_dropout_prob=2), ArgumentError, "BertConfig: needs a probability p from 0 to 1"),
    (
        lambda: models.BertModel(CONFIG)(tensor(ids(1, 7))),
        ShapeError,
        "BertModel: needs input_ids [N, T] with N >= 1 and 1 <= T <= 6, got shape (1, 7)",
    ),
    (
        lambda: models.BertModel(CONFIG)(tensor([[1.0]])),
        DTypeError,
        "BertModel: needs input_ids of integers, got float",
    ),
    (
        lambda: models.BertModel(CONFIG)(tensor(ids(2, 3)), tensor(np.ones((2, 4)))),
        ShapeError,
        "BertModel: needs attention_mask [2, 3], as input_ids, got [2, 4]",
    ),
]


@pytest.mark.parametrize(("make", "kind", "line"), WRONG, ids=[line for *_, line in WRONG])
def test_a_wrong_argument_or_input_gives_one_clear_line(make, kind, line):
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value).startswith(line)
