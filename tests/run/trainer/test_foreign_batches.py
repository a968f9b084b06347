"""Batches of another library's tensors, which it hands over by DLPack."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import Trainer, nn, ops, optim

pytestmark = pytest.mark.cpu
rng = np.random.default_rng(0)
X, Y = rng.standard_normal((16, 4)).astype(np.float32), rng.integers(0, 3, 16)


class Foreign:
    """An array as PyTorch's tensors are: neither a Tensor nor an ndarray, with DLPack's two methods."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def weights(batches):
    ampkit.manual_seed(0)
    model = nn.Linear(4, 3)
    loss = lambda model, batch: ops.cross_entropy(model(batch["x"]), batch["y"][0])  # noqa: E731
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, loss, max_epochs=2, enable_model_summary=False)
    trainer.fit(batches, batches)
    return model.weight.detach().numpy().tobytes(), trainer.callback_metrics["val_loss"]


def test_batches_of_another_library_train_as_those_of_tensors():
    parts = [(X[i : i + 8], Y[i : i + 8]) for i in (0, 8)]
    own = [{"x": ampkit.tensor(x), "y": [ampkit.tensor(y)]} for x, y in parts]
    assert weights([{"x": Foreign(x), "y": [Foreign(y)]} for x, y in parts]) == weights(own)
