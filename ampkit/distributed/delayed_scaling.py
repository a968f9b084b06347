"""Delayed scaling on many ranks: all have one history of the largest magnitudes, and so the same scales.

As with Transformer Engine's `reduce_amax`, the largest magnitudes are those of all ranks. So a checkpoint of one rank
resumes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import backends
from ..core.policy import delayed
from .collectives import gathered_objects
from .process_group import ProcessGroup
from .reduction import ReduceOp
from .transport import Call, call_site


def lengths(parameters: Sequence[Any]) -> list[int]:
    """For each parameter the extent of its state's rows, 0 for one without."""
    states = [delayed.state_of(parameter) for parameter in parameters]
    return [0 if state is None else state.shape[1] for state in states]


def reduce_largest(group: ProcessGroup, parameters: Sequence[Any], used_by_all: bool) -> None:
    """Make every rank's histories the largest of all ranks, and its scales the least, which follow from those.

    A scale counts where its history has a value. used_by_all: whether parameters have states on all ranks or on none.
    """
    if group.size() == 1:
        return
    if not used_by_all:
        extents = np.array(lengths(parameters), np.int32)
        group.all_reduce_array(extents, ReduceOp.MAX)
        for parameter, extent in zip(parameters, extents, strict=True):
            if extent and delayed.state_of(parameter) is None:
                with backends.device_guard(parameter.array):
                    delayed.load_state(parameter, delayed.fresh(backends.backend_of(parameter.array), int(extent) - 1))
    states = [state for state in map(delayed.state_of, parameters) if state is not None]
    if not states:
        return
    with backends.device_guard(states[0]):
        flat = np.concatenate([_to_maximize(state).reshape(-1) for state in states])
        group.all_reduce_array(flat, ReduceOp.MAX)
        start = 0
        for state in states:
            found = flat[start : start + state.size].reshape(state.shape)
            start += state.size
            state[:, 1:] = found[:, 1:]
            state[:, :1] = np.where(np.isfinite(found[:, :1]), -found[:, :1], state[:, :1])


def _to_maximize(state: Any) -> Any:
    scales, history = state[:, :1], state[:, 1:]
    counted = np.where(history.any(1, keepdims=True), -scales, -np.float32(np.inf))
    return np.concatenate([counted, history], 1)


def copy_from_first(group: ProcessGroup, parameters: Sequence[Any]) -> None:
    """Give every rank the states of rank 0."""
    call = Call("DistributedDataParallel()", call_site())
    wanted, *others = gathered_objects(group, lengths(parameters), call)
    if not any(wanted) and not any(map(any, others)):
        return
    states = gathered_objects(group, [_on_host(each) for each in parameters] if group.rank() == 0 else None, call)[0]
    for parameter, values in zip(parameters, states, strict=True):
        with backends.device_guard(parameter.array):
            there = None if values is None else backends.backend_of(parameter.array).asarray(values)
            delayed.load_state(parameter, there)


def _on_host(parameter: Any) -> Any:
    state = delayed.state_of(parameter)
    return None if state is None else backends.backend_of(state).to_numpy(state)
