"""cudnn: NVIDIA's convolutions and attention, planned once per signature and run on CuPy's current stream.

`Cudnn` takes arrays that lie as cuDNN wants them, and says False where it has no engine; `plans` holds what is asked
for. The first call of a signature looks for an engine, and may compile it for a second or two; from then on a call is
one of the library. It waits for nothing, and allocates its workspace through CuPy, so it can be captured in a graph.

Why cuDNN cannot be used is said in a line (`trouble`), never raised: without it the references run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from ampkit.backends.determinism import are_deterministic_algorithms_enabled
from ampkit.base.dtypes import LOW, DType

from .. import install
from .cudnn_graphs import Attention, AttentionBackward, Convolution, Layout, Plan, Planner

if TYPE_CHECKING:
    from ampkit.ops.nn.conv_geometry import ConvGeometry

Array = Any  # a CuPy array

ALIGNED = 16  # bytes, of the address of each array
OLDEST = 90000  # the frontend speaks to cuDNN 9
PLANS = 4096  # signatures whose plans are kept


class Cudnn:
    """cuDNN on the devices of `xp`, CuPy. refused: the signatures that it has no engine for, and what it said."""

    def __init__(self, xp: Any):
        self.xp = xp
        self.refused: dict[Any, str] = {}
        self._plan: Callable[[int, Any], Plan | None] = lru_cache(PLANS)(self._search)
        self._planners: dict[int, Planner] = {}
        self._streams: dict[int, int] = {}
        self._lock = Lock()  # between the stream, which a handle holds, and the call that goes to it
        self._found: tuple[Any, str] | None = None

    def trouble(self) -> str:
        """Why cuDNN cannot be used, in one line; "" if it can."""
        if self._found is None:
            self._found = find(self.xp)
        return self._found[1]

    # convolutions: images [N, C, H, W], kernels [O, C / groups, KH, KW], maps [N, O, rows, columns], all channels-last

    def conv_forward(
        self, images: Array, kernels: Array, bias: Array | None, maps: Array, geometry: ConvGeometry, tf32: bool = False
    ) -> bool:
        """Write to `maps`: each window times each kernel, plus bias [O]."""
        what = _convolution("maps", maps, images, kernels, geometry, images.dtype, bias, tf32)
        return self._run(what, images, kernels, *([] if bias is None else [bias]), maps)

    def conv_data(
        self, maps: Array, kernels: Array, bias: Array | None, images: Array, geometry: ConvGeometry, tf32: bool = False
    ) -> bool:
        """Write to `images`: the gradient of a convolution's images, given that of its maps; plus bias [C]."""
        what = _convolution("images", maps, images, kernels, geometry, maps.dtype, bias, tf32)
        return self._run(what, kernels, maps, *([] if bias is None else [bias]), images)

    def conv_weight(
        self, images: Array, maps: Array, kernels: Array, geometry: ConvGeometry, tf32: bool = False
    ) -> bool:
        """Write to `kernels`: the gradient of a convolution's kernels, given that of its maps."""
        what = _convolution("kernels", maps, images, kernels, geometry, maps.dtype, None, tf32)
        return self._run(what, images, maps, kernels)

    # attention: four axes each, the last one packed; see plans.Attention. dropped: what dropout keeps, by how much it
    # grows, and one over that, the last two single numbers float32; or None

    def attention_forward(
        self, query: Array, key: Array, value: Array, bias: Array | None, dropped: tuple[Array, Array, Array] | None,
        out: Array, lse: Array, causal: bool, scale: float,
    ) -> bool:  # fmt: skip
        """Write to `out` and `lse` [N, H, L, 1] float32."""
        what = _attention(query, key, value, bias, dropped, out, causal, scale)
        more = [] if bias is None else [bias]
        return self._run(what, query, key, value, *more, *(dropped or ())[:2], out, lse)

    def attention_backward(
        self, query: Array, key: Array, value: Array, bias: Array | None, dropped: tuple[Array, Array, Array] | None,
        out: Array, lse: Array, slope: Array, gradients: tuple[Array, Array, Array], causal: bool, scale: float,
    ) -> bool:  # fmt: skip
        """Write to `gradients` those of query, key and value, given the result, its gradient `slope`, and lse."""
        forward = _attention(query, key, value, bias, dropped, out, causal, scale)
        what, more = _backward(forward, slope, gradients), [] if bias is None else [bias]
        return self._run(what, query, key, value, *more, *(dropped or ()), out, lse, slope, *gradients)

    def backward_workspace(
        self, query: Array, key: Array, value: Array, bias: Array | None, dropped: tuple[Array, Array, Array] | None,
        out: Array, lse: Array, slope: Array, gradients: tuple[Array, Array, Array], causal: bool, scale: float,
    ) -> int | None:  # fmt: skip
        """Bytes of workspace that `attention_backward` of the same arrays allocates; None where there is no engine."""
        forward = _attention(query, key, value, bias, dropped, out, causal, scale)
        with self._on(query) as device, self._lock:
            plan = self._plan(device, _backward(forward, slope, gradients))
        return None if plan is None else plan.workspace

    # plans

    def _run(self, what: Any, *arrays: Array) -> bool:
        with self._on(arrays[0]) as device, self._lock:
            plan = self._plan(device, what)
            if plan is not None:
                self._start(device, plan, {i: array.data.ptr for i, array in enumerate(arrays, 1)})
        return plan is not None

    @contextmanager
    def _on(self, array: Array) -> Iterator[int]:
        """The number of the array's device, current until the end."""
        device = array.data.device_id
        other = self.xp.cuda.runtime.getDevice() != device
        with self.xp.cuda.Device(device) if other else nullcontext():
            yield device

    def _start(self, device: int, plan: Plan, addresses: dict[int, int]) -> None:
        planner, stream = self._planners[device], self.xp.cuda.get_current_stream().ptr
        handle = planner.place["handle"]
        if self._streams.get(device) != stream:
            planner.cudnn.set_stream(handle=handle, stream=stream)
            self._streams[device] = stream
        room = self.xp.cuda.alloc(plan.workspace) if plan.workspace else None
        plan.graph._execute(addresses, 0 if room is None else room.ptr, handle)

    def _search(self, device: int, what: Any) -> Plan | None:
        planner = self._planner(device)
        try:
            return planner.plan(what)
        except (planner.cudnn.cudnnGraphNotSupportedError, RuntimeError) as refusal:
            self.refused[what] = str(refusal).strip().partition("\n")[0]
            return None

    def _planner(self, device: int) -> Planner:
        if device not in self._planners:
            assert not self.trouble() and self._found is not None
            cudnn = self._found[0]
            self._planners[device] = Planner(cudnn, handle=cudnn.create_handle())
        return self._planners[device]


