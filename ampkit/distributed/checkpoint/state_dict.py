"""States of sharded modules and their optimizers by the names of parameters: rows or whole; PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import backends
from ...base.errors import ArgumentError, StateError
from ...core.tensor import Tensor
from ...nn.module import Module
from ...optim.optimizer import Optimizer
from .. import world
from ..collectives import gathered_objects
from ..fsdp.sharded_tensor import ShardedTensor
from ..transport import Call, call_site

__all__ = [
    "StateDictOptions", "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "set_model_state_dict",
    "set_optimizer_state_dict", "set_state_dict",
]  # fmt: skip


@dataclass(frozen=True)
class StateDictOptions:
    """PyTorch's options. full_state_dict: whole tensors in place of this rank's rows.

    cpu_offload: in the host's memory; with full_state_dict only rank 0 has them, and the others get {}.
    broadcast_from_rank0: `set_*` takes the whole tensors of rank 0, and nothing of others. strict: of the names.
    flatten_optimizer_state_dict: an entry per parameter and name, "state.0.weight.exp_avg", so that the stages of a
    pipeline save one state. ignore_frozen_params, keep_submodule_prefixes and dsd_fqn_modifiers have no effect.
    """

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fsdp_wrapped_module"


_DEFAULT = StateDictOptions()


def get_model_state_dict(
    model: Module, *, submodules: Any = None, options: StateDictOptions | None = None
) -> dict[str, Any]:
    """`model.state_dict()`, with rows of sharded parameters or, with full_state_dict, whole ones; all ranks call it."""
    return _as_wanted(dict(model.state_dict()), options or _DEFAULT)


def get_optimizer_state_dict(
    model: Module, optimizers: Optimizer | Iterable[Optimizer], *, submodules: Any = None,
    options: StateDictOptions | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The states of optimizers by the names that `model` has for their parameters; all ranks call it.

    A parameter that has taken no step has zeros, so that a checkpoint can be loaded into them.
    Raises StateError for a parameter that is not the model's, and for stages of a pipeline unless it is flattened.
    """
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    flattens = options is not None and options.flatten_optimizer_state_dict
    for optimizer in _several(optimizers):
        need_flat("get_optimizer_state_dict", optimizer, flattens)
        names, saved = _names(model, optimizer), optimizer.state_dict()
        for segment in optimizer.segments():
            entry = saved["state"].get(segment.number) or segment.parameter._of_state(_zeros(optimizer, segment))
            state[names[segment.number]] = entry
        groups += [{**group, "params": [names[n] for n in group["params"]]} for group in saved["param_groups"]]
    found: dict[str, Any] = {"state": state, "param_groups": groups}
    return _as_wanted(_flattened(found) if flattens else found, options or _DEFAULT)


