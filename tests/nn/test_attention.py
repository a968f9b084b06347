"""MultiheadAttention against a NumPy formula, head by head."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import nn, tensor
from ampkit.base.errors import DTypeError, ShapeError
from ampkit.core import random

RNG = np.random.default_rng(0)
N, L, S, E, H = 3, 4, 5, 6, 2
CAUSAL = np.triu(np.ones((L, S), bool), 1)
PADDING = np.arange(S) >= np.array([[5], [3], [4]])
FLOATS = RNG.standard_normal((N * H, L, S))


def made(**options):
    layer = nn.MultiheadAttention(E, H, batch_first=True, **options).double()
    for parameter in layer.parameters():
        parameter.data = RNG.standard_normal(parameter.shape)
    return layer


def formula(layer, query, key, value, blocked=None, added=0.0):
    weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    weights = np.split(layer.in_proj_weight.array, 3) if weights[0] is None else [w.array for w in weights]
    biases = np.zeros((3, E)) if layer.in_proj_bias is None else layer.in_proj_bias.array.reshape(3, E)
    q, k, v = (t @ w.T + b for t, w, b in zip((query, key, value), weights, biases, strict=True))
    mixed, shares = np.zeros((N, L, E)), np.zeros((N, H, L, S))
    for n in range(N):
        for h in range(H):
            part = slice(h * E // H, (h + 1) * E // H)
            scores = q[n, :, part] @ k[n, :, part].T / np.sqrt(E / H) + np.broadcast_to(added, (N, H, L, S))[n, h]
            scores[np.broadcast_to(False if blocked is None else blocked, (N, H, L, S))[n, h]] = -np.inf
            shares[n, h] = np.exp(scores - scores.max(1, keepdims=True))
            shares[n, h] /= shares[n, h].sum(1, keepdims=True)
            mixed[n, :, part] = shares[n, h] @ v[n, :, part]
    bias = 0 if layer.out_proj.bias is None else layer.out_proj.bias.array
    return mixed @ layer.out_proj.weight.array.T + bias, shares


def inputs(kdim=E, vdim=E):
    return RNG.standard_normal((N, L, E)), RNG.standard_normal((N, S, kdim)), RNG.standard_normal((N, S, vdim))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("options", "masks", "blocked", "added"),
    [
        ({}, {}, None, 0.0),
        ({"bias": False}, {"attn_mask": CAUSAL}, CAUSAL, 0.0),
        ({"kdim": 3, "vdim": 2}, {"key_padding_mask": PADDING}, PADDING[:, None, None], 0.0),
        ({}, {"key_padding_mask": PADDING, "attn_mask": CAUSAL}, PADDING[:, None, None] | CAUSAL, 0.0),
        ({}, {"key_padding_mask": PADDING, "attn_mask": FLOATS}, PADDING[:, None, None], FLOATS.reshape(N, H, L, S)),
        ({}, {"key_padding_mask": PADDING, "attn_mask": FLOATS[0]}, PADDING[:, None, None], FLOATS[0]),
        ({}, {"is_causal": True}, CAUSAL, 0.0),
    ],
    ids=[
        "plain",
        "causal mask",
        "padding",
        "both",
        "padding and floats",
        "padding and one table of floats",
        "is_causal",
    ],
)
def test_attention_follows_its_formula_with_and_without_weights(options, masks, blocked, added):
    layer, arrays = made(**options), inputs(options.get("kdim", E), options.get("vdim", E))
    masks = {name: tensor(mask) if isinstance(mask, np.ndarray) else mask for name, mask in masks.items()}
    expected, shares = formula(layer, *arrays, blocked, added)
    out, weights = layer(*map(tensor, arrays), **masks)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(weights.detach().numpy(), shares.mean(1), rtol=1e-9, atol=1e-12)
    out, weights = layer(*map(tensor, arrays), **masks, need_weights=False)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    assert weights is None


@pytest.mark.cpu
def test_self_attention_is_the_case_where_all_three_are_one():
    layer = made()
    x = tensor(RNG.standard_normal((N, L, E)), requires_grad=True)
    one, weights = layer(x, x, x, average_attn_weights=False)
    three, _ = layer(x, tensor(x.detach()), tensor(x.detach()))
    np.testing.assert_allclose(one.detach().numpy(), three.detach().numpy(), rtol=1e-9)
    assert weights.shape == (N, H, L, L)
    one.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"dropout": 0.5}, {"add_zero_attn": True}], ids=str)
def test_without_weights_one_tensor_is_attended_to_as_three_equal_ones_are(options, is_causal):
    layer, values, given = made(**options), RNG.standard_normal((N, L, E)), []
    for several in (False, True):
        random.manual_seed(3)
        x = tensor(values, requires_grad=True)
        others = [tensor(values) for _ in range(2)] if several else [x, x]
        out, weights = layer(x, *others, need_weights=False, is_causal=is_causal)
        assert weights is None
        given.append(out.detach().numpy())
    np.testing.assert_allclose(*given, rtol=1e-9, atol=1e-12)


def test_the_batch_axis_may_be_second_or_missing():
    layer, arrays = made(), inputs()
    expected = layer(*map(tensor, arrays))[0].detach().numpy()
    layer.batch_first = False
    out, weights = layer(*(tensor(a.swapaxes(0, 1)) for a in arrays))
    np.testing.assert_allclose(out.detach().numpy(), expected.swapaxes(0, 1), rtol=1e-9)
    assert weights.shape == (N, L, S)
    out, weights = layer(*(tensor(a[0]) for a in arrays), key_padding_mask=tensor(np.zeros(S, bool)))
    np.testing.assert_allclose(out.detach().numpy(), expected[0], rtol=1e-9)
    assert weights.shape == (L, S)


@pytest.mark.cpu
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_query_that_may_look_at_nothing_gets_zeros(need_weights):
    layer, arrays = made(), inputs()
    blocked = np.zeros((L, S), bool)
    blocked[1] = True
    out, _ = layer(*map(tensor, arrays), attn_mask=tensor(blocked), need_weights=need_weights)
    np.testing.assert_allclose(
        out.detach().numpy()[:, 1], np.broadcast_to(layer.out_proj.bias.array, (N, E)), atol=1e-12
    )
    out.sum().backward()
    assert all(np.isfinite(p.grad.array).all() for p in layer.parameters())


@pytest.mark.cpu
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padding", [False, True])
def test_so_does_one_that_infinities_block(need_weights, padding):
    layer, (query, key, value) = made(), map(tensor, inputs())
    added = np.where(np.arange(L)[:, None] == 1, -np.inf, np.zeros((L, S)))
    mask = tensor(PADDING) if padding else None
    out, _ = layer(query, key, value, mask, attn_mask=tensor(added), need_weights=need_weights)
    np.testing.assert_allclose(
        out.detach().numpy()[:, 1], np.broadcast_to(layer.out_proj.bias.array, (N, E)), atol=1e-12
    )
    out.sum().backward()
    assert all(np.isfinite(p.grad.array).all() for p in layer.parameters())


@pytest.mark.cpu
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_learned_key_and_one_of_zeros_stand_behind_the_others_and_nothing_blocks_them(need_weights):
    layer, (query, key, value) = made(add_bias_kv=True, add_zero_attn=True), inputs()
    assert list(layer.state_dict())[2:4] == ["bias_k", "bias_v"]
    assert layer.bias_k.shape == layer.bias_v.shape == (1, 1, E)
    w, b = np.split(layer.in_proj_weight.array, 3), layer.in_proj_bias.array.reshape(3, E)
    q, k, v = (t @ w.T + b for t, w, b in zip((query, key, value), w, b, strict=True))
    last = (np.broadcast_to(p.array, (N, 1, E)) for p in (layer.bias_k, layer.bias_v))
    k, v = (np.concatenate([t, one, np.zeros((N, 1, E))], 1) for t, one in zip((k, v), last, strict=True))
    q, k, v = (t.reshape(N, -1, H, E // H).swapaxes(1, 2) for t in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(E / H)
    scores[..., :S][np.broadcast_to(PADDING[:, None, None] | CAUSAL, (N, H, L, S))] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    expected = (shares @ v).swapaxes(1, 2).reshape(N, L, E) @ layer.out_proj.weight.array.T + layer.out_proj.bias.array
    out, weights = layer(
        *map(tensor, (query, key, value)), tensor(PADDING), need_weights, is_causal=True, average_attn_weights=False
    )
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    if need_weights:
        np.testing.assert_allclose(weights.detach().numpy(), shares, rtol=1e-9, atol=1e-12)


def test_dropout_of_the_weights_works_while_training_only():
    random.manual_seed(0)
    layer, arrays = made(dropout=0.5), inputs()
    _, weights = layer(*map(tensor, arrays), average_attn_weights=False)
    assert 0.2 < (weights.detach().numpy() == 0).mean() < 0.8
    _, weights = layer.eval()(*map(tensor, arrays))
    np.testing.assert_allclose(weights.detach().numpy().sum(-1), 1)


def test_the_state_has_pytorchs_names_and_shapes():
    shapes = {name: tuple(value.shape) for name, value in made().state_dict().items()}
    assert shapes == {
        "in_proj_weight": (18, 6),
        "in_proj_bias": (18,),
        "out_proj.weight": (6, 6),
        "out_proj.bias": (6,),
    }
    names = list(made(kdim=3, bias=False).state_dict())
    assert names == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]


def test_misfit_inputs_and_masks_give_one_clear_line():
    layer, (query, key, value) = made(), map(tensor, inputs())
    with pytest.raises(
        ShapeError, match=r"MultiheadAttention: needs value \[3, 5, 6\] \(batch, length, width\), got \[3, 4, 6\]"
    ):
        layer(query, key, query)
    with pytest.raises(ShapeError, match=r"needs attn_mask \[4, 5\] or \[6, 4, 5\], got \[5, 4\]"):
        layer(query, key, value, attn_mask=tensor(CAUSAL.T.copy()))
    with pytest.raises(DTypeError, match="needs key_padding_mask of booleans or floats, got int64"):
        layer(query, key, value, key_padding_mask=tensor(PADDING.astype(np.int64)))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
@pytest.mark.parametrize("need_weights", [False, True])
def test_empty_batches_and_sequences_have_empty_outputs(shape, need_weights):
    layer, x = nn.MultiheadAttention(4, 2, batch_first=True), ampkit.ones(*shape, requires_grad=True)
    out, weights = layer(x, ampkit.ones(shape[0], 5, 4), ampkit.ones(shape[0], 5, 4), need_weights=need_weights)
    assert out.shape == shape
    assert (weights is None) != need_weights
    out.sum().backward()
    assert x.grad.shape == shape
    assert not layer.in_proj_bias.grad[:4].any()
