"""Machines: which backend an array belongs to, and the devices that this machine has.

A backend is a module of `backends/<name>/` with a `device.py` that holds one object of the `Backend` shape. Faster
bodies live beside it, in `backends/<name>/<stem>.py`, one file per file of `ops/`; `bodies` loads them on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from ..core.dtypes import DType
from ..core.errors import DeviceError
from .cpu.device import CPU

Array = Any  # a NumPy or CuPy array; both follow NumPy's array protocols


class Device(str):
    """A device's name, `cpu` or `cuda:1`, with PyTorch's `.type` and `.index`; `Device("cuda", 1)` is `cuda:1`."""

    def __new__(cls, type: str, index: int | None = None) -> Device:
        return super().__new__(cls, type if index is None else f"{type}:{index}")

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
    def constant(self, values: Array) -> Array: ...
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array: ...
    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Array: ...
    def cast(self, array: Array, dtype: DType) -> Array: ...
    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]: ...
    def peek(self, array: Array) -> Any: ...
    def later(self, arrays: Sequence[Array], then: Callable[..., None]) -> None: ...
    def inspect(self, values: Array, bad: Array, fail: Callable[[Any, Any], None]) -> None: ...
    def exhausted(self, error: MemoryError) -> MemoryError: ...
    def settle(self) -> None: ...
    def mark(self, name: str | None = None) -> Any: ...
    def between(self, first: Any, second: Any) -> float: ...


cpu: Backend = CPU()
_BY_TYPE: dict[type, Backend] = {np.ndarray: cpu}
_BY_NAME: dict[str, Backend] = {"cpu": cpu, "cpu:0": cpu}
_default = "cpu"
accounts: list[Callable[[str], dict[str, int]]] = []  # device -> bytes held there, by holder: for when there is no more


def of(array: Array) -> Backend:
    """The backend that holds `array`, found by its type. Raises DeviceError for something that is no array."""
    found = _BY_TYPE.get(type(array))
    return found if found is not None else _of_subclass(type(array))


def holds(value: Any) -> bool:
    """Whether `value` is an array of an installed backend."""
    return any(base in _BY_TYPE for base in type(value).__mro__)


def exhausted(arrays: Iterable[Any], error: MemoryError) -> MemoryError:
    """The error to raise where memory ran out in work on `arrays`, which may stand among other values."""
    return next((of(array) for array in arrays if holds(array)), cpu).exhausted(error)


def _of_subclass(kind: type) -> Backend:
    for base in kind.__mro__:
        if base.__module__ == "cupy" and base not in _BY_TYPE:
            get("cuda")
        if base in _BY_TYPE:
            _BY_TYPE[kind] = _BY_TYPE[base]
            return _BY_TYPE[kind]
    raise DeviceError("backend", "an array of an installed backend", f"an object of type {kind.__name__}")


def get(device: str | None = None) -> Backend:
    """The backend of a device name: `cpu`, `cuda` or `cuda:1`; None is the default device (see set_default_device).

    Raises DeviceError for a device that this machine does not have.
    """
    name = _default if device is None else device
    if not isinstance(name, str):
        raise DeviceError("device", "'cpu', 'cuda' or 'cuda:<index>'", f"{type(name).__name__}")
    if name in _BY_NAME:
        return _BY_NAME[name]
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise DeviceError("device", "'cpu', 'cuda' or 'cuda:<index>'", repr(device))
    if kind == "cpu":
        raise DeviceError("device", "a device of this machine (cpu)", repr(device))
    if "cuda" not in _BY_NAME:
        from .cuda.device import connect

        install(connect())
    gpus = _BY_NAME["cuda"]
    if number:
        _BY_NAME[name] = gpus.at(int(number))  # type: ignore[attr-defined]
    return _BY_NAME[name]


def install(backend: Any) -> Callable[[], None]:
    """Make `backend`, for the arrays `backend.xp.ndarray`, the one of its name. -> what undoes it."""
    before = dict(_BY_NAME), dict(_BY_TYPE)
    for numbered in [name for name in _BY_NAME if name.startswith(f"{backend.name}:")]:
        del _BY_NAME[numbered]
    _BY_NAME[backend.name], _BY_TYPE[backend.xp.ndarray] = backend, backend

    def undo() -> None:
        for table, held in zip((_BY_NAME, _BY_TYPE), before, strict=True):
            table.clear()  # type: ignore[attr-defined]
            table.update(held)  # type: ignore[attr-defined]

    return undo


def set_default_device(device: str) -> None:
    """Where tensors are made that do not say where: `cpu`, `cuda` or `cuda:1`.

    Raises DeviceError for a device that this machine does not have.
    """
    global _default
    get(str(device))
    _default = str(device)


def get_default_device() -> Device:
    """The device that tensors are made on; `cpu` until `set_default_device` says otherwise."""
    return Device(_default)


def bodies(name: str, stem: str) -> None:
    """Load the faster bodies of `ops/<stem>.py` on backend `name`, if it brings any; importing registers them."""
    module = f"{__name__}.{name}.{stem}"
    if importlib.util.find_spec(module) is not None:
        importlib.import_module(module)
