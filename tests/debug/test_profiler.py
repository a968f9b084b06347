"""The profiler: spans of ops, their bytes, a table and a trace."""

from __future__ import annotations

import json

import pytest

import ampkit
from ampkit import nn, optim
from ampkit.base import observe
from ampkit.base.errors import FileError, ShapeError, StateError


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return request.param


def steps(device, count=2):
    model = nn.Linear(4, 3).to(device)
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.1), ampkit.GradScaler()
    for _ in range(count):
        with ampkit.autocast(device, dtype=ampkit.float16):
            loss = model(ampkit.ones(2, 4, device=device)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_every_op_and_update_is_a_row_with_its_calls_and_bytes(device):
    with ampkit.profile() as found:
        steps(device)
    rows = {row.name: row for row in found.rows}
    assert {"linear", "linear_backward", "sum", "sum_backward", "unscale", "sgd_update", "cast"} <= rows.keys()
    assert rows["linear"].calls == 2
    assert rows["sum"].bytes == 2 * (2 * 3 * 2 + 4)  # float16 in, float32 out
    assert all(row.seconds >= 0 for row in found.rows)
    assert sum(row.seconds for row in found.rows) <= found.seconds
    assert not observe.profilers
    assert not observe.observers


def test_the_table_says_which_kernel_ran_and_what_casts_cost(device):
    with ampkit.profile() as found:
        steps(device)
    lines = str(found).splitlines()
    assert lines[0].split() == ["op", "kernel", "calls", "ms", "share", "GB/s"]
    assert len(lines) == len(found.rows) + 2
    assert lines[-1].startswith("casts: ")
    assert "outside ops" in lines[-1]


def test_the_casts_of_gradients_are_timed_as_those_of_operands_are(device):
    x = ampkit.ones(2, 3, device=device).requires_grad_()
    with ampkit.autocast(device, dtype=ampkit.float16):
        loss = nn.Linear(3, 2, device=device)(x.float() * 2).sum()
    seen = []
    with ampkit.profile() as found, observe.watch(lambda name, inputs, output: seen.append(name)):
        loss.backward()
    assert seen.count("cast") == sum(row.calls for row in found.rows if row.name == "cast") > 0


def test_a_trace_has_one_event_per_span(device, tmp_path):
    with ampkit.profile() as found:
        steps(device)
    found.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == sum(row.calls for row in found.rows)
    assert all(event["ph"] == "X" and event["dur"] >= 0 and event["tid"] == device for event in events)
    assert [event["ts"] for event in events if event["name"] == "linear"] == sorted(
        event["ts"] for event in events if event["name"] == "linear"
    )


def test_an_error_in_an_op_leaves_the_rest_in_order():
    with ampkit.profile() as found:
        with pytest.raises(ShapeError):
            ampkit.ones(2, 3) @ ampkit.ones(2, 3)
        ampkit.ones(2).exp()
    assert [row.name for row in found.rows] == ["exp"]


def test_what_cannot_be_saved_or_entered_says_so(tmp_path):
    found = ampkit.profile()
    with pytest.raises(StateError, match="profile.save: needs a block that has run ops"):
        found.save(tmp_path / "trace.json")
    with found, pytest.raises(StateError, match="not entered yet"):
        found.__enter__()
    with found:
        ampkit.ones(2).exp()
    with pytest.raises(FileError, match="profile.save: needs a file that can be written"):
        found.save(tmp_path / "no" / "such.json")
