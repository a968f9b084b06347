"""What a training step reads and changes, found in its code: so that the step can be repeated and leaves no trace."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from ... import backends
from ...amp.grad_scaler import GradScaler
from ...base.observe import FORWARD, Event
from ...core import random
from ...core.module_path import current
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ...nn import Module
from ...optim import Optimizer
from ...optim.lr_scheduler import LRScheduler
from .unchanged import copies, put_back

_MOST = 20_000  # objects that are looked at: a step may hold a data set


class StepState:
    """The models, optimizers, scalers, schedules and leaves that a step uses, and their values before it ran.

    They are found in the variables of the function and of those that it calls, and by the ops that run: `see` is an
    observer. What else the step changes, such as a counter or a data loader, is not put back.
    """

    def __init__(self, step: Callable[..., Any]):
        found = list(_reachable(step))
        self.models = [item for item in found if isinstance(item, Module)]
        self.optimizers = [item for item in found if isinstance(item, Optimizer)]
        self.schedules = [item for item in found if isinstance(item, LRScheduler)]
        self.scalers = [item for item in found if isinstance(item, GradScaler)]
        self._known: set[int] = set()
        self._models = {id(model) for model in self.models}
        self.before = Snapshot(self, _tensors(found))
        self._known |= {id(tensor) for tensor, *_ in self.before.tensors}

    def see(self, event: Event) -> None:
        """Remember the values of models and leaves that the variables did not lead to, at their first use."""
        if event.phase != FORWARD:
            return
        call = current()
        if call is not None and id(call.model) not in self._models:
            self._models.add(id(call.model))
            self.models.append(call.model)
            self._add(_tensors([call.model]))
        self._add(item for item in event.operands if isinstance(item, Tensor) and item.requires_grad and item.is_leaf)

    def _add(self, tensors: Iterable[Tensor]) -> None:
        new = [tensor for tensor in tensors if id(tensor) not in self._known]
        if not new:
            return
        self._known |= {id(tensor) for tensor in new}
        self.before.add(new)
        for tensor in new:
            segment = tensor._arena_segment if isinstance(tensor, Parameter) else None
            owner = None if segment is None else segment.arena.owner()
            if owner is not None and not any(owner is known for known in self.optimizers):
                self.optimizers.append(owner)
                self.before.add_stateful(owner)

    def now(self) -> Snapshot:
        """What `put_back` restores of the present values."""
        return Snapshot(self, [tensor for tensor, *_ in self.before.tensors])

    def parameters(self) -> Iterator[tuple[str, Any, Any]]:
        """(name, parameter, the module that holds it) of all models."""
        for model in self.models:
            for prefix, module in model.named_modules():
                for name, parameter in module.named_parameters(prefix, recurse=False):
                    yield name, parameter, module


class Snapshot:
    """The values of a step's tensors, optimizers, scalers and schedules, and of the random streams."""

    def __init__(self, state: StepState, tensors: Iterable[Tensor]):
        self._streams = random.get_rng_state(), np.random.get_state(), python_random.getstate()
        self.tensors: list[tuple[Any, Any, Any, Any, Any]] = []
        self._stateful: list[tuple[Any, Any]] = []
        self._arenas: list[tuple[Any, Any, Any, Any]] = []
        self.add(list(tensors))
        for item in (*state.optimizers, *state.schedules):
            self.add_stateful(item)
        self._scalers = [(each, dict(vars(each)), each.monitor.state(), each.state_dict()) for each in state.scalers]

    def add(self, tensors: list[Any]) -> None:
        """Remember the values and gradients of `tensors` as well."""
        for kept, tensor in zip(copies(tensors), tensors, strict=True):
            gradient = tensor._grad
            self.tensors.append((*kept, gradient, None if gradient is None else copies([gradient])))

    def add_stateful(self, item: Any) -> None:
        """Remember the state of an optimizer or schedule as well."""
        self._stateful.append((item, deepcopy(item.state_dict())))
        groups = item.param_groups if isinstance(item, Optimizer) else ()
        for arena in (arena for group in groups for arena in group.arenas):
            # Padding too, which an update that makes NaN of 0 writes to.
            with backends.device_guard(arena.master):
                kept = [{name: flat.copy() for name, flat in held.items()} for held in (arena.moments, arena.scales)]
                self._arenas.append((arena, arena.master.copy(), kept, arena.backend.to_numpy(arena.steps).tolist()))

    def put_back(self) -> None:
        """Give all of them the values of then."""
        for arena, master, kept_moments, _ in self._arenas:
            with backends.device_guard(arena.master):
                arena.master[...] = master
                arena.gradient[...] = 0
                for held, values in zip((arena.moments, arena.scales), kept_moments, strict=True):
                    for name, flat in held.items():
                        flat[...] = values.get(name, 0)
        put_back([kept[:3] for kept in self.tensors])
        for item, state in self._stateful:
            item.load_state_dict(deepcopy(state))
        for arena, _, _, steps in self._arenas:  # not every optimizer's state has them
            arena.load_steps(steps)
        for tensor, _, _, gradient, values in self.tensors:
            tensor.grad = None
            if gradient is not None:
                put_back(values)
                tensor._grad = gradient
        for scaler, attributes, monitor, state in self._scalers:
            if state:
                scaler.load_state_dict(state)
            vars(scaler).update(attributes | {"_checks": dict(attributes["_checks"])})
            scaler.monitor.restore(monitor)
        random.set_rng_state(self._streams[0])
        np.random.set_state(self._streams[1])
        python_random.setstate(self._streams[2])


def _tensors(found: Iterable[Any]) -> list[Any]:
    # Parameters and buffers of the models, parameters of the optimizers and leaves, each once.
    tensors: dict[int, Any] = {}
    for item in found:
        if isinstance(item, Module):
            held = [*item.parameters(), *item.buffers()]
        elif isinstance(item, Optimizer):
            held = [p for group in item.param_groups for p in group["params"]]
        else:
            held = [item] if isinstance(item, Tensor) and item.is_leaf and item.requires_grad else []
        tensors |= {id(tensor): tensor for tensor in held}
    return list(tensors.values())


def _reachable(step: Any) -> Iterator[Any]:
    """The models, optimizers, scalers, schedules and tensors that the variables of `step` lead to."""
    waiting, seen = [step], set[int]()
    while waiting and len(seen) < _MOST:
        item = waiting.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (Module, Optimizer, GradScaler, LRScheduler, Tensor)):
            yield item
        else:
            waiting += _held(item)


def _held(item: Any) -> list[Any]:
    if isinstance(item, MethodType):
        return [item.__self__, item.__func__]
    if isinstance(item, FunctionType):
        cells = [cell.cell_contents for cell in item.__closure__ or () if _is_set(cell)]
        if item.__module__ is not None and item.__module__.startswith("ampkit."):
            return cells
        names = set(_names(item.__code__))
        return [*cells, *(item.__defaults__ or ()), *[item.__globals__[n] for n in names if n in item.__globals__]]
    if isinstance(item, (list, tuple, set)):
        return list(item)[:_MOST]
    if isinstance(item, dict):
        return list(item.values())[:_MOST]
    if isinstance(item, type) or type(item).__module__ in ("builtins", "numpy"):
        return []
    if isinstance(item, partial):
        return [item.func, *item.args, *item.keywords.values()]
    return list(getattr(item, "__dict__", {}).values())


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
