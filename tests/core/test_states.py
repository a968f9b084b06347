"""Loading a malformed state dict raises one clear error and changes nothing."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

from ampkit import GradScaler, Tensor, nn, optim, tensor
from ampkit.base.errors import AmpkitError
from ampkit.core import random
from ampkit.data.loader import DataLoader, TensorDataset
from ampkit.optim import lr_scheduler as schedules
from ampkit.optim.swa_utils import SWALR, AveragedModel

WRONG = [None, {}, [], "x", True, -1.5, float("nan"), 2**70, (1, "a", 2), {"a": 1}, object()]


def plain(value):
    """Replace tensors by bytes and numbers by text, so that NaN compares equal."""
    if isinstance(value, Tensor):
        return value.dtype.name, value.shape, value.numpy(force=True).tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else repr(value)


def places(value, at=()):
    """The path to each part of a state."""
    yield at
    held = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, item in held:
        yield from places(item, (*at, key))


def replaced(value, at, new):
    if not at:
        return new
    key, *rest = at
    if isinstance(value, dict):
        return {**value, key: replaced(value[key], rest, new)}
    items = [replaced(item, rest, new) if i == key else item for i, item in enumerate(value)]
    return type(value)(items)


def wrong_states(state):
    """The state with each part in turn missing or replaced by an invalid value."""
    for at in places(state):
        yield from (replaced(state, at, value) for value in WRONG)
        if at and isinstance(at[-1], str):
            above = state
            for key in at[:-1]:
                above = above[key]
            yield replaced(state, at[:-1], {key: item for key, item in above.items() if key != at[-1]})
    if isinstance(state, dict):
        yield {**state, 5: 1}


def model_and(make):
    model = nn.Linear(2, 1)
    optimizer = make(model.parameters())
    model(tensor(np.ones((1, 2), np.float32))).sum().backward()
    optimizer.step()
    return optimizer


def schedule(make):
    return make(model_and(lambda parameters: optim.Adam(parameters, lr=0.1)))


def pair(kind, make):
    return lambda optimizer: make(optimizer, [schedules.LinearLR(optimizer), kind(optimizer, 2)])


def loader():
    made = DataLoader(TensorDataset(tensor(np.arange(10.0))), 3, shuffle=True)
    next(iter(made))
    return made


class StateDictAdapter:
    """Gives the default random state, or a guard, the methods `state_dict` and `load_state_dict`."""

    def __init__(self, held):
        self.held = held

    def state_dict(self):
        return self.held.state()

    def load_state_dict(self, state):
        self.held.restore(state)


def guard():
    made = GradScaler().monitor
    made.restore((3, 1, [(1, 8.0), (2, 4.0)]))
    return made


MADE = {
    "module": lambda: nn.BatchNorm1d(2),
    "average": lambda: AveragedModel(nn.Linear(2, 1)),
    "optimizer": lambda: model_and(lambda parameters: optim.Adam(parameters, lr=0.1)),
    "step": lambda: schedule(lambda o: schedules.StepLR(o, 2)),
    "milestones": lambda: schedule(lambda o: schedules.MultiStepLR(o, [1, 3])),
    "restarts": lambda: schedule(lambda o: schedules.CosineAnnealingWarmRestarts(o, 2)),
    "cycle": lambda: schedule(lambda o: schedules.OneCycleLR(o, 0.1, 9)),
    "cyclic": lambda: schedule(lambda o: schedules.CyclicLR(o, 0.1, 0.2, 3, cycle_momentum=False)),
    "swa": lambda: schedule(lambda o: SWALR(o, 0.1)),
    "sequence": lambda: schedule(pair(schedules.StepLR, lambda o, s: schedules.SequentialLR(o, s, [3]))),
    "chain": lambda: schedule(pair(schedules.StepLR, lambda o, s: schedules.ChainedScheduler(s, o))),
    "plateau": lambda: schedule(schedules.ReduceLROnPlateau),
    "scaler": GradScaler,
    "disabled": lambda: GradScaler(enabled=False),
    "loader": loader,
    "random": lambda: StateDictAdapter(random.Stream(3)),
    "guard": lambda: StateDictAdapter(guard()),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_malformed_state_is_loaded_completely_or_refused_without_any_change(kind):
    made, refused = MADE[kind](), 0
    good = deepcopy(made.state_dict())
    before = plain(good)
    for wrong in wrong_states(good):
        try:
            made.load_state_dict(wrong)
        except AmpkitError:
            refused += 1
            assert plain(made.state_dict()) == before
        else:
            made.load_state_dict(deepcopy(good))
            assert plain(made.state_dict()) == before
    assert refused > 5


def test_an_optimizer_state_that_names_other_parameters_is_refused():
    made = MADE["optimizer"]()
    good = made.state_dict()
    for wrong in ({"state": {7: good["state"][0]}}, {"param_groups": [{**good["param_groups"][0], "params": [0, 0]}]}):
        with pytest.raises(AmpkitError, match="needs a state of the parameters that its groups name, each once"):
            made.load_state_dict(good | wrong)
