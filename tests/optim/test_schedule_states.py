"""State dicts of schedules that PyTorch 2.13 saved load and go on exactly.

`tests/golden/schedule_states.json` holds what PyTorch saves after 4 steps of SGD(lr=0.1, momentum=0.9), and the rates
and momenta of the steps after that: `python -m tests.peers.schedule_states` writes it, and checks the other direction.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from schedule_cases import MAKE, SAVED_AFTER, STEPS, advance, made

from ampkit import nn, optim

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "schedule_states.json").read_text())


@pytest.mark.parametrize("name", MAKE)
def test_a_state_of_pytorch_goes_on_exactly(name):
    case = GOLDEN[name]
    state = dict(case["state"])
    if "milestones" in state:
        state["milestones"] = Counter({int(at): count for at, count in state["milestones"].items()})
    optimizer, schedule = made(name, nn, optim)
    optimizer.load_state_dict({"state": {}, "param_groups": [case["group"]]})
    schedule.load_state_dict(state)
    assert schedule.get_last_lr() == pytest.approx([case["group"]["lr"]], rel=1e-12)
    np.testing.assert_allclose(advance(optimizer, schedule, SAVED_AFTER, STEPS), case["then"], rtol=1e-12)


@pytest.mark.parametrize("name", MAKE)
def test_a_state_of_our_own_goes_on_exactly(name):
    first, schedule = made(name, nn, optim)
    advance(first, schedule, 0, SAVED_AFTER)
    second, loaded = made(name, nn, optim)
    second.load_state_dict(first.state_dict())
    loaded.load_state_dict(schedule.state_dict())
    expected = advance(first, schedule, SAVED_AFTER, STEPS)
    assert advance(second, loaded, SAVED_AFTER, STEPS) == expected
    np.testing.assert_allclose(expected, GOLDEN[name]["then"], rtol=1e-12)
