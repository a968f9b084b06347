"""Checks of what optimizers are called with: hyperparameters, parameters, groups, saved states and gradients.

All of them run before anything changes.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from ..base.dtypes import accumulator, float64
from ..base.errors import ArgumentError, DTypeError, StateError, unquoted
from ..base.limits import Limits
from ..core.arguments import holds_items, shown
from ..core.autograd.scale_tag import count_scaled
from ..core.parameter import Parameter, become_parameter
from ..core.shared_memory import block_of
from ..core.tensor import Tensor

# PyTorch's choices of an implementation: accepted, and without effect
IMPLEMENTATION_FLAGS = ("foreach", "fused", "capturable")
# PyTorch's flags of how a step is computed, which are no hyperparameters
STEP_FLAGS = (*IMPLEMENTATION_FLAGS, "differentiable")
# of the groups of a saved state: what loading leaves as it is
NOT_LOADED = frozenset({"params", *STEP_FLAGS, "stochastic_rounding", "state_dtype"})

# hyperparameters


LimitsByName = Mapping[str, Limits | tuple[Limits, ...]]  # by hyperparameter: of a number, or of each of several


def annotated_limits(constructor: Any) -> dict[str, Limits | tuple[Limits, ...]]:
    """The limits in the annotations of a constructor's parameters; none if these do not resolve."""
    try:
        hints = get_type_hints(constructor, include_extras=True)
    except NameError:  # a user's optimizer may import types for type checkers alone
        return {}
    limits: dict[str, Limits | tuple[Limits, ...]] = {}
    for name, hint in hints.items():
        each = [_limits_of(member) for member in get_args(hint)] if get_origin(hint) is tuple else []
        if (single := _limits_of(hint)) is not None:
            limits[name] = single
        elif each and None not in each:
            limits[name] = tuple([limit for limit in each if limit is not None])
    return limits


def _limits_of(hint: Any) -> Limits | None:
    return next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Limits)), None)


