"""Backends: which one an array belongs to, and the devices that this machine has.

A backend is a folder `backends/<name>/` whose `device.py` holds an object of the protocol `Backend`. Its faster kernels
are in `kernels/<name>/`, in files named like those of `ops/`; `load_kernels` imports them on first use.
`backends.cudnn` and `backends.cuda.matmul` are PyTorch's switches of the same names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from ..base.array_kinds import OwnBackend, need_unmasked
from ..base.dtypes import Array as Array
from ..base.dtypes import DType, need_native, stored
from ..base.errors import DeviceError
from . import cuda as cuda
from . import cudnn as cudnn
from .cpu.device import CPU


class Device(str):
    """A device's name, with PyTorch's `.type` and `.index`: `Device("cuda", 1)`, like `Device(1)`, is `cuda:1`.

    As a context it is the default device.
    """

    def __new__(cls, type: str | int, index: int | None = None) -> Device:
        if isinstance(type, int):
            return cls("cuda", type)
        return super().__new__(cls, type if index is None else f"{type}:{index}")

    def __enter__(self) -> Device:
        before = _default
        set_default_device(self)
        _outer.append(before)
        return self

    def __exit__(self, *error: object) -> None:
        set_default_device(_outer.pop())

    @property
    def type(self) -> str:
        return str(self).partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]  # PyTorch's name, str's method
        number = self.partition(":")[2]
        return int(number) if number else None


class Backend(Protocol):
    """What ampkit needs of a device: arrays in and out, casts, copies, deferred reads of values, timing.

    item: the value of a one-element array; waits for the device. call_when_ready: call a function with the values of
    arrays, without waiting: a number for an array of one element, else a NumPy array. raise_if: call `fail(value,
    position)` for the first of `values` that `bad` marks. synchronize: wait for the device, and make the calls that are
    due. record_event, elapsed_time: seconds between two.
    """

    name: str
    device: str

    def device_of(self, array: Array) -> str: ...
    def asarray(self, values: Any, dtype: DType | None = None) -> Array: ...
    def constant(self, values: Array) -> Array: ...
    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array: ...
    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Array: ...
    def cast(self, array: Array, dtype: DType) -> Array: ...
    def copy(self, target: Array, source: Array) -> None: ...
    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]: ...
    def item(self, array: Array) -> Any: ...
    def call_when_ready(self, arrays: Sequence[Array], then: Callable[..., None]) -> None: ...
    def raise_if(self, values: Array, bad: Array, fail: Callable[[Any, Any], None]) -> None: ...
    def out_of_memory_error(self, error: MemoryError) -> MemoryError: ...
    def synchronize(self) -> None: ...
    def record_event(self, name: str | None = None) -> Any: ...
    def elapsed_time(self, first: Any, second: Any) -> float: ...


cpu = CPU()
_BY_TYPE: dict[type, Backend] = {np.ndarray: cpu}
_BY_NAME: dict[str, Backend] = {"cpu": cpu, "cpu:0": cpu}
_default = "cpu"
_outer: list[str] = []  # the default devices outside of `with device:` blocks
gpus: Any = None  # where a machine has several GPUs: all of them (see cuda/gpus.py)
_ANYWHERE = nullcontext()
memory_reports: list[Callable[[str], dict[str, int]]] = []  # each: a device -> bytes in use there, by owner


def backend_of(array: Array) -> Backend:
    """The backend of the device that `array` is on. Raises DeviceError for something that is no array."""
    found = _BY_TYPE.get(type(array))
    if found is not None:
        return found
    if gpus is not None and isinstance(array, gpus.kind):
        return gpus.holding(array)
    return _of_subclass(array)


def plain(array: Any, where: str) -> Array:
    """A foreign array as a tensor holds it: of NumPy's scalars and subclasses of ndarray an ndarray over their memory.

    What a subclass overrides would be met by references and kernels: np.matrix multiplies where tensors multiply
    element by element. Arrays of other backends stay as they are. Raises DTypeError for a dtype that no tensor has,
    or in another byte order, ArgumentError for a np.ma.MaskedArray that hides elements.
    """
    array = stored(array)
    need_native(array.dtype, where)
    if not isinstance(array, (np.ndarray, np.generic)) or _BY_TYPE.get(type(array), cpu) is not cpu:
        return array
    need_unmasked(array, where)
    return np.asarray(array)


def is_array(value: Any) -> bool:
    """Whether `value` is an array of an installed backend."""
    kinds = (OwnBackend,) if gpus is None else (OwnBackend, gpus.kind)
    return any(base in _BY_TYPE for base in type(value).__mro__) or isinstance(value, kinds)


def device_guard(*arrays: Any, where: str = "") -> AbstractContextManager[Any]:
    """The context in which to work on `arrays` outside of an op: their GPU is the current one.

    Others may stand among them. Raises DeviceError, with the name `where`, for arrays on several GPUs.
    """
    return _ANYWHERE if gpus is None else gpus.on(where, arrays)


def to_backend(array: Array, there: Backend) -> Array:
    """`array` on another device, that of `there`: between GPUs directly, else through the host's memory."""
    here = backend_of(array)
    return there.asarray(array if here.name == there.name else here.to_numpy(array))


