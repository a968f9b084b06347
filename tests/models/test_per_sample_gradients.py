"""Gradients of each sample of every model: one call for the whole batch, and the values of a loop."""

from __future__ import annotations

import numpy as np
import pytest
from models.test_models import CASES

import ampkit
from ampkit import autocast, func, nn, ops
from ampkit.core.dispatch.batching.call import watching_loops
from ampkit.core.tensor import Tensor


class Tagger(nn.Module):
    """Tokens through bags of features, recurrent layers and a CTC loss."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(9, 5, padding_idx=0)
        self.layers = getattr(nn, kind)(5, 4, num_layers=2, bidirectional=True)
        self.cell = nn.GRUCell(8, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        steps, batch, width = tokens.shape
        out = self.layers(self.bags(tokens.reshape(-1, width)).reshape(steps, batch, -1))[0]
        scores = self.head(self.cell(out.reshape(steps * batch, -1))).reshape(steps, batch, -1).log_softmax(-1)
        target, full = ops.full((batch, 2), 1, dtype=ampkit.int64), [steps] * batch
        return ops.ctc_loss(scores, target, full, [2] * batch)


def tokens():
    return ampkit.tensor(np.random.default_rng(2).integers(0, 9, (6, 5, 3)))


MADE = {name: (make, data) for name, (make, data, _) in CASES.items()}
MADE |= {kind: (lambda kind=kind: Tagger(kind), tokens) for kind in ("LSTM", "GRU", "RNN")}


def of(name):
    """The parameters, a loss of one sample, and samples."""
    make, data = MADE[name]
    model, x = make().eval(), data()

    def loss(params, row):
        given = row.unsqueeze(1 if isinstance(model, Tagger) else 0)
        return func.functional_call(model, params, (given,)).float().square().mean()

    return {key: p.detach() for key, p in model.named_parameters()}, loss, x[:2] if x.ndim > 3 else x


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_op_of_a_model_runs_once_per_sample(name, dtype):
    params, loss, x = of(name)
    axis = 1 if name in ("LSTM", "GRU", "RNN") else 0
    with autocast(dtype=ampkit.bfloat16, enabled=dtype == "bfloat16"):
        with watching_loops() as looped:
            found = func.vmap(func.grad(loss), (None, axis))(params, x)
        assert not looped
        wanted = [func.grad(loss)(params, x.select(axis, i)) for i in range(x.shape[axis])]
    tolerance = 1e-3 if dtype == "float32" else 0.25
    for key, p in params.items():
        assert (found[key].shape, found[key].dtype) == ((x.shape[axis], *p.shape), wanted[0][key].dtype), key
        rows = np.stack([each[key].double().numpy() for each in wanted])
        largest = np.abs(rows).max() + 1e-9
        np.testing.assert_allclose(found[key].double().numpy(), rows, rtol=0, atol=tolerance * largest, err_msg=key)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "EmbeddingBag"])
def test_samples_of_samples_have_gradients_of_their_own(kind):
    bags = kind == "EmbeddingBag"
    model = nn.EmbeddingBag(9, 5, padding_idx=0) if bags else getattr(nn, kind)(5, 4)
    draw = np.random.default_rng(3)
    x = ampkit.tensor(draw.integers(0, 9, (2, 2, 4, 3)) if bags else draw.standard_normal((2, 2, 6, 3, 5)))
    params = {name: p.detach().double() for name, p in model.named_parameters()}

    def loss(params, row):
        out = func.functional_call(model, params, (row,))
        return (out if bags else out[0]).square().sum()

    found = func.vmap(func.vmap(func.grad(loss), (None, 0)), (None, 0))(params, x)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        for key, wanted in func.grad(loss)(params, x[i, j]).items():
            np.testing.assert_allclose(found[key][i, j].numpy(), wanted.numpy(), rtol=1e-9, atol=1e-9)
