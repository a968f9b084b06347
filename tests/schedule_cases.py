"""A case of each schedule, for a library with PyTorch's interface: see `tests/optim/test_schedule_states.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SAVED_AFTER, STEPS = 4, 10
Make = Callable[[Any, Any], Any]

MAKE: dict[str, Make] = {
    "StepLR": lambda s, o: s.StepLR(o, 2),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.5, 6),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.25, total_iters=6),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 8, 2.0),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [2, 5, 5], 0.5),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 12, 0.001),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, 2),
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda n: 1 / (1 + n)),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda n: 0.9),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=20),
    "OneCycleLR in three phases": lambda s, o: s.OneCycleLR(
        o, 0.1, total_steps=14, three_phase=True, anneal_strategy="linear"
    ),
    "OneCycleLR without momentum": lambda s, o: s.OneCycleLR(o, 0.1, total_steps=12, cycle_momentum=False),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, 2, mode="triangular2"),
    "CyclicLR with exp_range": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 3, mode="exp_range", gamma=0.9),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=2), s.CosineAnnealingLR(o, 12)], [2]
    ),
    "SequentialLR in its first part": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=6), s.CosineAnnealingLR(o, 12)], [6]
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 5), s.ExponentialLR(o, 0.9)]),
    "SWALR": lambda s, o: s.SWALR(o, 0.01, 6),
    "SWALR, linear": lambda s, o: s.SWALR(o, 0.01, 6, "linear"),
    "SWALR at its end": lambda s, o: s.SWALR(o, 0.01, 3),
    "ReduceLROnPlateau": lambda s, o: s.ReduceLROnPlateau(o, patience=1, cooldown=1),
}


def made(name: str, nn: Any, optim: Any) -> tuple[Any, Any]:
    """An optimizer and the schedule of this name."""
    optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
    names = {**vars(optim.lr_scheduler), "SWALR": optim.swa_utils.SWALR}
    return optimizer, MAKE[name](type("Schedules", (), names), optimizer)


def advance(optimizer: Any, schedule: Any, first: int, last: int) -> list[list[float]]:
    """The learning rate and the momentum after each of the steps `first` to `last` (exclusive)."""
    found = []
    for number in range(first, last):
        optimizer.step()
        schedule.step(*([1.0 + number] if "Plateau" in type(schedule).__name__ else []))
        group = optimizer.param_groups[0]
        found.append([float(group["lr"]), float(group["momentum"])])
    return found
