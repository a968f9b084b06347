"""What optimizers are given: parameters, groups, saved states, gradients; looked over before anything changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, DTypeError, StateError
from ..core.autograd.scale_tag import count_scaled
from ..core.parameter import Parameter
from ..core.tensor import Tensor
from .param_group import Group


def refuse_scaled(where: str, parameters: Iterable[Tensor], cure: str) -> None:
    """Raise StateError if a gradient of `parameters` is still scaled by a GradScaler, or a sum of different scales."""
    gradients = [p._grad for p in parameters if p._grad is not None]
    if scaled := count_scaled(where, gradients):
        raise StateError(
            where, "unscaled gradients", f"{scaled} of {len(gradients)} still scaled by a GradScaler", cure
        )


def group_options(params: Any, where: str) -> list[dict[str, Any]]:
    """What an optimizer's constructor was given, as one dict per group. Raises DTypeError, ArgumentError for none."""
    if isinstance(params, (Tensor, dict, str, np.ndarray)) or not isinstance(params, Iterable):
        got = f"a {type(params).__name__}"
        raise DTypeError(
            where,
            "an iterable of Parameters, (name, Parameter) pairs or dicts",
            got,
            "pass model.parameters()",
        )
    found = list(params)
    if not found:
        raise ArgumentError(where, "parameters", "an empty list", "is model.parameters() a generator that was used up?")
    return found if isinstance(found[0], dict) else [{"params": found}]


def parameters_of(params: Any, where: str) -> list[Parameter]:
    """The Parameters of a group, each once, with the names they came with. Raises DTypeError for anything else."""
    found: dict[int, Parameter] = {}
    for item in [params] if isinstance(params, Tensor) else params:
        name, parameter = item if isinstance(item, tuple) and len(item) == 2 else ("", item)
        if not isinstance(parameter, Parameter):
            got = (
                f"a Tensor of shape {tuple(parameter.shape)}"
                if isinstance(parameter, Tensor)
                else type(parameter).__name__
            )
            raise DTypeError(where, "Parameters", got, "wrap leaves: ampkit.nn.Parameter(tensor)")
        if not parameter.is_floating_point():
            raise DTypeError(where, "floating-point parameters", parameter.dtype.name)
        parameter.name = parameter.name or name
        found[id(parameter)] = parameter
    return list(found.values())


def _numbered(group: dict[str, Any]) -> bool:
    numbers = group.get("params")
    return isinstance(numbers, (list, tuple)) and all(isinstance(number, (int, str)) for number in numbers)


def need_groups(where: str, state_dict: Any, ours: list[Group]) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
    """The groups and the state of a state_dict. Raises ArgumentError unless its groups are as large as `ours`."""
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
        raise ArgumentError(where, "a dict with 'state' and 'param_groups'", repr(state_dict)[:80])
    groups, state = state_dict["param_groups"], state_dict["state"]
    listed = isinstance(groups, (list, tuple)) and all(isinstance(g, dict) and _numbered(g) for g in groups)
    if not listed or not isinstance(state, dict) or not all(isinstance(entry, dict) for entry in state.values()):
        raise ArgumentError(
            where, "'param_groups' as dicts with 'params', and 'state' as a dict of dicts", repr(state_dict)[:80]
        )
    want, got = [len(g["params"]) for g in ours], [len(g["params"]) for g in groups]
    if want != got:
        raise ArgumentError(where, f"groups of {want} parameters", f"{got}")
    ids = [number for g in groups for number in g["params"]]
    if len(set(ids)) < len(ids) or not state.keys() <= set(ids):
        raise ArgumentError(where, "a state of the parameters that its groups name, each once", f"{ids}, {list(state)}")
    return groups, state
