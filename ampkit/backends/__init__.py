"""Machines: which backend an array belongs to, and the devices that this machine has.

A backend is a module of `backends/<name>/` with a `device.py` that holds one object of the `Backend` shape. Faster
bodies live beside it, in `backends/<name>/<stem>.py`, one file per file of `ops/`; `bodies` loads them on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..core.dtypes import DType
from ..core.errors import DeviceError
from .cpu.device import CPU

Array = Any  # a NumPy or CuPy array; both follow NumPy's array protocols


class Device(str):
    """A device's name, `cpu` or `cuda:1`, with PyTorch's `.type` and `.index`."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
        number = self.partition(":")[2]
        return int(number) if number else None


class Backend(Protocol):
    """What ampkit asks of a machine: its name, arrays in and out, and casts."""

    name: str

    def device_of(self, array: Array) -> str: ...
    def asarray(self, values: Any, dtype: DType | None = None) -> Array: ...
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array: ...
    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Array: ...
    def cast(self, array: Array, dtype: DType) -> Array: ...
    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]: ...
    def peek(self, array: Array) -> Any: ...
    def inspect(self, values: Array, bad: Array, fail: Callable[[Any, Any], None]) -> None: ...


cpu: Backend = CPU()
_BY_TYPE: dict[type, Backend] = {np.ndarray: cpu}
_BY_NAME: dict[str, Backend] = {"cpu": cpu}


def of(array: Array) -> Backend:
    """The backend that holds `array`, found by its type. Raises DeviceError for something that is no array."""
    found = _BY_TYPE.get(type(array))
    return found if found is not None else _of_subclass(type(array))


def _of_subclass(kind: type) -> Backend:
    for base in kind.__mro__:
        if base in _BY_TYPE:
            _BY_TYPE[kind] = _BY_TYPE[base]
            return _BY_TYPE[kind]
    raise DeviceError("backend", "an array of an installed backend", f"an object of type {kind.__name__}")


def get(device: str | None = None) -> Backend:
    """The backend of a device name: `cpu`, `cuda` or `cuda:1`; None is the default device, the CPU.

    Raises DeviceError for a device that this machine does not have.
    """
    kind = Device(device or "cpu").type
    if kind in _BY_NAME and (device is None or device in ("cpu", "cpu:0") or kind != "cpu"):
        return _BY_NAME[kind]
    if kind in ("cpu", "cuda"):
        raise DeviceError(
            "device", "a device of this machine (cpu)", repr(device), "`ampkit doctor` shows what is missing"
        )
    raise DeviceError("device", "'cpu', 'cuda' or 'cuda:<index>'", repr(device))


def bodies(name: str, stem: str) -> None:
    """Load the faster bodies of `ops/<stem>.py` on backend `name`, if it brings any; importing registers them."""
    module = f"{__name__}.{name}.{stem}"
    if importlib.util.find_spec(module) is not None:
        importlib.import_module(module)
