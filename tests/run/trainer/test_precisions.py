"""A Trainer says in which dtypes it trains, before its first step."""

import pytest

import ampkit
from ampkit import nn, ops, optim
from ampkit.run.report import read_run

pytestmark = pytest.mark.cpu


def trainer(model, optimizer, **options):
    def loss(model, batch):
        return ops.mean(ops.square(model(batch)))

    return ampkit.Trainer(model, optimizer, loss, max_steps=2, precision="bf16-mixed", **options)


def test_the_dtypes_are_printed_once_and_a_report_keeps_them(tmp_path, capsys):
    model = nn.Linear(4, 2)
    made = trainer(model, optim.AdamW(model.parameters(), state_dtype="int8"), default_root_dir=tmp_path)
    batches = [ampkit.ones(3, 4)] * 3
    made.fit(batches)
    made.max_steps = 3
    made.fit(batches)
    lines = capsys.readouterr().out.splitlines()
    assert lines == made.precisions().lines() and "exp_avg, exp_avg_sq in int8" in lines[2]
    (start,) = read_run(tmp_path).environment
    assert start["precisions"] == made.precisions().named() and start["step"] == 0
    assert start["dtype"] == "bfloat16"


def test_weights_without_masters_are_warned_of_and_printing_can_be_turned_off(capsys):
    model = nn.Linear(4, 2).to(ampkit.bfloat16)
    made = trainer(model, optim.SGD(model.parameters(), stochastic_rounding=True))
    made.fit([ampkit.ones(3, 4)] * 2)
    assert capsys.readouterr().out.splitlines()[-1].startswith("warning     10 trained weights are in bfloat16")
    silent = trainer(model, optim.SGD(model.parameters()), enable_model_summary=False)
    silent.fit([ampkit.ones(3, 4)] * 2)
    assert capsys.readouterr().out == ""
