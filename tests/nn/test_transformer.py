"""Transformer layers and stacks against a NumPy formula, in float64."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

import ampkit
from ampkit import nn, ops, tensor
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(0)
N, L, S, E, H = 2, 3, 4, 6, 2
CAUSAL = np.triu(np.ones((L, L), bool), 1)
PADDING = np.arange(S) >= np.array([[4], [2]])


def filled(module):
    for parameter in module.double().parameters():
        parameter.data = RNG.standard_normal(parameter.shape) / 2
    return module


def values(t):
    return t.numpy(force=True)


def linear(layer, x):
    return x @ values(layer.weight).T + (0 if layer.bias is None else values(layer.bias))


def normalized(layer, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + layer.eps)
    return x * values(layer.weight) + (0 if layer.bias is None else values(layer.bias))


def attention(layer, x, keys, added=0.0):
    weights = np.split(values(layer.in_proj_weight), 3)
    biases = np.zeros((3, E)) if layer.in_proj_bias is None else values(layer.in_proj_bias).reshape(3, E)
    q, k, v = (
        (t @ w.T + b).reshape(N, -1, H, E // H).swapaxes(1, 2)
        for t, w, b in zip((x, keys, keys), weights, biases, strict=True)
    )
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(E / H) + added
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return linear(layer.out_proj, (shares @ v).swapaxes(1, 2).reshape(x.shape))


def formula(layer, x, memory=None, added=0.0, memory_added=0.0):
    parts = [lambda t: attention(layer.self_attn, t, t, added)]
    if memory is not None:
        parts.append(lambda t: attention(layer.multihead_attn, t, memory, memory_added))
    parts.append(lambda t: linear(layer.linear2, np.maximum(linear(layer.linear1, t), 0)))
    for i, part in enumerate(parts, 1):
        norm = getattr(layer, f"norm{i}")
        x = x + part(normalized(norm, x)) if layer.norm_first else normalized(norm, x + part(x))
    return x


def closed(blocked):
    return np.where(blocked, -np.inf, 0.0)


def close(got, want):
    np.testing.assert_allclose(values(got), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "bias": False, "layer_norm_eps": 0.1}])
def test_an_encoder_layer_follows_its_formula(options):
    layer = filled(nn.TransformerEncoderLayer(E, H, 5, 0.0, batch_first=True, **options))
    x = RNG.standard_normal((N, S, E))
    close(layer(tensor(x)), formula(layer, x))
    close(
        layer(tensor(x), src_key_padding_mask=tensor(PADDING)), formula(layer, x, added=closed(PADDING)[:, None, None])
    )
    stack, later = nn.TransformerEncoder(layer, 1), closed(np.triu(np.ones((S, S), bool), 1))
    close(stack(tensor(x), is_causal=True), formula(layer, x, added=later))
    close(stack(tensor(x), tensor(later), is_causal=True), formula(layer, x, added=later))
    table = RNG.standard_normal((N * H, S, S))
    close(layer(tensor(x), tensor(table)), formula(layer, x, added=table.reshape(N, H, S, S)))


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "bias": False}])
def test_a_decoder_layer_follows_its_formula(options):
    layer = filled(nn.TransformerDecoderLayer(E, H, 5, 0.0, batch_first=True, **options))
    x, memory = RNG.standard_normal((N, L, E)), RNG.standard_normal((N, S, E))
    hidden = PADDING[:, None, None]
    expected = formula(layer, x, memory, closed(CAUSAL), closed(hidden))
    for causal in ({"tgt_mask": tensor(CAUSAL)}, {"tgt_mask": tensor(closed(CAUSAL))}, {"tgt_is_causal": True}):
        close(layer(tensor(x), tensor(memory), memory_key_padding_mask=tensor(PADDING), **causal), expected)
    later = np.triu(np.ones((L, S), bool), 1)
    close(
        layer(tensor(x), tensor(memory), memory_is_causal=True, tgt_key_padding_mask=tensor(np.zeros((N, L), bool))),
        formula(layer, x, memory, memory_added=closed(later)),
    )


def test_the_whole_is_a_stack_after_a_stack_in_either_order_of_axes():
    model = filled(nn.Transformer(E, H, 2, 1, 5, 0.0, batch_first=True))
    src, tgt = RNG.standard_normal((N, S, E)), RNG.standard_normal((N, L, E))
    memory = src
    for layer in model.encoder.layers:
        memory = formula(layer, memory, added=closed(PADDING)[:, None, None])
    memory = normalized(model.encoder.norm, memory)
    expected = formula(model.decoder.layers[0], tgt, memory, closed(CAUSAL), closed(PADDING)[:, None, None])
    expected = normalized(model.decoder.norm, expected)
    padding = {"src_key_padding_mask": tensor(PADDING), "memory_key_padding_mask": tensor(PADDING)}
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    close(model(tensor(src), tensor(tgt), tgt_mask=mask, **padding), expected)
    close(model(tensor(src), tensor(tgt), tgt_is_causal=True, **padding), expected)
    twin = nn.Transformer(E, H, 2, 1, 5, 0.0).double()
    twin.load_state_dict(model.state_dict())
    out = twin(tensor(src.swapaxes(0, 1)), tensor(tgt.swapaxes(0, 1)), tgt_mask=mask, **padding)
    close(out, expected.swapaxes(0, 1))
    one = {name: tensor(PADDING[0]) for name in padding}
    close(twin(tensor(src[0]), tensor(tgt[0]), tgt_mask=mask, **one), expected[0])


def test_the_state_has_pytorchs_names():
    layer = nn.TransformerDecoderLayer(E, H, 5)
    attention = [f"{p}.{q}" for p in ("in_proj", "out_proj") for q in ("weight", "bias")]
    attention = [name.replace("in_proj.", "in_proj_") for name in attention]
    rest = [f"{part}.{q}" for part in ("linear1", "linear2", "norm1", "norm2", "norm3") for q in ("weight", "bias")]
    names = [f"{a}.{name}" for a in ("self_attn", "multihead_attn") for name in attention] + rest
    assert list(layer.state_dict()) == names
    stack = nn.TransformerDecoder(layer, 2, nn.LayerNorm(E))
    stacked = [f"layers.{i}.{name}" for i in range(2) for name in names]
    assert list(stack.state_dict()) == [*stacked, "norm.weight", "norm.bias"]
    model = nn.Transformer(E, H, 1, 1, 5)
    assert {name.partition(".")[0] for name in model.state_dict()} == {"encoder", "decoder"}


def test_the_copies_of_a_layer_share_values_and_no_memory():
    layer = nn.TransformerEncoderLayer(E, H, 5, activation="gelu")
    first, second = nn.TransformerEncoder(layer, 2).layers
    assert first.activation is second.activation is ops.gelu
    assert first.linear1.weight.tolist() == second.linear1.weight.tolist()
    with ampkit.no_grad():
        first.linear1.weight.zero_()
    assert second.linear1.weight.abs().sum() > 0


def test_an_op_is_copied_and_pickled_as_itself():
    for op in (ops.relu, ops.gelu, ops.layer_norm):
        assert copy.deepcopy(op) is op
        assert pickle.loads(pickle.dumps(op)) is op


def test_a_transformer_trains_in_float16_with_dropout():
    ampkit.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True, activation=ops.silu)
    optimizer, scaler = ampkit.optim.AdamW(model.parameters(), lr=3e-3), ampkit.GradScaler(init_scale=64.0)
    x, losses = tensor(RNG.standard_normal((4, 5, 8)).astype(np.float32)), []
    for _ in range(12):
        with ampkit.autocast(dtype=ampkit.float16):
            loss = ops.mse_loss(model(x, x, tgt_is_causal=True), x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_what_does_not_fit_gives_one_clear_line():
    with pytest.raises(ArgumentError, match="TransformerEncoderLayer: needs activation 'relu', 'gelu' or a function"):
        nn.TransformerEncoderLayer(E, H, activation="tanhh")
    with pytest.raises(ArgumentError, match="embed_dim that num_heads divides"):
        nn.TransformerEncoderLayer(7, 2)
    with pytest.raises(DTypeError, match="TransformerEncoder: needs encoder_layer as a Module, got 3"):
        nn.TransformerEncoder(3, 2)
    with pytest.raises(ArgumentError, match="num_layers as a positive integer"):
        nn.TransformerDecoder(nn.TransformerDecoderLayer(E, H, 5), 0)
    model = nn.Transformer(E, H, 1, 1, 5)
    with pytest.raises(ShapeError, match=r"Transformer: needs src and tgt of one batch size and 6 wide"):
        model(ops.zeros(4, 2, E), ops.zeros(3, 1, E))
    with pytest.raises(DTypeError, match="MultiheadAttention: needs a Tensor for `query`, got ndarray"):
        nn.TransformerEncoderLayer(E, H, 5)(np.zeros((3, 2, E), np.float32))
    with pytest.raises(DTypeError, match="Transformer: needs a Tensor for `tgt`, got None"):
        model(ops.zeros(4, 2, E), None)
