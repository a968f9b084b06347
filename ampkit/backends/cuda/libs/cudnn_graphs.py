"""Descriptions of convolutions and attention, the cuDNN graphs built from them, and their execution plans.

A graph depends on shapes, strides and dtypes alone, not on addresses: its tensors are numbered from 1 in the order in
which `Cudnn` passes the arrays, and a call maps number to address. Engines that accumulate in 16 bits or use Winograd
or FFT are excluded, so that products are exact and summed in float32; engines that cuDNN marks as nondeterministic are
excluded where results must be reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import DType, bfloat16, float16, float32

Shape = tuple[int, ...]

# Limit of workspace bytes of a convolution. Engines with a large workspace copy input and output to another layout:
# planned for an H100 at ResNet-50's sizes and 256 images, up to 0.62 GB in 16 bits and 1.03 GB in float32. This bound
# leaves cuDNN its first choice there. Larger convolutions get another engine: each had one with a small workspace.
MAX_WORKSPACE = 1 << 30

_NAMES = {float32: "FLOAT", float16: "HALF", bfloat16: "BFLOAT16"}
_INEXACT = ("FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13")
_EXCLUDED = ("REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS", *_INEXACT)


class Layout(NamedTuple):
    """Shape of four or five axes, strides in elements, dtype."""

    shape: Shape
    strides: Shape
    dtype: DType


def channels_last(shape: Sequence[int], dtype: DType) -> Layout:
    """The layout of [N, C, H, W] stored as [N, H, W, C]; [N, C, D, H, W] likewise."""
    n, c, *size = shape
    steps = [c * prod(size[i + 1 :]) for i in range(len(size))]
    return Layout((n, c, *size), (c * prod(size), 1, *steps), dtype)


class Convolution(NamedTuple):
    """A convolution's forward (`kind` "maps"), input gradient ("images") or weight gradient ("kernels"), channels-last.

    maps (output) [N, O, OH, OW], images [N, C, H, W], kernels [O, C / groups, KH, KW]; volumes have one more axis each.
    The result has the dtype `out`, the operands `dtype`, and so a bias (not for kernels). tf32: whether float32
    operands may be rounded to TF32, which is exact for values cast from 16 bits. deterministic: whether the same
    operands must give the same bits.
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

    bias: [N or 1, H or 1, L or 1, S], or None. keep: the dropout mask [N, H, L, S] of 1 and 0, or None. causal: query i
    attends to keys 0 to i. out: the layout of the result.
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
        """The log-sum-exp of each row of scores: [N, H, L, 1] float32, contiguous."""
        n, h, rows, _ = self.query.shape
        return Layout((n, h, rows, 1), (h * rows, rows, 1, 1), float32)


class AttentionBackward(NamedTuple):
    """The gradients of query, key and value of an Attention. dout: the layout of the gradient of its result.

    deterministic: whether the same operands must give the same bits.
    """

    forward: Attention
    dout: Layout
    gradients: tuple[Layout, Layout, Layout]
    deterministic: bool = True


class GraphPlan(NamedTuple):
    """A graph ready to run, and the bytes of workspace it needs."""

    graph: Any
    workspace: int


class Planner:
    """Builds plans with `cudnn`, the frontend's module. device: as `handle`, or as `device_property` and more."""

    def __init__(self, cudnn: Any, **device: Any):
        self.cudnn, self.device = cudnn, device

    def plan(self, what: Any) -> GraphPlan:
        """Build the plan of a Convolution, Attention or AttentionBackward; may compile an engine. Raises as `graph`."""
        graph = self.graph(what)
        graph.build_plans(self.cudnn.build_plan_policy.HEURISTICS_CHOICE)
        return GraphPlan(graph, graph.get_workspace_size())

    def graph(self, what: Any) -> Any:
        """Build the cuDNN graph with its supported engines. Raises cuDNN's exception where it has none."""
        float_type = self.cudnn.data_type.FLOAT
        graph = self.cudnn.pygraph(intermediate_data_type=float_type, compute_data_type=float_type, **self.device)
        _BUILDERS[type(what)](GraphBuilder(self.cudnn, graph), what)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK])
        graph.deselect_numeric_notes([getattr(self.cudnn.numerical_note, name) for name in excluded_notes(what)])
        if isinstance(what, Convolution):
            graph.deselect_workspace_greater_than(MAX_WORKSPACE)
        graph.check_support()
        return graph


