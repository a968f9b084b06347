"""Write `tests/golden/schedule_states.json` from PyTorch, and let PyTorch go on from ampkit's states of schedules.

python -m tests.peers.schedule_states
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import ampkit
from ampkit import nn, optim

from ..schedule_cases import MAKE, SAVED_AFTER, STEPS, advance, made

GOLDEN = Path(__file__).parents[1] / "golden" / "schedule_states.json"


def golden(name: str) -> dict[str, Any]:
    """What PyTorch saves, and the rates after that."""
    optimizer, schedule = made(name, torch.nn, torch.optim)
    advance(optimizer, schedule, 0, SAVED_AFTER)
    state, group = schedule.state_dict(), optimizer.state_dict()["param_groups"][0]
    return {"state": state, "group": group, "then": advance(optimizer, schedule, SAVED_AFTER, STEPS)}


def difference(name: str, then: list[list[float]]) -> str | None:
    """How PyTorch goes on otherwise from ampkit's state than ampkit."""
    optimizer, schedule = made(name, nn, optim)
    advance(optimizer, schedule, 0, SAVED_AFTER)
    ours = optimizer.state_dict()
    theirs, loaded = made(name, torch.nn, torch.optim)
    theirs.load_state_dict({"state": {}, "param_groups": ours["param_groups"]})
    loaded.load_state_dict(schedule.state_dict())
    came = advance(theirs, loaded, SAVED_AFTER, STEPS)
    close = all(
        math.isclose(a, b, rel_tol=1e-9) for x, y in zip(came, then, strict=True) for a, b in zip(x, y, strict=True)
    )
    return None if close else f"{name}: {came} should be {then}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    ampkit.manual_seed(0)
    found = {name: golden(name) for name in MAKE}
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    differences = [text for name, row in found.items() if (text := difference(name, row["then"]))]
    print("\n".join([*differences, f"{len(found)} schedules, {len(differences)} go on otherwise in PyTorch"]))
    sys.exit(bool(differences))
