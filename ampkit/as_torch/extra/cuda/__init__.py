"""Names of `torch.cuda` beside ampkit.cuda's: streams, of which ampkit uses the current one, events, random state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from .... import backends
from ....base.errors import OutOfMemoryError, StateError
from ....cuda import (
    device_count,
    get_device_capability,
    get_device_name,
    is_available,
    manual_seed,
    max_memory_allocated,
    memory_allocated,
    memory_reserved,
    reset_peak_memory_stats,
    synchronize,
)
from ...refused import refused
from ..random import get_rng_state as _state
from ..random import set_rng_state as _set_state

__all__ = [
    "CUDAGraph", "Event", "OutOfMemoryError", "Stream", "StreamContext", "current_stream", "default_stream",
    "get_device_properties", "get_rng_state", "get_rng_state_all", "graph", "init", "ipc_collect",
    "is_bf16_supported", "is_current_stream_capturing", "is_initialized", "is_tf32_supported",
    "max_memory_cached", "max_memory_reserved",
    "mem_get_info", "memory_cached", "memory_stats", "memory_summary", "reset_accumulated_memory_stats",
    "reset_max_memory_allocated", "reset_max_memory_cached", "seed", "seed_all", "set_rng_state", "set_rng_state_all",
    "set_stream", "stream",
]  # fmt: skip

memory_cached = max_memory_cached = max_memory_reserved = memory_reserved
reset_max_memory_allocated = reset_max_memory_cached = reset_accumulated_memory_stats = reset_peak_memory_stats
is_initialized = is_available
StreamContext = nullcontext
_RECORDED = "ampkit.compile records a whole step"
CUDAGraph, graph = refused("torch.cuda.CUDAGraph", _RECORDED), refused("torch.cuda.graph", _RECORDED)


def is_tf32_supported() -> bool:
    """Whether the GPU multiplies in TF32: from compute capability 8.0 on. False without a GPU."""
    return is_available() and get_device_capability() >= (8, 0)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works, as it does on every device; without emulation, whether the GPU has units for it."""
    return including_emulation or (is_available() and get_device_capability() >= (8, 0))


def init() -> None:
    """Does nothing: the GPU is connected when it is first used."""


ipc_collect = init


# streams and events


class Stream:
    """A stream in name: all work runs in one stream of the device, in the order of the calls."""

    def __init__(self, device: Any = None, priority: int = 0, **ignored: Any):
        self.device = device

    def synchronize(self) -> None:
        """Wait until the GPU has finished."""
        synchronize(self.device)

    def wait_stream(self, stream: Any) -> None:
        """Does nothing: all work is in one stream."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        """A recorded Event."""
        made = event or Event()
        made.record()
        return made

    def query(self) -> bool:
        """True, after waiting."""
        self.synchronize()
        return True


class Event:
    """A moment in the work of the GPU."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False):
        self._recorded: Any = None

    def record(self, stream: Any = None) -> None:
        """Mark this moment."""
        self._recorded = backends.get("cuda").record_event()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another; waits for both. Raises StateError for one that is not recorded."""
        if self._recorded is None or end_event._recorded is None:
            raise StateError("Event.elapsed_time", "two recorded events", "one that is not", "event.record() before")
        return backends.get("cuda").elapsed_time(self._recorded, end_event._recorded) * 1000

    def synchronize(self) -> None:
        """Wait until the GPU has finished."""
        synchronize()

    def wait(self, stream: Any = None) -> None:
        """Does nothing: all work is in one stream."""

    def query(self) -> bool:
        """True, after waiting."""
        self.synchronize()
        return True


def current_stream(device: Any = None) -> Stream:
    """The stream."""
    return Stream(device)


default_stream = current_stream


def stream(stream: Any) -> AbstractContextManager[Any]:
    """A context that changes nothing: see Stream."""
    return nullcontext(stream)


def set_stream(stream: Any) -> None:
    """Does nothing: see Stream."""


def is_current_stream_capturing() -> bool:
    """Whether a step is being recorded on the current GPU."""
    return is_available() and getattr(backends.get("cuda"), "recording", None) is not None


# memory and properties


class DeviceProperties(NamedTuple):
    """What a GPU is."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name, compute capability, memory in bytes and multiprocessors of a GPU. Raises DeviceError without one."""
    gpu: Any = backends.get("cuda" if device is None else device)
    about = gpu.xp.cuda.runtime.getDeviceProperties(gpu.index)
    major, minor = get_device_capability(device)
    return DeviceProperties(
        get_device_name(device), major, minor, int(about["totalGlobalMem"]), int(about["multiProcessorCount"])
    )


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of a GPU. Raises DeviceError without one."""
    gpu: Any = backends.get("cuda" if device is None else device)
    with gpu.xp.cuda.Device(gpu.index):
        free, total = gpu.xp.cuda.runtime.memGetInfo()
    return int(free), int(total)


def memory_stats(device: Any = None) -> dict[str, int]:
    """Bytes in use, at their peak, and held, by PyTorch's keys."""
    return {
        "allocated_bytes.all.current": memory_allocated(device),
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": memory_reserved(device),
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """`memory_stats` as text."""
    return "\n".join(f"{name}: {value}" for name, value in memory_stats(device).items())


# random numbers: one stream for every device


def get_rng_state(device: Any = "cuda") -> Any:
    """`torch.get_rng_state()`."""
    return _state()


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """`torch.set_rng_state(new_state)`."""
    _set_state(new_state)


def get_rng_state_all() -> list[Any]:
    """The random state, once per GPU."""
    return [_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Any) -> None:
    """Set the random state to the first of `new_states`."""
    for state in new_states[:1]:
        _set_state(state)


seed: Callable[[], None] = init
seed_all = seed
