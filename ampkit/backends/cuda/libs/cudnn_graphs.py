"""plans: what cuDNN is asked for, as its graphs, and a graph made ready to run.

A graph depends on shapes, layouts and dtypes alone, not on a device's memory: its tensors are numbered from 1 in the
order in which `Cudnn` is given the arrays, and a call is {number: address}. Engines that sum in 16 bits or take a short
cut through another algebra (Winograd, FFT) are ruled out, so that products are exact and summed in float32. Those that
cuDNN notes as nondeterministic are ruled out where the same inputs must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ampkit.base.dtypes import DType, bfloat16, float16, float32

if TYPE_CHECKING:
    from ampkit.ops.nn.conv_geometry import ConvGeometry

Shape = tuple[int, ...]

# Bytes of workspace that a convolution may ask for. Engines that ask for much copy images and maps into another layout:
# planned for an H100 at ResNet-50's sizes and 256 images, up to 0.62 GB in 16 bits and 1.03 GB in float32. This bound
# leaves cuDNN its first choice there. Larger convolutions get another engine: each had one that asks for little.
ROOM = 1 << 30

_NAMES = {float32: "FLOAT", float16: "HALF", bfloat16: "BFLOAT16"}
_SHORT_CUTS = ("FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13")
_UNFIT = ("REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS", *_SHORT_CUTS)


class Layout(NamedTuple):
    """An array as cuDNN sees it: four axes or five, and elements from one to the next along each."""

    shape: Shape
    strides: Shape
    dtype: DType


def channels_last(shape: Sequence[int], dtype: DType) -> Layout:
    """[N, C, H, W] that lies in memory as [N, H, W, C]; [N, C, D, H, W] likewise."""
    n, c, *size = shape
    steps = [c * prod(size[i + 1 :]) for i in range(len(size))]
    return Layout((n, c, *size), (c * prod(size), 1, *steps), dtype)


class Convolution(NamedTuple):
    """One of a convolution's three products, `kind` "maps", "images" or "kernels", all three channels-last.

    maps [N, O, rows, columns], images [N, C, H, W], kernels [O, C / groups, KH, KW]; with depth, an axis more each.
    What the product gives has the dtype `out`, the other two `dtype`, as has a bias (not for kernels). tf32: whether
    float32 operands may be rounded to TF32, which rounds nothing of what was widened from 16 bits. deterministic:
    whether the same operands must give the same bits.
    """

    kind: str
    maps: Shape
    images: Shape
    kernels: Shape
    geometry: ConvGeometry
    dtype: DType
    out: DType
    bias: bool = False
    tf32: bool = False
    deterministic: bool = True


NUMBER = Layout((1, 1, 1, 1), (1, 1, 1, 1), float32)


class Attention(NamedTuple):
    """softmax(q k^T * scale + bias) v with q [N, H, L, E], k [N, G, S, E], v [N, G, S, V], G a divisor of H.

    bias: [N or 1, H or 1, L or 1, S], or None. keep: [N, H, L, S], 1 for the weights that dropout keeps and 0 for the
    others, or None. causal: query i sees keys 0 to i. out: how the result lies.
    """

    query: Layout
    key: Layout
    value: Layout
    bias: Layout | None
    keep: Layout | None
    out: Layout
    causal: bool
    scale: float

    @property
    def lse(self) -> Layout:
        """The log-sum-exp of each row of scores: [N, H, L, 1] float32, packed."""
        n, h, rows, _ = self.query.shape
        return Layout((n, h, rows, 1), (h * rows, rows, 1, 1), float32)


class AttentionBackward(NamedTuple):
    """The gradients of an Attention's three operands; slope: how its result's gradient lies.

    deterministic: whether the same operands must give the same bits.
    """

    forward: Attention
    slope: Layout
    gradients: tuple[Layout, Layout, Layout]
    deterministic: bool = True


class Plan(NamedTuple):
    """A graph ready to run, and the bytes of workspace it needs."""

    graph: Any
    workspace: int


class Planner:
    """Makes plans with `cudnn`, the frontend's module; `place` names the device: a handle, or its properties."""

    def __init__(self, cudnn: Any, **place: Any):
        self.cudnn, self.place = cudnn, place

    def plan(self, what: Any) -> Plan:
        """The plan of a Convolution, Attention or AttentionBackward; raises as `graph`. Some engines are compiled."""
        graph = self.graph(what)
        graph.build_plans(self.cudnn.build_plan_policy.HEURISTICS_CHOICE)
        return Plan(graph, graph.get_workspace_size())

    def graph(self, what: Any) -> Any:
        """cuDNN's graph, with engines that are known to fit. Raises what cuDNN raises where it has none."""
        wide = self.cudnn.data_type.FLOAT
        graph = self.cudnn.pygraph(intermediate_data_type=wide, compute_data_type=wide, **self.place)
        _DRAWN[type(what)](Drawing(self.cudnn, graph), what)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([getattr(self.cudnn.numerical_note, name) for name in unfit(what)])
        if isinstance(what, Convolution):
            graph.deselect_workspace_greater_than(ROOM)
        graph.check_support()
        return graph


