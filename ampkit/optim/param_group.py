"""ParamGroup: the options of a parameter group; those that schedules set live on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from operator import is_
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.errors import StateError
from ..core.capture.recorder import recorders
from .argument_checks import hyperparameter, in_numbers, to_python
from .flat.memory import read_scalar
from .flat.segment import Segment

_NOT_READ = frozenset({"params", "initial_lr"})  # by no update


class ParamGroup(MutableMapping[str, Any]):
    """A parameter group: PyTorch's dict. `group["lr"]` reads a float, and assigning to it writes to the device.

    segments: the ranges of its parameters in `arenas`, their flat memory. device: the hyperparameters that live on the
    device, as float64 arrays. owner: a weak reference to the optimizer, which checks new options; weak, so that its
    memory is freed at once.
    """

    def __init__(
        self, options: dict[str, Any], segments: list[Segment], device_keys: tuple[str, ...], owner: Callable[[], Any]
    ):
        self._options, self._owner = dict(options), owner
        self.hold(segments)
        self._members = list(options.get("params", ()))  # those that the segments were made for
        parameters = self._members or [None]
        backend = backends.get(None) if parameters[0] is None else backends.backend_of(parameters[0].array)
        values = {key: np.array(to_python(options[key]), dtypes.float64) for key in device_keys if key in options}
        self.device: dict[str, Array] = {key: backend.asarray(value) for key, value in values.items()}
        self._stepped: tuple[str, ...] = getattr(owner(), "stepped_keys", ())
        # Keys whose value the host does not know: those that a schedule, or a step, sets on the device.
        self.scheduled = set(self._stepped)

    def may_be_set(self, key: str) -> bool:
        """Whether the hyperparameter `key` is not 0, or a schedule may have set it on the device."""
        return key in self.scheduled or self._options[key] != 0

    def hold(self, segments: list[Segment]) -> None:
        """Hold these segments, in the order of their arenas, from now on."""
        self.segments, self.arenas = segments, list(dict.fromkeys(segment.arena for segment in segments))

    def __getitem__(self, key: str) -> Any:
        if key not in self.scheduled:
            for recorder in recorders:
                recorder.reads(self._options.get, key)
            return self._options[key]
        array = self.device[key]
        return read_scalar(array) if not array.ndim else tuple(backends.backend_of(array).to_numpy(array).tolist())

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "params":
            raise _fixed("other parameters", "optimizer.add_param_group adds some; make a new optimizer for others")
        if key == "differentiable" and value is not self._options.get(key, False):
            raise _fixed("another kind of update", "give differentiable when the optimizer is made")
        if key == "stochastic_rounding" and value is not self._options.get(key, False):
            cure = "give stochastic_rounding when the optimizer is made: it decides the dtype of the master weights"
            raise _fixed("another rounding", cure)
        if key == "state_dtype" and value != self._options.get(key, "float32"):
            cure = "give state_dtype when the optimizer is made; load_state_dict converts the state of another one"
            raise _fixed("another dtype of the moments", cure)
        options = {key: hyperparameter(value, self._options.get("differentiable", False))}
        self.check(options)
        self.set_checked(options)

    def has_members(self, parameters: Sequence[Any]) -> bool:
        """Whether the segments were made for these parameters."""
        return len(parameters) == len(self._members) and all(map(is_, parameters, self._members))

    def check(self, options: dict[str, Any]) -> None:
        """Raise ArgumentError if `options` are out of range, or contradict the others."""
        if (owner := self._owner()) is not None:
            owner.check_options(in_numbers({**self._options, **options}))

    def set_checked(self, options: dict[str, Any]) -> None:
        """Set `options` that `check` passed; those on the device are written there."""
        for key in options.keys() & self.device.keys():
            value = self.device[key]
            with backends.device_guard(value):
                value[...] = backends.backend_of(value).asarray(to_python(options[key]), dtypes.float64)
            if key not in self._stepped:
                self.scheduled.discard(key)
        self._options.update(options)

    def read_by_steps(self, reads: Any) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Where a step reads options on the host, for recorded ones (see core/capture/host_reads.py)."""
        yield ParamGroup._host_options, self
        yield ParamGroup._step_classes, self
        for parameter in self._options["params"]:
            reads.visit(parameter)

    def _host_options(self) -> tuple[Any, ...]:
        # Those that are constants of kernels, and which moments an update reads.
        found: list[Any] = []
        for key, value in self._options.items():
            if key not in _NOT_READ and key not in self.device:
                found += key, value
        owner = self._owner()
        if hasattr(owner, "needs_moment"):
            found += [owner.needs_moment(self, name) for name in owner.moments]
        return tuple(found)

    def _step_classes(self) -> tuple[tuple[int, ...], ...]:
        # Where a span ends, whose step count is that of its first segment.
        return tuple([arena.step_classes for arena in self.arenas])

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __delitem__(self, key: str) -> None:
        if key == "params" or key in self.device:
            raise _fixed(f"one without {key!r}", "an update reads it")
        del self._options[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        return "\n".join(f"    {key}: {self[key]}" for key in sorted(self, key=str) if key != "params")


def _fixed(found: str, cure: str) -> StateError:
    return StateError("parameter group", "the parameters and options that its optimizer was made with", found, cure)
