"""Compare every optimizer of PyTorch's OptimizerInfo: parameters after some steps, and errors."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

import ampkit

from . import ops
from .comparison import Tally, faults
from .ops import Place, Refused, Settings, call_ampkit, call_pytorch
from .translate import copied, leaves, to_ampkit

STEPS = 6
SHAPES = ((3, 4), (5,), ())


@cache
def infos() -> dict[str, Any]:
    """OptimizerInfos of the optimizers that ampkit has, by name."""
    return {info.name: info for info in optim_db if hasattr(ampkit.optim, info.name)}


def compare(info: Any, settings: Settings) -> Tally:
    """The tally of one optimizer, for float64 and float32."""
    tally = Tally({info.name})
    for dtype in [name for name in settings.dtypes if name in ("float64", "float32")]:
        ops.seed_all(settings.seed)
        drawn = info.optim_inputs_func(device="cpu", dtype=getattr(torch, dtype))
        for number, sample in enumerate(itertools.islice(drawn, settings.samples)):
            place = Place(info.name, sample.desc, dtype, number, "optimizers")
            ops.one(place, _Call(sample), tally, lambda s=sample, d=dtype: _compared(info, s, d))
    _errors(info, settings, tally)
    return tally


class _Call:
    # An optimizer's options in the words of an OpInfo's sample, for the report.
    def __init__(self, sample: Any):
        self.input, self.args, self.kwargs = sample.desc, (), sample.kwargs


def _compared(info: Any, sample: Any, dtype: str) -> list[tuple[str, str]]:
    needed = call_pytorch(lambda: _trained(torch, torch.nn.Parameter, info.optim_cls, copied(sample.kwargs), dtype))
    kwargs, made = to_ampkit(sample.kwargs), getattr(ampkit.optim, info.name)
    try:
        got = call_ampkit(lambda: _trained(ampkit, ampkit.nn.Parameter, made, kwargs, dtype))
    except Refused as refused:
        return [refused.args]
    wide = ops.lazily(
        lambda: leaves(_trained(torch, torch.nn.Parameter, info.optim_cls, copied(sample.kwargs), "float64"))
    )
    return faults(leaves(got), leaves(needed), wide)


def _trained(library: Any, parameter: Any, optimizer: Any, options: dict[str, Any], dtype: str) -> list[Any]:
    """Parameters after each of some steps on a quadratic loss with a different curvature per element."""
    numbers = np.random.RandomState(0)
    drawn = [[library.tensor(numbers.standard_normal(shape), dtype=getattr(library, dtype)) for shape in SHAPES]
             for _ in range(3)]  # fmt: skip
    parameters = [parameter(one) for one in drawn[0]]
    made = optimizer(parameters, **options)

    def closure() -> Any:
        made.zero_grad()
        terms = [((p - t) * w).square().sum() for p, t, w in zip(parameters, drawn[1], drawn[2], strict=True)]
        loss = terms[0] + terms[1] + terms[2]
        loss.backward()
        return loss

    found = []
    for _ in range(STEPS):
        made.step(closure)
        found += [p.detach().clone() for p in parameters]
    return found


def _errors(info: Any, settings: Settings, tally: Tally) -> None:
    if info.optim_error_inputs_func is None:
        return
    ops.seed_all(settings.seed)
    for number, error in enumerate(info.optim_error_inputs_func(device="cpu", dtype=torch.float32)):
        sample = error.optimizer_error_input
        place = Place(info.name, sample.desc, "float32", number, "optimizers")
        ops.one(place, _Call(sample), tally, lambda e=error, s=sample: _error(info, e, s))


def _error(info: Any, error: Any, sample: Any) -> list[tuple[str, str]]:
    given = sample.params if sample.params is not None else [torch.nn.Parameter(torch.ones(3))]
    parameters, kwargs = _parameters(given, {}), to_ampkit(sample.kwargs)

    def call() -> Any:
        made = getattr(ampkit.optim, info.name)(parameters, **kwargs)
        if error.error_on is OptimizerErrorEnum.STEP_ERROR:
            made.step()

    return ops.must_raise(call, RuntimeError(str(error.error_regex)))


def _parameters(given: Any, seen: dict[int, Any]) -> Any:
    # What is given to an optimizer, with ampkit's Parameters in it.
    if isinstance(given, torch.nn.Parameter):
        return seen.setdefault(id(given), ampkit.nn.Parameter(to_ampkit(given.detach())))
    if isinstance(given, dict):
        return {key: _parameters(value, seen) for key, value in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(_parameters(value, seen) for value in given)
    return to_ampkit(given)
