"""parallelize_module: which layers of a model the ranks divide, and how; PyTorch's names.

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model = nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group("data"))

A column-wise layer followed by a row-wise one needs one sum over the ranks in the forward, and one in the backward
(Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ...base.errors import ArgumentError, DTypeError, ShapeError, StateError
from ...nn.module import Module
from ...nn.modules.attention import MultiheadAttention
from ...nn.modules.dropout import Dropout
from ...nn.modules.embedding import Embedding
from ...nn.modules.linear import Linear
from ...nn.modules.norm import LayerNorm, RMSNorm
from ..data_parallel import broadcast_tensors
from ..device_mesh import DeviceMesh, Placement, Replicate, Shard
from ..fsdp.module import keep_parts_in_state
from ..fsdp.sharded_tensor import ShardedParameter, Sharding, share_out
from ..process_group import ProcessGroup
from ..world import group_or_world
from . import layers
from .layers import Layout

_NAME = "parallelize_module"


class ParallelStyle:
    """How the ranks divide a layer: `apply` makes of the layer one that computes this rank's part.

    input_layouts, output_layouts: the placements of the activations that it is given, and that it returns:
    Replicate() or Shard(dim). use_local_output: True; activations between layers are plain tensors.
    """

    default_layouts: tuple[Placement, Placement] = Replicate(), Replicate()

    def __init__(
        self,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ):
        given = zip((input_layouts, output_layouts), self.default_layouts, strict=True)
        self.input_layouts, self.output_layouts = (default if each is None else each for each, default in given)
        for layout in (self.input_layouts, self.output_layouts):
            if not isinstance(layout, Replicate | Shard):
                raise DTypeError(type(self).__name__, "layouts Replicate() or Shard(dim)", repr(layout))
        if not use_local_output:
            cure = "activations between layers are this rank's local tensors"
            raise ArgumentError(type(self).__name__, "use_local_output=True", "False", cure)

    def apply(self, module: Module, path: str, group: ProcessGroup, mesh: Any) -> None:
        """Divide `module`, whose path in the model is `path`."""
        raise NotImplementedError

    def _become(self, module: Module, kind: type, group: ProcessGroup) -> None:
        module.__dict__["_layout"] = Layout(group, self.input_layouts, self.output_layouts)
        module.__class__ = kind


class ColwiseParallel(ParallelStyle):
    """Each rank computes some features of the output: of a Linear it has rows of the weight and bias, of an Embedding
    columns of the table, of a MultiheadAttention heads.

    blocks: equal parts of the features of which each rank has its own, 3 for a Linear that projects to queries, keys
    and values one after the other.
    """

    default_layouts = Replicate(), Shard(-1)

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
        blocks: int = 1,
    ):
        super().__init__(input_layouts, output_layouts, use_local_output)
        self.blocks = blocks

    def apply(self, module: Module, path: str, group: ProcessGroup, mesh: Any) -> None:
        if isinstance(module, Embedding):
            _need_rows_as_stored(module, path)
            _divide(module, path, group, mesh, {"weight": 1})
            self._become(module, layers.ColwiseEmbedding, group)
        elif isinstance(module, MultiheadAttention):
            self._divide_heads(module, path, group, mesh)
        elif isinstance(module, Linear):
            gathers = self.output_layouts == Replicate() and self.blocks == 1
            _divide(module, path, group, mesh, {"weight": 0, "bias": 0}, self.blocks, may_differ=gathers)
            self._become(module, layers.ColwiseLinear, group)
        else:
            raise _of_another_class(self, "a Linear, Embedding or MultiheadAttention", module, path)

    def _divide_heads(self, module: MultiheadAttention, path: str, group: ProcessGroup, mesh: Any) -> None:
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            got = f"{path!r} with kdim, vdim, add_bias_kv or add_zero_attn"
            raise ArgumentError(_NAME, "a MultiheadAttention of one width without keys of its own", got)
        if module.num_heads % group.size():
            raise ShapeError(_NAME, f"heads that {group.size()} ranks divide", f"{module.num_heads} in {path!r}")
        _divide(module, path, group, mesh, {"in_proj_weight": 0, "in_proj_bias": 0}, 3)
        module.num_heads //= group.size()
        RowwiseParallel(output_layouts=self._output_of_heads()).apply(module.out_proj, f"{path}.out_proj", group, mesh)
        self._become(module, layers.ColwiseAttention, group)

    def _output_of_heads(self) -> Placement:
        last = self.output_layouts == Shard(-1)  # the default, which of heads is no axis of the output
        return Replicate() if last else self.output_layouts


class RowwiseParallel(ParallelStyle):
    """Each rank computes a term of the output: of a Linear it has columns of the weight, of an Embedding rows of the
    table. The terms are added up over the ranks; the bias, which all have, is added once."""

    default_layouts = Shard(-1), Replicate()

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ):
        super().__init__(input_layouts, output_layouts, use_local_output)

    def apply(self, module: Module, path: str, group: ProcessGroup, mesh: Any) -> None:
        if isinstance(module, Embedding):
            _need_rows_as_stored(module, path)
            _divide(module, path, group, mesh, {"weight": 0}, may_differ=True)
            self._become(module, layers.RowwiseEmbedding, group)
            if self.input_layouts == Shard(-1):  # the default, of a Linear's features; indices are replicated
                module.__dict__["_layout"] = Layout(group, Replicate(), self.output_layouts)
        elif isinstance(module, Linear):
            _divide(module, path, group, mesh, {"weight": 1})
            self._become(module, layers.RowwiseLinear, group)
        else:
            raise _of_another_class(self, "a Linear or Embedding", module, path)


class SequenceParallel(ParallelStyle):
    """Each rank normalizes, or drops out, some positions of the sequence, along `sequence_dim`.

    The layers around it give and take Shard(sequence_dim): RowwiseParallel(output_layouts=Shard(1)) before it,
    ColwiseParallel(input_layouts=Shard(1)) after it (Korthikanti et al. 2022, arXiv:2205.05198).
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = True):
        super().__init__(Shard(sequence_dim), Shard(sequence_dim), use_local_output)

    def apply(self, module: Module, path: str, group: ProcessGroup, mesh: Any) -> None:
        kinds = {
            LayerNorm: layers.SequenceLayerNorm, RMSNorm: layers.SequenceRMSNorm, Dropout: layers.SequenceDropout,
        }  # fmt: skip
        if type(module) not in kinds:
            raise _of_another_class(self, "a LayerNorm, RMSNorm or Dropout", module, path)
        self._become(module, kinds[type(module)], group)