def need_flat(where: str, optimizer: Optimizer, flattens: bool) -> None:
    """Raise StateError for a state of one stage of a pipeline that does not go together with those of others."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    if not flattens and any(parameter._stages is not None for parameter in parameters):
        needs = "an entry per parameter, for an optimizer of one stage of a pipeline"
        cure = "get_optimizer_state_dict(..., options=StateDictOptions(flatten_optimizer_state_dict=True))"
        raise StateError(where, needs, "groups of them", cure)


def _flattened(state: dict[str, Any]) -> dict[str, Any]:
    found = {f"state.{name}.{key}": value for name, entry in state["state"].items() for key, value in entry.items()}
    for group in state["param_groups"]:
        options = {key: value for key, value in group.items() if key != "params"}
        found |= {f"param_groups.{name}.{key}": value for name in group["params"] for key, value in options.items()}
    return found


def _nested(model: Module, optimizers: Sequence[Optimizer], state: Mapping[str, Any]) -> dict[str, Any]:
    # The state that was flattened, of the parameters of these optimizers.
    def entries(kind: str, name: str) -> dict[str, Any]:
        start = f"{kind}.{name}."
        found = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        return {key: value for key, value in found.items() if "." not in key}

    states, groups = dict[str, Any](), []
    for optimizer in optimizers:
        names = _names(model, optimizer)
        states |= {name: entry for name in names.values() if (entry := entries("state", name))}
        by_id = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in optimizer.param_groups:
            mine = [by_id[id(parameter)] for parameter in group["params"]]
            if lost := [name for name in mine if not entries("param_groups", name)]:
                raise StateError("set_optimizer_state_dict", f"entries of {lost[0]!r}", "a state without them")
            groups.append({**entries("param_groups", mine[0]), "params": mine})
    return {"state": states, "param_groups": groups}


def _zeros(optimizer: Optimizer, segment: Any) -> dict[str, Any]:
    group = next(group for group in optimizer.param_groups if segment in group.segments)
    needs = getattr(optimizer, "needs_moment", lambda group, name: True)
    made = {
        name: Tensor(segment.arena.backend.zeros(shape, segment.arena.dtype))
        for name, shape in optimizer.state_shapes(segment).items()
        if needs(group, name)
    }
    if segment.has_wider_master:
        made["master"] = Tensor(segment.master_weights().copy())
    return {"step": Tensor(np.zeros((), np.float32)), **made} if optimizer.counts_steps else made


def get_state_dict(
    model: Module, optimizers: Optimizer | Iterable[Optimizer], *, submodules: Any = None,
    options: StateDictOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """`get_model_state_dict` and `get_optimizer_state_dict`."""
    return get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizers, options=options)


def set_model_state_dict(
    model: Module, model_state_dict: Mapping[str, Any], *, options: StateDictOptions | None = None
) -> Any:
    """Load what `get_model_state_dict` gave, of these or other ranks, rows or whole. -> as Module.load_state_dict."""
    options = options or _DEFAULT
    return model.load_state_dict(_given(model_state_dict, options), strict=options.strict)


def set_optimizer_state_dict(
    model: Module, optimizers: Optimizer | Iterable[Optimizer], optim_state_dict: Mapping[str, Any], *,
    options: StateDictOptions | None = None,
) -> None:  # fmt: skip
    """Load what `get_optimizer_state_dict` gave, of these or other ranks, rows or whole."""
    given = _given(optim_state_dict, options or _DEFAULT)
    several = _several(optimizers)
    if options is not None and options.flatten_optimizer_state_dict:
        given = _nested(model, several, given)
    groups = list(given["param_groups"])
    for optimizer in several:
        names = _names(model, optimizer)
        numbers = {name: number for number, name in names.items()}
        own, groups = groups[: len(optimizer.param_groups)], groups[len(optimizer.param_groups) :]
        if unknown := [name for group in own for name in group["params"] if name not in numbers]:
            raise StateError("set_optimizer_state_dict", "names of the optimizer's parameters", repr(unknown[0]))
        state = {numbers[name]: entry for name, entry in given["state"].items() if name in numbers}
        renamed = [{**group, "params": [numbers[name] for name in group["params"]]} for group in own]
        optimizer.load_state_dict({"state": state, "param_groups": renamed})


def set_state_dict(
    model: Module, optimizers: Optimizer | Iterable[Optimizer], *, model_state_dict: Mapping[str, Any],
    optim_state_dict: Mapping[str, Any], options: StateDictOptions | None = None,
) -> Any:  # fmt: skip
    """`set_model_state_dict` and `set_optimizer_state_dict`."""
    set_optimizer_state_dict(model, optimizers, optim_state_dict, options=options)
    return set_model_state_dict(model, model_state_dict, options=options)


def _several(optimizers: Any) -> list[Optimizer]:
    found = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
    if other := [each for each in found if not isinstance(each, Optimizer)]:
        raise ArgumentError("state_dict", "optimizers", f"a {type(other[0]).__name__}")
    return found


def _names(model: Module, optimizer: Optimizer) -> dict[int, str]:
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in by_id for parameter in parameters):
        raise StateError("state_dict", "an optimizer of the model's parameters", "one with others")
    return {number: by_id[id(parameter)] for number, parameter in enumerate(parameters)}


def _as_wanted(state: dict[str, Any], options: StateDictOptions) -> dict[str, Any]:
    if not (options.full_state_dict or options.cpu_offload):
        return state
    is_first = world.group.WORLD is None or world.group.WORLD.rank() == 0
    found = _mapped(state, lambda tensor: _converted(tensor, options, is_first))
    return found if is_first or not (options.full_state_dict and options.cpu_offload) else {}


def _converted(tensor: Tensor, options: StateDictOptions, is_first: bool) -> Any:
    if options.full_state_dict and isinstance(tensor, ShardedTensor):
        tensor = tensor.full_tensor()  # one at a time
    if not options.cpu_offload or isinstance(tensor, ShardedTensor):
        return tensor
    return tensor.cpu() if is_first or not options.full_state_dict else None


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_mapped(item, function) for item in value])
    return value


def _given(state: Any, options: StateDictOptions) -> Any:
    group = world.group.WORLD
    if not options.broadcast_from_rank0 or group is None or group.size() == 1:
        return state
    tensors: list[Tensor] = []

    def noted(tensor: Tensor) -> tuple[str, int]:
        tensors.append(tensor)
        return "tensor", len(tensors) - 1

    described = _mapped(state, noted) if group.rank() == 0 else None
    kinds = [(tensor.array.dtype, tuple(tensor.shape)) for tensor in tensors]
    call = Call("set_state_dict(broadcast_from_rank0)", call_site())
    described, kinds = gathered_objects(group, (described, kinds), call)[0]
    for number, (dtype, shape) in enumerate(kinds):
        if group.rank() != 0:
            tensors.append(Tensor(backends.get("cpu").empty(shape, dtype)))
        group.broadcast_array(tensors[number].array)
    return _restored(described, tensors)


def _restored(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "tensor":
        return tensors[value[1]]
    if isinstance(value, Mapping):
        return {key: _restored(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_restored(item, tensors) for item in value])
    return value