def to_python(value: Any) -> Any:
    """A hyperparameter as Python numbers, if it came as a Tensor or an array of one element."""
    if isinstance(value, (list, tuple)):
        return tuple(to_python(v) for v in value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    if type(value) is int and not -_LARGEST_INT <= value <= _LARGEST_INT:  # arrays of int64 cannot hold it
        return float(value) if abs(value) <= sys.float_info.max else value
    return value


_LARGEST_INT = 2**63 - 1


def is_tensor_with_grad(value: Any) -> bool:
    """Whether `value` is a tensor that requires grad, or a tuple with one: what a differentiable update keeps."""
    if isinstance(value, (list, tuple)):
        return any(is_tensor_with_grad(item) for item in value)
    return isinstance(value, Tensor) and value.requires_grad


def hyperparameter(value: Any, differentiable: bool) -> Any:
    """`value` as Python numbers; a tensor that requires grad stays one where the update is differentiable."""
    return value if differentiable and is_tensor_with_grad(value) else to_python(value)


def in_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters, each by `to_python`, as checks read them."""
    return {key: to_python(value) for key, value in options.items()}


def is_number(value: Any) -> bool:
    """Whether `value` is an int or float (no bool) that a float can hold."""
    return type(value) is not bool and isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def check_limits(where: str, options: Mapping[str, Any], limits: LimitsByName) -> None:
    """Raise ArgumentError unless those of `options` that have limits are finite numbers within them."""
    for key, limit in limits.items():
        if key not in options:
            continue
        if isinstance(limit, Limits):
            need_number(where, key, options[key], limit)
        else:
            _need_numbers(where, key, options[key], limit)


def need_number(where: str, key: str, value: Any, limit: Limits) -> None:
    """Raise ArgumentError unless `value` is a finite number in the limits."""
    if not is_number(value) or not limit.allows(value):
        finite = "a finite " if isinstance(value, float) and math.isinf(value) else ""
        raise ArgumentError(where, f"{finite}{key} {limit}", repr(value))


def _need_numbers(where: str, key: str, values: Any, limits: tuple[Limits, ...]) -> None:
    counted = isinstance(values, (tuple, list)) and len(values) == len(limits) and all(map(is_number, values))
    if len(set(limits)) == 1 and not (counted and all(map(limits[0].allows, values))):
        raise ArgumentError(where, f"two {key} {limits[0]}", repr(values))
    if not counted:
        raise ArgumentError(where, f"two {key}, numbers", repr(values))
    for i, (value, limit) in enumerate(zip(values, limits, strict=True)):
        need_number(where, f"{key}[{i}]", value, limit)


def need_integer(where: str, options: Mapping[str, Any], key: str, low: int) -> None:
    """Raise ArgumentError unless `options[key]`, if present, is an integer from `low` that 32 bits hold."""
    value = options.get(key, low)
    if type(value) is not int or not low <= value < 2**31:
        raise ArgumentError(where, f"{key} as an integer from {low} to {2**31 - 1}", repr(value))


def need_flags(where: str, options: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise ArgumentError unless those of `keys` that are present are True or False; "false", say, is truthy."""
    for key in keys:
        value = options.get(key, False)
        if type(value) is not bool:
            raise ArgumentError(where, f"{key} True or False", repr(value), unquoted(key, value))


def need_implementation_flags(where: str, differentiable: Any = False, **flags: Any) -> None:
    """Raise ArgumentError unless PyTorch's implementation flags are True, False or None, and contradict no other."""
    for key, value in flags.items():
        if value is not None and type(to_python(value)) is not bool:
            raise ArgumentError(where, f"{key} True, False or None", repr(value), unquoted(key, value))
    need_flags(where, {"differentiable": to_python(differentiable)}, ["differentiable"])
    if differentiable and flags.get("fused"):
        raise ArgumentError(where, "fused or differentiable", "both", "`fused` does not support `differentiable`")


def hyperparameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters among `arguments`, the `locals()` of an optimizer's constructor.

    Raises ArgumentError for PyTorch's implementation flags as `need_implementation_flags`; they are left out, but for
    differentiable=True.
    """
    where = type(arguments["self"]).__name__
    need_implementation_flags(where, **{key: arguments[key] for key in STEP_FLAGS if key in arguments})
    found = {k: v for k, v in arguments.items() if k not in ("self", "params", "__class__", *STEP_FLAGS)}
    return {**found, "differentiable": True} if arguments.get("differentiable") else found


# parameters and gradients


def refuse_scaled(where: str, gradients: Sequence[Tensor | None], cure: str) -> None:
    """Raise StateError if one of `gradients` is scaled by a GradScaler, or a sum of different scales."""
    if scaled := count_scaled(where, gradients):
        got = f"{scaled} of {len(gradients)} still scaled by a GradScaler"
        raise StateError(where, "unscaled gradients", got, cure)


def group_options(params: Any, where: str) -> list[dict[str, Any]]:
    """The `params` of an optimizer's constructor, as a dict per group. Raises DTypeError, ArgumentError for none."""
    if isinstance(params, (Tensor, dict, str, np.ndarray)) or not isinstance(params, Iterable):
        needs, got = "an iterable of Parameters, (name, Parameter) pairs or dicts", f"a {type(params).__name__}"
        raise DTypeError(where, needs, got, "pass model.parameters()")
    found = list(params)
    if not found:
        raise ArgumentError(where, "parameters", "an empty list", "is model.parameters() a generator that was used up?")
    return found if isinstance(found[0], Mapping) else [{"params": found}]


def group_parameters(group: Any, where: str, taken: Iterable[Any], differentiable: bool = False) -> list[Any]:
    """The Parameters of a group, or its tensors as they are for a differentiable update.

    Raises DTypeError unless it is a dict with some, ArgumentError for one of `taken`.
    """
    if not isinstance(group, Mapping) or "params" not in group:
        raise DTypeError(where, "a dict with 'params'", repr(group)[:80])
    parameters, others = parameters_of(group["params"], where, differentiable), {id(p) for p in taken}
    for number, parameter in enumerate(parameters):
        if id(parameter) in others:
            raise ArgumentError(where, "each parameter in one group", f"parameter {number} in two")
    return parameters


def parameters_of(params: Any, where: str, differentiable: bool = False) -> list[Any]:
    """The Parameters of a group, each once, and named if they came with names; other leaves become Parameters.

    differentiable: tensors of a graph are taken, and all stay what they are. Parameters of integers and bools, which
    take no gradient, are left out. Raises DTypeError for other items, and where nothing is left.
    """
    found: dict[int, Any] = {}
    fixed: Any = None
    if not isinstance(params, Tensor) and not holds_items(params):
        raise DTypeError(where, "Parameters", shown(params))
    for item in [params] if isinstance(params, Tensor) else params:
        name, parameter = item if isinstance(item, tuple) and len(item) == 2 else ("", item)
        if differentiable and isinstance(parameter, Tensor) and parameter.is_floating_point():
            found[id(parameter)] = parameter
            continue
        if type(parameter) is Tensor and parameter.is_leaf and parameter.is_floating_point():
            parameter = become_parameter(parameter)
        if not isinstance(parameter, Parameter):
            shape = f"a Tensor of shape {tuple(parameter.shape)}" if isinstance(parameter, Tensor) else None
            cure = "make it a leaf: x.detach().requires_grad_()" if shape else None
            raise DTypeError(where, "Parameters, or leaves of floats", shape or type(parameter).__name__, cure)
        if not parameter.is_floating_point():
            fixed = parameter
            continue
        parameter._dotted_name = parameter._dotted_name or name
        if id(parameter) in found:
            of = repr(parameter._dotted_name) if parameter._dotted_name else f"of shape {tuple(parameter.shape)}"
            warnings.warn(f"{where}: a parameter {of} comes twice, and counts once", stacklevel=5)
        found[id(parameter)] = parameter
    if fixed is not None and not found:
        raise DTypeError(where, "floating-point parameters", fixed.dtype.name)
    return list(found.values())


def need_updatable_where_shared(where: str, parameters: Iterable[Any], stochastic_rounding: bool) -> None:
    """Raise StateError for a parameter in memory that processes share which an update cannot change there.

    It has master weights of another dtype, or is not contiguous.
    """
    for parameter in parameters:
        dtype = parameter.array.dtype
        as_stored = stochastic_rounding or accumulator(dtype) == dtype
        if block_of(parameter.array) is not None and not (as_stored and parameter.array.flags.c_contiguous):
            got = f"{dtype.name} with strides {parameter.stride()}"
            needs, cure = "shared parameters as contiguous float32 or float64", "cast the model before share_memory()"
            raise StateError(where, needs, got, cure)


def need_divisible(where: str, kind: Any, parameters: Iterable[Any], state_dtype: str) -> None:
    """Raise ArgumentError for parameters that ranks share out where `kind` reads whole ones, or blocks of them."""
    if all(parameter._sharding is None for parameter in parameters):
        return
    if not kind.by_element:
        cure = "use AdamW, SGD or another elementwise one, or DistributedDataParallel with ZeroRedundancyOptimizer"
        got = f"{kind.__name__}, whose update reads whole parameters"
        raise ArgumentError(where, "an elementwise optimizer for parameters that ranks share out", got, cure)
    if state_dtype in ("float8", "int8"):
        needs = "state_dtype float32 or bfloat16 for parameters that ranks share out"
        raise ArgumentError(where, needs, repr(state_dtype))


def need_state_dtype(where: str, parameters: Iterable[Any], state_dtype: str, differentiable: bool) -> None:
    """Raise DTypeError for a float64 parameter with moments in 32 bits or fewer, ArgumentError for recorded steps."""
    if state_dtype == "float32":
        return
    if differentiable:
        raise ArgumentError(where, "state_dtype float32 with differentiable=True", repr(state_dtype))
    for number, parameter in enumerate(parameters):
        if parameter.array.dtype == float64:
            got = f"{parameter._dotted_name or f'parameter {number}'!r} in float64"
            raise DTypeError(where, f"float32 or 16-bit parameters for state_dtype={state_dtype!r}", got)


# saved states


def need_groups(where: str, state_dict: Any, sizes: list[int]) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
    """The groups and the state of a state_dict; keys that are no parameters of a group may be strings.

    Raises ArgumentError unless its groups have these `sizes`.
    """
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
        raise ArgumentError(where, "a dict with 'state' and 'param_groups'", repr(state_dict)[:80])
    groups, state = state_dict["param_groups"], state_dict["state"]
    are_groups = isinstance(groups, (list, tuple)) and all(isinstance(group, dict) for group in groups)
    numbers = [group.get("params") for group in groups] if are_groups else [None]
    listed = all(isinstance(each, (list, tuple)) and all(isinstance(n, (int, str)) for n in each) for each in numbers)
    if not listed or not isinstance(state, dict):
        needs = "'param_groups' as dicts with 'params', and 'state' as a dict"
        raise ArgumentError(where, needs, repr(state_dict)[:80])
    if sizes != (got := [len(g["params"]) for g in groups]):
        raise ArgumentError(where, f"groups of {sizes} parameters", f"{got}")
    ids = [number for g in groups for number in g["params"]]
    if not all(isinstance(state[number], dict) for number in state.keys() & set(ids)):
        raise ArgumentError(where, "the state of each parameter as a dict", repr(state)[:80])
    named = {key: entry for key, entry in state.items() if key not in ids}
    # A dict would be the state of a parameter under another name.
    wrong = [key for key, value in named.items() if not isinstance(key, str) or isinstance(value, dict)]
    if len(set(ids)) < len(ids) or wrong:
        raise ArgumentError(where, "a state of the parameters that its groups name, each once", f"{ids}, {list(state)}")
    return groups, state