def parallelize_module(
    module: Module,
    device_mesh: DeviceMesh | ProcessGroup | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> Module:
    """Divide layers of `module` over ranks: each keeps its part of the weights, and computes its part. -> `module`.

    device_mesh: of one dimension, `mesh["tensor"]`, or a group of processes; None is all. parallelize_plan: a style for
    `module` itself, or styles by the paths of its submodules, with * for any name: "layers.*.up". None is the model's
    own `tensor_parallel_plan`, which gpt, bert and vit have. src_data_rank: the rank of the group whose parameters and
    buffers all get first; None leaves each rank its own. Make the optimizer afterwards, and wrap the model in
    DistributedDataParallel over the other dimension of the mesh.
    Raises ArgumentError for a path that names no module or a layer that the style does not divide, ShapeError for
    features or heads that the ranks do not divide, StateError for parameters that are divided already.
    """
    if not isinstance(module, Module):
        raise DTypeError(_NAME, "a Module", f"a {type(module).__name__}")
    group, mesh = _group(device_mesh)
    plan = module_plan(module) if parallelize_plan is None else parallelize_plan
    if isinstance(plan, ParallelStyle):
        plan = {"": plan}
    if not isinstance(plan, Mapping) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
        raise DTypeError(_NAME, "a plan: a ParallelStyle, or a dict of them by path", f"a {type(plan).__name__}")
    found = {pattern: _matching(module, pattern) for pattern in plan}
    if src_data_rank is not None:
        tensors = [*module.parameters(), *module.buffers()]
        broadcast_tensors(group, [t for t in tensors if not isinstance(t, ShardedParameter)], src_data_rank)
    for pattern, style in plan.items():
        for path, part in found[pattern]:
            style.apply(part, path, group, mesh)
    return module


def module_plan(module: Module) -> Mapping[str, ParallelStyle]:
    """The plan that a model of the library has for itself, by the words of STYLES."""
    words: Any = getattr(module, "tensor_parallel_plan", None)
    if words is None:
        got = f"a {type(module).__name__} without one of its own"
        raise ArgumentError(_NAME, "a parallelize_plan", got, '{"up": ColwiseParallel(), "down": RowwiseParallel()}')
    return {path: STYLES[word] for path, word in words.items()}


STYLES: dict[str, ParallelStyle] = {
    "colwise": ColwiseParallel(),
    "colwise_gathered": ColwiseParallel(output_layouts=Replicate()),
    "colwise_qkv": ColwiseParallel(blocks=3),
    "rowwise": RowwiseParallel(),
}


def _group(mesh: Any) -> tuple[ProcessGroup, DeviceMesh | None]:
    if mesh is None or isinstance(mesh, ProcessGroup):
        return group_or_world(_NAME, mesh), None
    if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
        got = f"one of {mesh.ndim}" if isinstance(mesh, DeviceMesh) else f"a {type(mesh).__name__}"
        raise ArgumentError(_NAME, "a DeviceMesh of one dimension", got, 'mesh["tensor"] is a part of a mesh')
    return mesh.get_group(), mesh


def _matching(module: Module, pattern: str) -> list[tuple[str, Module]]:
    words = pattern.split(".") if pattern else []
    found = []
    for path, part in module.named_modules():
        names = path.split(".") if path else []
        if len(names) == len(words) and all(map(fnmatchcase, names, words)):
            found.append((path, part))
    if not found:
        raise ArgumentError(_NAME, "a plan of paths of submodules", repr(pattern))
    return found


def _divide(
    module: Module, path: str, group: ProcessGroup, mesh: Any, dims: Mapping[str, int], blocks: int = 1,
    may_differ: bool = False,
) -> None:  # fmt: skip
    # Keep this rank's part of the parameters along the axes `dims`; may_differ: in size.
    for name, dim in dims.items():
        parameter = getattr(module, name)
        if parameter is None:
            continue
        title = f"{path}.{name}" if path else name
        if isinstance(parameter, ShardedParameter):
            if _is_alike(parameter._sharding, group, dim, blocks):  # tied to one that was divided so
                continue
            got = f"{title!r}, which is divided already"
            raise StateError(_NAME, "parameters that no rank has parts of", got, "divide a tied weight by one axis")
        length = parameter.shape[dim]
        if length % (blocks * group.size()) and not may_differ:
            needs = f"an axis that {group.size()} ranks divide" + (f", in {blocks} blocks" if blocks > 1 else "")
            raise ShapeError(_NAME, needs, f"{length} in {title!r}")
        parameter._dotted_name = parameter._dotted_name or title
        share_out(parameter, Sharding(group, parameter.array.shape, mesh, dim, blocks))
    keep_parts_in_state(module)


def _is_alike(sharding: Any, group: ProcessGroup, dim: int, blocks: int) -> bool:
    return sharding.group is group and (sharding.dim, sharding.blocks) == (dim, blocks)


def _need_rows_as_stored(module: Embedding, path: str) -> None:
    if module.max_norm is not None or module.scale_grad_by_freq:
        got = f"{path!r} with max_norm or scale_grad_by_freq"
        raise ArgumentError(_NAME, "an Embedding that reads its rows as they are", got)


def _of_another_class(style: ParallelStyle, needs: str, module: Module, path: str) -> ArgumentError:
    return ArgumentError(_NAME, f"{needs} for {type(style).__name__}", f"a {type(module).__name__} at {path!r}")


__all__ = [
    "STYLES", "ColwiseParallel", "ParallelStyle", "RowwiseParallel", "SequenceParallel", "module_plan",
    "parallelize_module",
]  # fmt: skip
