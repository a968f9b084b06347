"""Several GPUs in one process: a backend for each, and guards that switch the current device.

CUDA launches on the thread's current device, and CuPy allocates there. So code that works on arrays makes their device
current and restores the previous one: an op for its operands, the backward pass for every gradient, other code within
`device_guard(array)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ampkit.base.dtypes import Array
from ampkit.base.errors import DeviceError, StateError

from ...base.array_kinds import on_device

if TYPE_CHECKING:
    from .device import CUDA


class Gpus:
    """The GPUs, which share the kernels and libraries of `first`. kind: the type of their arrays."""

    def __init__(self, first: CUDA, count: int):
        self.xp, self.kind, self.count = first.xp, first.xp.ndarray, count
        self._runtime, self._known = first.xp.cuda.runtime, {first.index: first}

    def at(self, index: int) -> CUDA:
        """The backend of GPU `index`. Raises DeviceError for an index out of range or a GPU that cannot be used."""
        found = self._known.get(index)
        if found is None:
            if index >= self.count:
                raise DeviceError("device", f"one of cuda:0 to cuda:{self.count - 1}", f"cuda:{index}")
            found = self._known.setdefault(index, next(iter(self._known.values())).beside(index))
        return found

    def holding(self, array: Array) -> CUDA:
        """The backend of the GPU that an array is on."""
        return self._known.get(array.data.device_id) or self.at(array.data.device_id)

    def known(self) -> list[CUDA]:
        """The backends created so far."""
        return list(self._known.values())

    def current(self) -> CUDA:
        """The backend of this thread's current device, which "cuda" means."""
        return self.at(self._runtime.getDevice())

    def current_index(self) -> int:
        """The number of this thread's current device."""
        return int(self._runtime.getDevice())

    def enter(self, where: str, arrays: Iterable[Any]) -> int:
        """Make the device of `arrays` the current one; -> the one before, for `leave`. Others may stand among them.

        Raises DeviceError, with the name of the op `where`, for arrays on several devices.
        """
        return self.use(self._of(where, arrays))

    def _of(self, where: str, arrays: Iterable[Any]) -> int | None:
        found: int | None = None
        for array in map(on_device, arrays):
            if isinstance(array, self.kind):
                index = array.data.device_id
                if found is not None and index != found:
                    raise self._mixed(where, arrays)
                found = index
        return found

    def leave(self, before: int) -> None:
        """Make a device the current one again."""
        come_back(self._runtime, before)

    def use(self, index: int | None) -> int:
        """Make a device the current one, if it is not; -> the one before. None changes nothing."""
        before: int = self._runtime.getDevice()
        if index is not None and index != before:
            self._refuse_recording(index)
            self._runtime.setDevice(index)
        return before

    def follow(self, array: Any) -> None:
        """Make the device of an array current, without restoring; ignore other values."""
        array = on_device(array)
        if isinstance(array, self.kind):
            self.use(array.data.device_id)

    def on(self, where: str, arrays: Iterable[Any]) -> On:
        """The context between `enter` and `leave`."""
        return On(self, self._of(where, arrays))

    def _refuse_recording(self, index: int) -> None:
        # Work on another device would be done once, now, and never by the graph.
        recording = any(gpu.recording is not None for gpu in self._known.values())
        if recording and self.xp.cuda.get_current_stream().is_capturing():
            here = self._runtime.getDevice()
            cure = "compile a step for each device, called with tensors of that device"
            raise StateError("compile", f"a step on one device, cuda:{here}", f"work on cuda:{index}", cure)

    def _mixed(self, where: str, arrays: Iterable[Any]) -> DeviceError:
        found = sorted({f"cuda:{a.data.device_id}" for a in arrays if isinstance(a, self.kind)})
        return DeviceError(where, "tensors on one device", ", ".join(found), "move them with .to(device)")


def come_back(runtime: Any, before: int) -> None:
    """Restore the current device; ignore the failure on a device whose memory is full.

    CUDA creates a context on a device that becomes current, which needs memory there.
    """
    if runtime.getDevice() != before:
        with suppress(runtime.CUDARuntimeError):
            runtime.setDevice(before)


class On:
    """A context in which a device is current. None: no change."""

    __slots__ = ("_before", "_gpus", "_index")

    def __init__(self, gpus: Gpus, index: int | None):
        self._gpus, self._index = gpus, index

    def __enter__(self) -> None:
        self._before = self._gpus.use(self._index)

    def __exit__(self, *error: Any) -> None:
        self._gpus.leave(self._before)
