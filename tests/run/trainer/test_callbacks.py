"""Callbacks that cannot be called are refused before the first step."""

from __future__ import annotations

import pytest

import ampkit
from ampkit import Callback, EarlyStopping, Trainer, nn, ops, optim
from ampkit.base.errors import ArgumentError

pytestmark = pytest.mark.cpu


class TooFew(Callback):
    def on_train_batch_end(self, trainer):
        pass


class WithModule(Callback):
    def on_fit_start(self, trainer, pl_module):
        pass


class Fine(Callback):
    def on_train_batch_end(self, trainer, *arguments):
        pass

    def on_exception(self, trainer, exception, note=""):
        pass


def trainer(callbacks):
    model = nn.Linear(2, 2)
    loss = lambda model, batch: ops.mse_loss(model(batch[0]), batch[1])  # noqa: E731
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, loss, max_steps=1, callbacks=callbacks, enable_model_summary=False)


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (
            TooFew(),
            r"TooFew.on_train_batch_end: needs the arguments \(trainer, outputs, batch, batch_idx\), got \(trainer\)",
        ),
        (WithModule(), r"WithModule.on_fit_start: needs the arguments \(trainer\), got \(trainer, pl_module\)"),
        (EarlyStopping, r"needs callbacks to be ampkit.Callbacks, got <class .*\nhelp: create it: EarlyStopping\(\)"),
        (print, r"needs callbacks to be ampkit.Callbacks, got .*\nhelp: derive its class from ampkit.Callback"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused(callback, says):
    with pytest.raises(ArgumentError, match=says):
        trainer([callback])


def test_hooks_may_take_more():
    x = ampkit.ones(2, 2)
    made = trainer(Fine())
    made.fit([(x, x)])
    assert made.global_step == 1