def excluded_notes(what: Any) -> tuple[str, ...]:
    """The names of cuDNN's numerical notes that exclude an engine for `what`."""
    exact = isinstance(what, Convolution) and what.dtype == float32 and not what.tf32
    deterministic = isinstance(what, Attention) or what.deterministic
    return (*_EXCLUDED, *(["NONDETERMINISTIC"] if deterministic else []), *(["TENSOR_CORE"] if exact else []))


class GraphBuilder:
    """A cuDNN graph under construction; its inputs and outputs are numbered in the order of their declaration."""

    def __init__(self, cudnn: Any, graph: Any):
        self.cudnn, self.graph = cudnn, graph
        self._number = 0

    def _next(self, layout: Layout) -> tuple[int, list[int], list[int], Any]:
        self._number += 1
        return self._number, list(layout.shape), list(layout.strides), self.type(layout.dtype)

    def type(self, dtype: DType) -> Any:
        return getattr(self.cudnn.data_type, _NAMES[dtype])

    def input(self, layout: Layout) -> Any:
        number, shape, strides, kind = self._next(layout)
        return self.graph.tensor(dim=shape, stride=strides, data_type=kind, uid=number)

    def output(self, tensor: Any, layout: Layout) -> None:
        number, shape, strides, kind = self._next(layout)
        tensor.set_output(True).set_uid(number).set_dim(shape).set_stride(strides).set_data_type(kind)


def _geometry(w: ConvGeometry) -> dict[str, list[int]]:
    before, after = ([pads[i] for pads in w.padding] for i in (0, 1))
    return {
        "pre_padding": before, "post_padding": after, "stride": list(w.stride), "dilation": list(w.dilation)
    }  # fmt: skip


def _build_convolution(d: GraphBuilder, c: Convolution) -> None:
    shapes = {"maps": c.maps, "images": c.images, "kernels": c.kernels}
    layouts = {name: channels_last(shape, c.out if name == c.kind else c.dtype) for name, shape in shapes.items()}
    first, second = (d.input(layouts[name]) for name in ("images", "kernels", "maps") if name != c.kind)
    options = _geometry(c.geometry)
    if c.kind == "maps":
        result = d.graph.conv_fprop(image=first, weight=second, **options)
    elif c.kind == "images":
        result = d.graph.conv_dgrad(loss=second, filter=first, **options)
    else:
        result = d.graph.conv_wgrad(image=first, loss=second, **options)
    if c.bias:
        channels = shapes[c.kind][1]
        result.set_dim(list(layouts[c.kind].shape)).set_stride(list(layouts[c.kind].strides))
        result = d.graph.bias(
            input=result, bias=d.input(channels_last((1, channels, *(1,) * len(c.geometry.input_size)), c.dtype))
        )
    d.output(result, layouts[c.kind])


def _sdpa_options(d: GraphBuilder, a: Attention, numbers: int) -> dict[str, Any]:
    """Arguments for scale, causal mask, bias and dropout. numbers: of dropout's scalars, 1 / (1 - p) and then 1 - p."""
    options: dict[str, Any] = {"attn_scale": a.scale}
    if a.causal:
        options |= {"diagonal_alignment": d.cudnn.diagonal_alignment.TOP_LEFT, "diagonal_band_right_bound": 0}
    if a.bias is not None:
        options["bias"] = d.input(a.bias)
    if a.keep is not None:
        options["dropout"] = (d.input(a.keep), *(d.input(NUMBER) for _ in range(numbers)))
    return options


def _build_attention(d: GraphBuilder, a: Attention) -> None:
    q, k, v = (d.input(layout) for layout in (a.query, a.key, a.value))
    out, lse = d.graph.sdpa(q=q, k=k, v=v, generate_stats=True, **_sdpa_options(d, a, 1))
    d.output(out, a.out)
    d.output(lse, a.lse)


def _build_attention_backward(d: GraphBuilder, b: AttentionBackward) -> None:
    a = b.forward
    q, k, v = (d.input(layout) for layout in (a.query, a.key, a.value))
    options = _sdpa_options(d, a, 2)
    out, lse, dout = d.input(a.out), d.input(a.lse), d.input(b.dout)
    result = d.graph.sdpa_backward(
        q=q, k=k, v=v, o=out, dO=dout, stats=lse, use_deterministic_algorithm=b.deterministic, **options
    )  # fmt: skip
    for gradient, layout in zip(result, b.gradients, strict=True):
        d.output(gradient, layout)


_BUILDERS: dict[type, Callable[[GraphBuilder, Any], None]] = {
    Convolution: _build_convolution,
    Attention: _build_attention,
    AttentionBackward: _build_attention_backward,
}