def find(xp: Any) -> tuple[Any, str]:
    """The frontend's module, and why it cannot be used, in one line: "" if it can."""
    try:
        cudnn = importlib.import_module("cudnn")
    except ImportError as error:
        return None, f"no nvidia-cudnn-frontend ({error}): {install.cure()}"
    try:
        version = cudnn.backend_version()
    except RuntimeError:
        return None, "no libcudnn.so.9: pip install nvidia-cudnn-cu13 (or nvidia-cudnn-cu12)"
    if version < OLDEST:
        return None, f"cuDNN {version}, and ampkit needs {OLDEST}: pip install --upgrade nvidia-cudnn-cu13"
    try:
        xp.cuda.nvrtc.getVersion()  # loads the compiler from where CuPy knows it to be; cuDNN asks for it by name alone
        cudnn.destroy_handle(cudnn.create_handle())
    except Exception as error:
        return None, f"cuDNN {version} does not start: {str(error).strip().partition(chr(10))[0]}"
    return cudnn, ""


# arrays


def layout(array: Array) -> Layout:
    """How an array lies. An axis of one element has no step of its own: it gets the extent of what is right of it."""
    return _layout(array.shape, array.strides, array.dtype)


@lru_cache(PLANS)
def _layout(shape: tuple[int, ...], steps: tuple[int, ...], dtype: DType) -> Layout:
    strides: list[int] = []
    extent = 1
    for count, step in zip(reversed(shape), reversed(steps), strict=True):
        strides.append(step // dtype.itemsize if count > 1 else extent)
        extent = max(extent, strides[-1] * count)
    return Layout(shape, tuple(reversed(strides)), dtype)


def aligned(array: Array) -> bool:
    """Whether cuDNN can read an array where it begins."""
    return not array.data.ptr % ALIGNED


def _convolution(
    kind: str, maps: Array, images: Array, kernels: Array, geometry: ConvGeometry, dtype: DType, bias: Any, tf32: bool
) -> Convolution:
    out = {"maps": maps, "images": images, "kernels": kernels}[kind].dtype
    fast = tf32 and dtype not in LOW
    shapes = maps.shape, images.shape, kernels.shape
    repeats = are_deterministic_algorithms_enabled()
    return Convolution(kind, *shapes, geometry, dtype, out, bias is not None, fast, repeats)


def _attention(
    query: Array, key: Array, value: Array, bias: Array | None, dropped: Any, out: Array, causal: bool, scale: float
) -> Attention:
    laid = layout(query), layout(key), layout(value), None if bias is None else layout(bias)
    return Attention(*laid, None if dropped is None else layout(dropped[0]), layout(out), causal, scale)


def _backward(forward: Attention, slope: Array, gradients: tuple[Array, Array, Array]) -> AttentionBackward:
    dq, dk, dv = (layout(g) for g in gradients)
    return AttentionBackward(forward, layout(slope), (dq, dk, dv), are_deterministic_algorithms_enabled())
