"""Gradients of each sample of every model: one call for the whole batch, and the values of a loop."""

from __future__ import annotations

import numpy as np
import pytest
from models.test_models import CASES

import ampkit
from ampkit import autocast, func, nn, ops
from ampkit.core.dispatch.batching.call import hearing
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
        with hearing() as looped:
            found = func.vmap(func.grad(loss), (None, axis))(params, x)
        assert not looped
        wanted = [func.grad(loss)(params, x.select(axis, i)) for i in range(x.shape[axis])]
    tolerance = 1e-3 if dtype == "float32" else 0.25
    for key, p in params.items():
        assert (found[key].shape, found[key].dtype) == ((x.shape[axis], *p.shape), wanted[0][key].dtype), key
        rows = np.stack([each[key].double().numpy() for each in wanted])
        largest = np.abs(rows).max() + 1e-9
        np.testing.assert_allclose(found[key].double().numpy(), rows, rtol=0, atol=tolerance * largest, err_msg=key)
