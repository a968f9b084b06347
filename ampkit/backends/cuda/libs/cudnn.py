"""cuDNN: convolutions and attention, planned once per signature and run on CuPy's current stream.

The methods of `Cudnn` take arrays in layouts that cuDNN reads and return False where it has no engine; `cudnn_graphs`
builds the graphs. The first call of a signature selects an engine, which may take seconds to compile; later calls are
one call of the library. They do not synchronize and allocate their workspace through CuPy, so a CUDA graph can capture
them. `unavailable_reason` returns in one line why cuDNN cannot be used, and the references run instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

from ampkit import backends
from ampkit.backends.determinism import are_deterministic_algorithms_enabled
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import LOW, Array, DType, float16

from .. import install
from .cudnn_graphs import Attention, AttentionBackward, Convolution, GraphPlan, Layout, Planner

ALIGNED = 16  # alignment in bytes of every array
MIN_VERSION = 90000  # cuDNN 9, which the frontend needs
PLANS = 4096  # signatures whose plans are cached


class AttentionArrays(NamedTuple):
    """The arrays and options of attention, as cudnn_graphs.Attention describes them: four axes, the last contiguous.

    dropped: the dropout mask, and 1 / (1 - p) and 1 - p as float32 arrays of one element; None without dropout. lse:
    the log-sum-exp of the scores, [N, H, L, 1] float32. dout: the gradient of `out`. gradients: those of query, key and
    value, which the backward writes.
    """

    query: Array
    key: Array
    value: Array
    bias: Array | None
    dropped: tuple[Array, Array, Array] | None
    out: Array
    lse: Array
    causal: bool
    scale: float
    dout: Array | None = None
    gradients: tuple[Array, ...] = ()


class Cudnn:
    """cuDNN on the devices of `xp`, CuPy. refused: the error message of each signature without an engine."""

    def __init__(self, xp: Any):
        self.xp = xp
        self.refused: dict[Any, str] = {}
        self.warned: set[Any] = set()  # kinds of refusals that users were warned of
        self._plan: Callable[[int, Any], GraphPlan | None] = lru_cache(PLANS)(self._new_plan)
        self._planners: dict[int, Planner] = {}
        self._streams: dict[int, int] = {}
        self._lock = Lock()  # a handle holds the stream until the call has used it
        self._found: tuple[Any, str] | None = None

    def unavailable_reason(self) -> str:
        """Why cuDNN cannot be used, in one line; "" if it can."""
        if self._found is None:
            self._found = find(self.xp)
        return self._found[1]

    # convolutions: images [N, C, H, W], kernels [O, C / groups, KH, KW], maps (output) [N, O, OH, OW], channels-last

    def conv_forward(
        self, images: Array, kernels: Array, bias: Array | None, maps: Array, geometry: ConvGeometry, tf32: bool = False
    ) -> bool:
        """Write the convolution of `images` with `kernels`, plus bias [O], to `maps`."""
        signature = _convolution("maps", maps, images, kernels, geometry, images.dtype, bias, tf32)
        return self._run(signature, images, kernels, *([] if bias is None else [bias]), maps)

    def conv_data(
        self, maps: Array, kernels: Array, bias: Array | None, images: Array, geometry: ConvGeometry, tf32: bool = False
    ) -> bool:
        """Write the gradient of the input to `images`, from the gradient of the output `maps`; plus bias [C]."""
        signature = _convolution("images", maps, images, kernels, geometry, maps.dtype, bias, tf32)
        return self._run(signature, kernels, maps, *([] if bias is None else [bias]), images)

    def conv_weight(
        self, images: Array, maps: Array, kernels: Array, geometry: ConvGeometry, tf32: bool = False
    ) -> bool:
        """Write the gradient of the weight to `kernels`, from the gradient of the output `maps`."""
        signature = _convolution("kernels", maps, images, kernels, geometry, maps.dtype, None, tf32)
        return self._run(signature, images, maps, kernels)

    def attention_forward(self, call: AttentionArrays) -> bool:
        """Write attention to `call.out` and the log-sum-exp of the scores to `call.lse`."""
        more = [] if call.bias is None else [call.bias]
        inputs = *call[:3], *more, *(call.dropped or ())[:2]
        return self._run(_attention(call), *inputs, call.out, call.lse)

    def attention_backward(self, call: AttentionArrays) -> bool:
        """Write the gradients of query, key and value to `call.gradients`."""
        more = [] if call.bias is None else [call.bias]
        inputs = *call[:3], *more, *(call.dropped or ())
        return self._run(_attention_backward(call), *inputs, call.out, call.lse, call.dout, *call.gradients)

    def backward_workspace(self, call: AttentionArrays) -> int | None:
        """Bytes of workspace of `attention_backward`; None where there is no engine."""
        with self._on(call.query) as device, self._lock:
            plan = self._plan(device, _attention_backward(call))
        return None if plan is None else plan.workspace

    def dropout_refusal(self) -> str:
        """Why cuDNN has no deterministic backward of attention with dropout on the current device; "" if it has."""
        heads = _layout((1, 2, 64, 64), (8192 * 2, 4096 * 2, 64 * 2, 2), float16)
        keep = _layout((1, 2, 64, 64), (8192 * 2, 4096 * 2, 64 * 2, 2), float16)
        forward = Attention(heads, heads, heads, None, keep, heads, True, 0.125)
        planner = self._planner(self.xp.cuda.runtime.getDevice())
        try:
            planner.graph(AttentionBackward(forward, heads, (heads, heads, heads)))
        except (planner.cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
            return str(error).strip().partition("\n")[0]
        return ""

    # plans

    def _run(self, signature: Any, *arrays: Array) -> bool:
        with self._on(arrays[0]) as device, self._lock:
            plan = self._plan(device, signature)
            if plan is not None:
                self._execute(device, plan, {i: array.data.ptr for i, array in enumerate(arrays, 1)})
        return plan is not None

    @contextmanager
    def _on(self, array: Array) -> Iterator[int]:
        """Make the array's device current; yields its number."""
        device = array.data.device_id
        other = self.xp.cuda.runtime.getDevice() != device
        with self.xp.cuda.Device(device) if other else nullcontext():
            yield device

    def _execute(self, device: int, plan: GraphPlan, addresses: dict[int, int]) -> None:
        planner, stream = self._planners[device], self.xp.cuda.get_current_stream().ptr
        handle = planner.device["handle"]
        if self._streams.get(device) != stream:
            planner.cudnn.set_stream(handle=handle, stream=stream)
            self._streams[device] = stream
        workspace = self.xp.cuda.alloc(plan.workspace) if plan.workspace else None
        plan.graph._execute(addresses, 0 if workspace is None else workspace.ptr, handle)

    def _new_plan(self, device: int, signature: Any) -> GraphPlan | None:
        planner = self._planner(device)
        try:
            return planner.plan(signature)
        except (planner.cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
            self.refused[signature] = str(error).strip().partition("\n")[0]
            return None

    def _planner(self, device: int) -> Planner:
        if device not in self._planners:
            assert not self.unavailable_reason() and self._found is not None
            cudnn = self._found[0]
            self._planners[device] = Planner(cudnn, handle=cudnn.create_handle())
        return self._planners[device]


def find(xp: Any) -> tuple[Any, str]:
    """The frontend's module, and in one line why it cannot be used, "" if it can."""
    try:
        cudnn = importlib.import_module("cudnn")
    except ImportError as error:
        return None, f"no nvidia-cudnn-frontend ({error}): {install.cure()}"
    package = f"nvidia-cudnn-cu{xp.cuda.runtime.runtimeGetVersion() // 1000}"  # both install the same file
    try:
        version = cudnn.backend_version()
    except RuntimeError:
        return None, f"no libcudnn.so.9: pip install {package}"
    if version < MIN_VERSION:
        return None, f"cuDNN {version}, and ampkit needs {MIN_VERSION}: pip install --upgrade {package}"
    try:
        xp.cuda.nvrtc.getVersion()  # loads NVRTC from CuPy's path; cuDNN looks it up by name alone
        cudnn.destroy_handle(cudnn.create_handle())
    except Exception as error:
        return None, f"cuDNN {version} does not start: {str(error).strip().partition(chr(10))[0]}"
    return cudnn, ""


# arrays


def layout(array: Array) -> Layout:
    """Shape, strides and dtype of an array. An axis of size 1 gets the stride of a contiguous array."""
    return _layout(array.shape, array.strides, array.dtype)


@lru_cache(PLANS)
def _layout(shape: tuple[int, ...], steps: tuple[int, ...], dtype: DType) -> Layout:
    strides: list[int] = []
    extent = 1
    for count, step in zip(reversed(shape), reversed(steps), strict=True):
        strides.append(step // dtype.itemsize if count > 1 else extent)
        extent = max(extent, strides[-1] * count)
    return Layout(shape, tuple(reversed(strides)), dtype)


def library_of(array: Array) -> Any:
    """cuDNN on the device of `array`."""
    gpu: Any = backends.backend_of(array)
    return gpu.cudnn


def aligned(array: Array) -> bool:
    """Whether the address of `array` is aligned for cuDNN."""
    return not array.data.ptr % ALIGNED


def _convolution(
    kind: str, maps: Array, images: Array, kernels: Array, geometry: ConvGeometry, dtype: DType, bias: Any, tf32: bool
) -> Convolution:
    out = {"maps": maps, "images": images, "kernels": kernels}[kind].dtype
    fast = tf32 and dtype not in LOW
    shapes = maps.shape, images.shape, kernels.shape
    deterministic = are_deterministic_algorithms_enabled()
    return Convolution(kind, *shapes, geometry, dtype, out, bias is not None, fast, deterministic)


def _attention(call: AttentionArrays) -> Attention:
    bias, keep = (None if array is None else layout(array) for array in (call.bias, (call.dropped or (None,))[0]))
    query, key, value = map(layout, call[:3])
    return Attention(query, key, value, bias, keep, layout(call.out), call.causal, call.scale)


def _attention_backward(call: AttentionArrays) -> AttentionBackward:
    dq, dk, dv = map(layout, call.gradients)
    return AttentionBackward(_attention(call), layout(call.dout), (dq, dk, dv), are_deterministic_algorithms_enabled())
