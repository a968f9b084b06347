"""The CUDA backend: CuPy arrays, kernels and libraries of one device."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cached_property, partial
from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.dtypes import NARROW, Array, DType
from ampkit.base.errors import AmpkitError, DeviceError, UnsupportedError
from ampkit.base.formats import decode_reference, encode_reference, values_of

from .. import format_casts
from . import allocator, install
from .detection import device_problem, one_line, two_of_cupy, why_not
from .launch import elementwise, formats
from .libs.cublaslt import CublasLt, CublasLtMemoryError
from .libs.cudnn import Cudnn
from .libs.narrow_paths import path_of
from .memory_stats import Usage
from .multi_device import Gpus, On
from .nvrtc import SHARED, STATIC, STORED, Kernels
from .transfer import Staging

_HERE = nullcontext()


class CUDA:
    """The `Backend` of CuPy arrays. xp: CuPy, or its emulation. index: the device of new arrays."""

    name = "cuda"

    def __init__(
        self, xp: Any, index: int = 0, cublaslt: Any = None, cudnn: Any = None, *, kernels: Any = None, gpus: Any = None
    ):
        self.xp, self.index, self.device = xp, index, f"cuda:{index}"
        self.kernels, self.cublaslt, self.cudnn = kernels or Kernels(xp), cublaslt or CublasLt(xp), cudnn or Cudnn(xp)
        self.allocator = allocator.install(xp)
        self.usage = Usage(xp, index)
        count = xp.cuda.runtime.getDeviceCount()
        self.gpus: Gpus | None = gpus or (Gpus(self, count) if count > 1 else None)  # None where there is one
        self._waiting: deque[tuple[Any, list[Any], Callable[..., None]]] = deque()
        self.staging = Staging(xp, index, self.empty)
        self.recording: Any = None  # a graph.Recording, while a step is recorded
        self.on_transfer: Callable[[str], None] | None = None  # told of transfers from and to the host
        self._graph_pool: Any = None
        self.side_streams: set[int] = set()  # addresses of streams that steps use too, such as that of collectives
        self.failure: Exception | None = None  # of a collective: values on the device have no meaning after it
        self._opted: set[Any] = set()  # kernels whose limit is raised on this device

    @cached_property
    def shared(self) -> int:
        """Bytes of dynamic shared memory per block after opt-in, the minimum over all devices."""
        runtime = self.xp.cuda.runtime
        about = [runtime.getDeviceProperties(index) for index in range(runtime.getDeviceCount())]
        least: int = min(each["sharedMemPerBlockOptin"] for each in about)
        return max(SHARED, least - STATIC)

    def opt_in(self, function: Any) -> None:
        """Raise the dynamic shared memory limit of the kernel `function` to `shared` on this (the current) device."""
        if function not in self._opted:
            function.max_dynamic_shared_size_bytes = self.shared
            self._opted.add(function)

    def graph(self) -> Any:
        """A new, empty captured step (see graph.py)."""
        return importlib.import_module(".graph", __package__).Graph(self)

    def chains(self) -> Any:
        """What holds the elementwise launches of a recording that wait for each other (see launch/chains.py)."""
        return importlib.import_module(".launch.chains", __package__).CudaChains(self)

    def graph_pool(self) -> Any:
        """The memory pool that captured steps share (see graph_pool.py)."""
        if self._graph_pool is None:
            self._graph_pool = self.new_graph_pool()
        return self._graph_pool

    def new_graph_pool(self) -> Any:
        """A memory pool for a single captured step."""
        pool = importlib.import_module(".graph_pool", __package__).GraphPool(
            self.xp, self.index, self.allocator, self.side_streams
        )
        self.usage.graph_pools.add(pool)
        return pool

    def here(self) -> Any:
        """A context in which this device is current."""
        return _HERE if self.gpus is None else On(self.gpus, self.index)

    def at(self, index: int) -> CUDA:
        """The backend of GPU `index`. Raises DeviceError for an index out of range."""
        if self.gpus is not None:
            return self.gpus.at(index)
        if index != self.index:
            raise DeviceError("device", f"cuda:{self.index}", f"cuda:{index}")
        return self

    def beside(self, index: int) -> CUDA:
        """A backend of another GPU with the same kernels and libraries. Raises DeviceError if it cannot be used."""
        problem = device_problem(self.xp, index)
        if problem is not None:
            raise DeviceError(f"cuda:{index}", *problem)
        return CUDA(self.xp, index, self.cublaslt, self.cudnn, kernels=self.kernels, gpus=self.gpus)

    def refusals(self) -> list[str]:
        """A line per call, in this process, that cublasLt or cuDNN has no algorithm for on this machine, with its
        reason. References have run in their place."""
        found = {"cublasLt": self.cublaslt, "cuDNN": self.cudnn}
        return [f"{name}: {what}: {why}" for name, library in found.items() for what, why in library.refused.items()]

    @cached_property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the device: (9, 0) for an H100."""
        about = self.xp.cuda.runtime.getDeviceProperties(self.index)
        return int(about["major"]), int(about["minor"])

    @cached_property
    def multiplies_bfloat16(self) -> bool:
        """Whether the GPU has units for bfloat16, as Ampere and newer have; Turing has those of float16 alone."""
        return self.capability >= (8, 0)

    def product_units(self, first: Any, second: Any) -> str:
        """In one line, the units that multiply operands quantized by `first` and `second` on this GPU, and why."""
        return path_of(first, second, self.capability, self.cublaslt.version).in_words

    def describe(self) -> str:
        """Name, compute capability and memory of the GPU."""
        about = self.xp.cuda.runtime.getDeviceProperties(self.index)
        name, memory = about["name"].decode(), about["totalGlobalMem"] / 2**30
        return f"{name}, compute capability {about['major']}.{about['minor']}, {memory:.1f} GiB"

    def device_of(self, array: Array) -> str:
        return f"cuda:{array.device.id}"

    def asarray(self, values: Any, dtype: DType | None = None) -> Array:
        """Copy `values` to the device, preserving the order of axes in memory."""
        if self.on_transfer is not None and not isinstance(values, self.xp.ndarray):
            self.on_transfer("brings values from the host")
        return self._allocate(self._copied_in, values, dtype)

    def _allocate(self, make: Callable[..., Array], *args: Any) -> Array:
        """make(*args) with this device current; raises ampkit's error where memory is short."""
        try:
            with self.here():
                return make(*args)
        except MemoryError as error:
            raise self.out_of_memory_error(error) from None

    def _copied_in(self, values: Any, dtype: DType | None) -> Array:
        if self.gpus is not None and isinstance(values, self.xp.ndarray) and values.data.device_id != self.index:
            values = self._copied_from_gpu(values)
        if not isinstance(values, np.ndarray) or values.flags.c_contiguous:
            return self.xp.asarray(values, dtype)
        order = np.argsort([-abs(step) for step in values.strides], kind="stable")  # CuPy would keep C's order alone
        return self.xp.asarray(values.transpose(order), dtype).transpose(np.argsort(order).tolist())

    def constant(self, values: np.ndarray[Any, Any]) -> Array:
        """`values` that only the arguments of a call decide: in a recording they are copied beside it, once."""
        if self.recording is not None:
            return self.recording.constant(values)
        return self._allocate(self._copied_in, values, None)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return self._allocate(self.xp.empty, shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Array:
        return self._allocate(self.xp.zeros, shape, dtype)

    def out_of_memory_error(self, error: Exception) -> Exception:
        """The error to raise for one of CuPy's: of memory, what was asked for, and who holds how much; else itself."""
        if not isinstance(error, CublasLtMemoryError) and not allocator.is_shortage(self.xp, error):
            return error
        held: dict[str, int] = {}
        for account in backends.memory_reports:
            held |= account(f"cuda:{self.index}")
        return self.usage.out_of_memory_error(str(error), held)

    def _copied_from_gpu(self, array: Array) -> Array:
        """A copy of another GPU's array here. The work queued there comes before it, and what comes there later waits.

        CuPy orders neither: it copies on the current stream of the device that the copy is for.
        """
        there = self.at(array.data.device_id)
        with there.here():
            order = np.argsort([-abs(step) for step in array.strides], kind="stable").tolist()
            source = array.transpose(order) if array.size else array
            source, stream = (
                source if source.flags.c_contiguous else format_casts.copied(source),
                self.xp.cuda.get_current_stream(),
            )
            written = stream.record()
        with self.here():
            self.xp.cuda.get_current_stream().wait_event(written)
            made = source.copy()
            read = self.xp.cuda.get_current_stream().record()
        with there.here():
            stream.wait_event(read)
        return made.transpose(np.argsort(order).tolist()) if array.size else made

    def cast(self, array: Array, dtype: DType) -> Array:
        """Round `array` to the nearest value of `dtype`, ties to even, in the same memory layout."""
        if dtype in NARROW or array.dtype in NARROW:
            with self.here():
                return format_casts.cast(self, array, dtype)
        if dtype in STORED and array.dtype in STORED:
            with suppress(UnsupportedError):
                return elementwise.forward("Copy", (array,), dtype)
        with self.here():
            return array.astype(dtype)

    def copy(self, target: Array, source: Array) -> None:
        """Write `source`, broadcast, into `target`, rounded to nearest even."""
        with self.here():
            if target.dtype in NARROW or source.dtype in NARROW:
                format_casts.copy(self, target, source)
            else:
                target[...] = source

    def encode(self, values: Array, dtype: DType, saturate: bool) -> Array:
        """The uint8 codes of floating-point values in a format below 16 bits, rounded to nearest even."""
        return (formats.encode if formats.encodes(values, dtype) else encode_reference)(values, dtype, saturate)

    def decode(self, codes: Array, dtype: DType, to: DType) -> Array:
        """The values of uint8 codes of a format below 16 bits, in the floating-point dtype `to`."""
        if formats.decodes(codes, dtype, to):
            return formats.decode(codes, dtype, to)
        with np.errstate(all="ignore"):
            return decode_reference(codes, dtype, self.constant(values_of(dtype).astype(to)))

    def to_numpy(self, array: Array) -> np.ndarray[Any, Any]:
        """A copy in the host's memory; waits for the device."""
        if self.on_transfer is not None:
            self.on_transfer("reads values on the host")
        with self.here():
            return self._sound(self.xp.asnumpy(array))

    def item(self, array: Array) -> Any:
        """The one value of `array` as a Python number; waits for the device."""
        if self.on_transfer is not None:
            self.on_transfer("reads values on the host")
        with self.here():
            return self._sound(array.item())

    def _sound(self, value: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return value

    def call_when_ready(self, arrays: Sequence[Array], then: Callable[..., None]) -> None:
        """Call `then` with the values of `arrays`, in a later call of this method, once the device has them.

        The values are copied to the host on the current stream, without waiting for it.
        """
        if self.recording is not None:
            self.recording.later.append((list(arrays), then))
            return
        self.call_ready()
        self.queue_copies(arrays, then)

    def queue_copies(self, arrays: Sequence[Array], then: Callable[..., None]) -> None:
        """What `call_when_ready` does, without calling what is ready: it raises no error of earlier work."""
        with self.here():
            host = [self._copied_out(array) for array in arrays]
            event = self.xp.cuda.get_current_stream().record()
        self._waiting.append((event, host, then))

    def _copied_out(self, array: Array) -> np.ndarray[Any, Any]:
        memory = self.xp.cuda.alloc_pinned_memory(array.nbytes)
        pinned = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        array.get(out=pinned, blocking=False)
        return pinned

    def call_ready(self, wait: bool = False) -> None:
        """Run pending callbacks in order, up to the first whose values the device has not copied yet, or wait for them.

        Where one raises, the later ones of the same function, of steps queued before its error was known, do nothing:
        they would raise it again, amid work that has nothing to do with it. Their pinned memory is kept until the
        device has written it.
        """
        with self.here():
            while self._waiting and self._has_arrived(self._waiting[0][0], wait):
                _, host, then = self._waiting.popleft()
                self._sound(host)
                try:
                    then(*[values.item() if values.size == 1 else values for values in host])
                except AmpkitError:
                    self._waiting = deque((*w[:2], _ignore if _same(w[2], then) else w[2]) for w in self._waiting)
                    raise

    def _has_arrived(self, event: Any, wait: bool) -> bool:
        if wait:  # for each of its own: copies of other streams may be behind
            event.synchronize()
        return wait or bool(event.done)

    def record_event(self, name: str | None = None) -> Any:
        """An event on the stream, for `elapsed_time`; name: of the NVTX range that starts here, None ends the last one.

        None while a step is recorded: the work is not done then, and CUDA forbids to ask for events of a recording.
        """
        if self.recording is not None:
            return None
        if name is None:
            self.xp.cuda.nvtx.RangePop()
        else:
            self.xp.cuda.nvtx.RangePush(name)
        with self.here():
            event = self.xp.cuda.Event()
            event.record()
        return event

    def elapsed_time(self, first: Any, second: Any) -> float:
        """Seconds between two events on the device; waits for the second."""
        second.synchronize()
        return float(self.xp.cuda.get_elapsed_time(first, second)) / 1000

    def synchronize(self) -> None:
        """Wait for the device and run the pending callbacks."""
        with self.here():
            self.xp.cuda.get_current_stream().synchronize()
        self.call_ready(wait=True)

    def raise_if(self, values: Array, bad: Array, fail: Callable[[Any, Any], None]) -> None:
        """Have `fail(value, position)` called for the first of `values` that `bad` marks, in a later call."""
        if not values.size:
            return
        shape = values.shape
        with self.here():
            marks = bad.reshape(-1)
            first = marks.argmax()
            looked_at = marks.any(), first, np.take(values.reshape(-1), first)

        def fail_if_found(found: bool, at: int, value: Any) -> None:
            if found:
                position = tuple(int(i) for i in np.unravel_index(at, shape))
                fail(value, position[0] if len(position) == 1 else position)

        self.call_when_ready(looked_at, fail_if_found)


def _ignore(*values: Any) -> None:
    pass


def _same(callback: Any, other: Any) -> bool:
    one, two = (each.func if isinstance(each, partial) else each for each in (callback, other))
    return bool(one == two)


def connect(index: int | None = None) -> CUDA:
    """The backend of one of this machine's GPUs, None for the current one, which beyond the others is asked for first.

    Raises DeviceError, with the cure, where it cannot be used.
    """
    try:
        xp = importlib.import_module("cupy")
    except ImportError as error:
        if install.driver() is None:
            cure = f"train on the CPU; on a machine with a GPU: NVIDIA's driver, and {install.cure()}"
            raise DeviceError("cuda", "a GPU with NVIDIA's driver", "a machine without", cure) from None
        raise DeviceError("cuda", "CuPy", f"none: {one_line(error)}", install.cure()) from None
    if (problem := two_of_cupy() or why_not(xp, index)) is not None:
        raise DeviceError("cuda", *problem)
    return CUDA(xp, xp.cuda.runtime.getDevice() if index is None else index)