def to_device_of(array: Array, other: Array) -> Array:
    """`array` on the device of `other`: itself, where it is there. A copy between GPU and CPU waits for the GPU."""
    there = backend_of(other)
    return array if backend_of(array) is there else to_backend(array, there)


def out_of_memory_error(arrays: Iterable[Any], error: MemoryError) -> MemoryError:
    """The error to raise where memory ran out in work on `arrays`, which may stand among other values."""
    return next((backend_of(array) for array in arrays if is_array(array)), cpu).out_of_memory_error(error)


def _of_subclass(array: Array) -> Backend:
    kind = type(array)
    if isinstance(array, OwnBackend):
        return cast(Backend, array.backend)
    if isinstance(array, np.generic):  # NumPy's arithmetic turns a 0-d array into a scalar
        return cpu
    for base in kind.__mro__:
        if base.__module__ == "cupy" and base not in _BY_TYPE and gpus is None:
            get(f"cuda:{array.device.id}")
            return backend_of(array)
        if base in _BY_TYPE:
            _BY_TYPE[kind] = _BY_TYPE[base]
            return _BY_TYPE[kind]
    raise DeviceError("backend", "an array of an installed backend", f"an object of type {kind.__name__}")


def get(device: str | int | None = None) -> Backend:
    """The backend of a device: `cpu`, `cuda`, `cuda:1` or 1; None is the default device (see set_default_device).

    `cuda` is the current GPU (see ampkit.cuda.set_device). Raises DeviceError for a device that this machine does not
    have.
    """
    name = _default if device is None else device
    if isinstance(name, int) and not isinstance(name, bool):
        name = f"cuda:{name}"
    if not isinstance(name, str):
        raise DeviceError("device", "'cpu', 'cuda' or 'cuda:<index>'", f"{type(name).__name__}")
    return _BY_NAME[name] if name in _BY_NAME else _gpu(name)


def _gpu(name: str) -> Backend:
    """The backend of "cuda" or "cuda:<index>", installed at its first use. Raises DeviceError for another name."""
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not (number.isascii() and number.isdecimal())):
        raise DeviceError("device", "'cpu', 'cuda' or 'cuda:<index>'", repr(name))
    if kind == "cpu":
        raise DeviceError("device", "a device of this machine (cpu)", repr(name))
    if gpus is None and "cuda" not in _BY_NAME:
        from .cuda.device import connect

        install(connect(int(number) if number else None))
    if gpus is not None and not number:
        return gpus.current()
    if number:
        devices: Any = _BY_NAME["cuda"] if gpus is None else gpus
        _BY_NAME[name] = devices.at(int(number))
    return _BY_NAME[name]


def install(backend: Any) -> Callable[[], None]:
    """Make `backend`, for the arrays `backend.xp.ndarray`, the one of its name. -> what undoes it."""
    global gpus
    before = dict(_BY_NAME), dict(_BY_TYPE), gpus
    for numbered in [name for name in _BY_NAME if name.startswith(f"{backend.name}:")]:
        del _BY_NAME[numbered]
    gpus = getattr(backend, "gpus", None)
    if gpus is None:
        _BY_NAME[backend.name], _BY_TYPE[backend.xp.ndarray] = backend, backend
    else:  # then neither the name nor the type says which of them
        _BY_NAME.pop(backend.name, None)
        _BY_TYPE.pop(backend.xp.ndarray, None)

    def undo() -> None:
        global gpus
        gpus = before[2]
        for table, held in zip(cast(Any, (_BY_NAME, _BY_TYPE)), before, strict=False):
            table.clear()
            table.update(held)

    return undo


def also_called(name: str) -> None:
    """Let `name` mean the CPU, too: "meta" for scripts that make a model there before they load its weights.

    While it is the default device, tensors of the CPU tell it, so that scripts see where they are.
    """
    _BY_NAME[name] = cpu


def set_default_device(device: str | int) -> None:
    """Where tensors are made that do not say where: `cpu`, `cuda`, the current GPU, or `cuda:1`, which is also 1.

    Raises DeviceError for a device that this machine does not have.
    """
    global _default
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    get(name)
    cpu.told = "cpu" if name.startswith(("cpu", "cuda")) else name
    _default = name


def get_default_device() -> Device:
    """The device that tensors are made on; `cpu` until `set_default_device` says otherwise."""
    return Device(_default)


def load_kernels(name: str, module: str) -> None:
    """Import the kernels of an op's module, which registers them: `kernels/<name>/<module>.py`, or else the package
    of its family, where the kernels of several modules stand in one table.

    module: dotted, the path of the primitives' own module below `ampkit.ops`, as in `nn.conv`.
    """
    folder, family = Path(__file__).parents[1].joinpath("kernels", name), module.partition(".")[0]
    for found in (module, family):
        path = folder.joinpath(*found.split("."))
        if path.with_suffix(".py").exists() or path.joinpath("__init__.py").exists():
            importlib.import_module(f"ampkit.kernels.{name}.{found}")
            return
