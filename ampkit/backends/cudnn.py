"""PyTorch's switches `torch.backends.cudnn`, mapped to ampkit's settings.

`deterministic` and `allow_tf32` change what ampkit does on a GPU; `benchmark` changes nothing, since the plans of cuDNN
are chosen by its heuristics; `enabled` can only be True where there is a cuDNN.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from ..base.errors import ArgumentError, DeviceError, switch
from . import determinism, precision

# Attributes of this module, which are the properties of _Switches.
enabled: bool
benchmark: bool
deterministic: bool
allow_tf32: bool

_WHERE = "backends.cudnn"


def is_available() -> bool:
    """Whether this machine has a GPU and a cuDNN that ampkit can use."""
    from . import get

    try:
        gpu: Any = get("cuda")
    except DeviceError:
        return False
    return not gpu.cudnn.unavailable_reason()


def version() -> int | None:
    """The version of cuDNN, as 90100 for 9.1.0; None where it is not available."""
    return int(import_module("cudnn").backend_version()) if is_available() else None


@contextmanager
def flags(
    enabled: bool | None = None, benchmark: bool | None = None, benchmark_limit: int | None = None,
    deterministic: bool | None = None, allow_tf32: bool | None = None,
) -> Iterator[None]:  # fmt: skip
    """Set switches within a `with` block or a decorated function, and restore them after it.

    A switch that is not given stays as it is, where PyTorch's defaults would turn cuDNN off and TF32 on;
    benchmark_limit changes nothing. Raises what assigning to the switch raises.
    """
    given = {"enabled": enabled, "benchmark": benchmark, "deterministic": deterministic, "allow_tf32": allow_tf32}
    switches: Any = sys.modules[__name__]
    kept = {name: getattr(switches, name) for name in ("enabled", "benchmark", "deterministic")}
    tf32 = precision.convolution_setting()
    try:
        _assign(switches, given)
        yield
    finally:
        _assign(switches, kept)
        precision.set_convolutions_use_tf32(tf32)


def _assign(switches: Any, values: dict[str, bool | None]) -> None:
    for name, value in values.items():
        if value is not None:
            setattr(switches, name, value)


class _Switches(ModuleType):
    """The class of this module, so that assigning an attribute reaches the setting behind it."""

    _enabled, _benchmark = True, False

    @property
    def enabled(self) -> bool:
        """True where there is a cuDNN: without it other kernels would run, whose results round differently."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if not switch(_WHERE, "enabled", value) and is_available():
            cure = "run under `with ampkit.reference_only():` to do without the faster kernels"
            raise ArgumentError(_WHERE, "enabled = True", "False", cure)
        self._enabled = value

    @property
    def benchmark(self) -> bool:
        """Kept as it is set, without an effect: no algorithm is chosen by timing."""
        return self._benchmark

    @benchmark.setter
    def benchmark(self, value: bool) -> None:
        self._benchmark = switch(_WHERE, "benchmark", value)

    @property
    def deterministic(self) -> bool:
        """The setting of `ampkit.use_deterministic_algorithms`."""
        return determinism.are_deterministic_algorithms_enabled()

    @deterministic.setter
    def deterministic(self, value: bool) -> None:
        determinism.use_deterministic_algorithms(switch(_WHERE, "deterministic", value))

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 convolutions may use TF32: until it is set, as `set_float32_matmul_precision` says."""
        return precision.convolutions_use_tf32()

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        precision.set_convolutions_use_tf32(switch(_WHERE, "allow_tf32", value))


sys.modules[__name__].__class__ = _Switches