def unfit(what: Any) -> tuple[str, ...]:
    """The notes, in cuDNN's words, that no engine for `what` may carry."""
    exact = isinstance(what, Convolution) and what.dtype == float32 and not what.tf32
    repeats = isinstance(what, Attention) or what.deterministic
    return (*_UNFIT, *(["NONDETERMINISTIC"] if repeats else []), *(["TENSOR_CORE"] if exact else []))


class Drawing:
    """A graph being drawn: tensors that are given, and those that it gives, numbered as they come."""

    def __init__(self, cudnn: Any, graph: Any):
        self.cudnn, self.graph = cudnn, graph
        self._number = 0

    def _next(self, layout: Layout) -> tuple[int, list[int], list[int], Any]:
        self._number += 1
        return self._number, list(layout.shape), list(layout.strides), self.type(layout.dtype)

    def type(self, dtype: DType) -> Any:
        return getattr(self.cudnn.data_type, _NAMES[dtype])

    def given(self, layout: Layout) -> Any:
        number, shape, strides, kind = self._next(layout)
        return self.graph.tensor(dim=shape, stride=strides, data_type=kind, uid=number)

    def gives(self, tensor: Any, layout: Layout) -> None:
        number, shape, strides, kind = self._next(layout)
        tensor.set_output(True).set_uid(number).set_dim(shape).set_stride(strides).set_data_type(kind)


def _geometry(w: ConvGeometry) -> dict[str, list[int]]:
    before, after = ([pads[i] for pads in w.padding] for i in (0, 1))
    return {
        "pre_padding": before, "post_padding": after, "stride": list(w.stride), "dilation": list(w.dilation)
    }  # fmt: skip


def _draw_convolution(d: Drawing, c: Convolution) -> None:
    shapes = {"maps": c.maps, "images": c.images, "kernels": c.kernels}
    laid = {name: channels_last(shape, c.out if name == c.kind else c.dtype) for name, shape in shapes.items()}
    first, second = (d.given(laid[name]) for name in ("images", "kernels", "maps") if name != c.kind)
    how = _geometry(c.geometry)
    if c.kind == "maps":
        found = d.graph.conv_fprop(image=first, weight=second, **how)
    elif c.kind == "images":
        found = d.graph.conv_dgrad(loss=second, filter=first, **how)
    else:
        found = d.graph.conv_wgrad(image=first, loss=second, **how)
    if c.bias:
        channels = shapes[c.kind][1]
        found.set_dim(list(laid[c.kind].shape)).set_stride(list(laid[c.kind].strides))
        found = d.graph.bias(
            input=found, bias=d.given(channels_last((1, channels, *(1,) * len(c.geometry.input_size)), c.dtype))
        )
    d.gives(found, laid[c.kind])


def _masked(d: Drawing, a: Attention, numbers: int) -> dict[str, Any]:
    # numbers: how many go with dropout; by how much the weights grow, and for the backward the inverse.
    how: dict[str, Any] = {"attn_scale": a.scale}
    if a.causal:
        how |= {"diagonal_alignment": d.cudnn.diagonal_alignment.TOP_LEFT, "diagonal_band_right_bound": 0}
    if a.bias is not None:
        how["bias"] = d.given(a.bias)
    if a.keep is not None:
        how["dropout"] = (d.given(a.keep), *(d.given(NUMBER) for _ in range(numbers)))
    return how


def _draw_attention(d: Drawing, a: Attention) -> None:
    q, k, v = (d.given(layout) for layout in (a.query, a.key, a.value))
    out, lse = d.graph.sdpa(q=q, k=k, v=v, generate_stats=True, **_masked(d, a, 1))
    d.gives(out, a.out)
    d.gives(lse, a.lse)


def _draw_attention_backward(d: Drawing, b: AttentionBackward) -> None:
    a = b.forward
    q, k, v = (d.given(layout) for layout in (a.query, a.key, a.value))
    how = _masked(d, a, 2)
    out, lse, slope = d.given(a.out), d.given(a.lse), d.given(b.slope)
    found = d.graph.sdpa_backward(
        q=q, k=k, v=v, o=out, dO=slope, stats=lse, use_deterministic_algorithm=b.deterministic, **how
    )  # fmt: skip
    for gradient, layout in zip(found, b.gradients, strict=True):
        d.gives(gradient, layout)


_DRAWN: dict[type, Callable[[Drawing, Any], None]] = {
    Convolution: _draw_convolution,
    Attention: _draw_attention,
    AttentionBackward: _draw_attention_backward,
}
