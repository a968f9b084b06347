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
from typing import Any, NamedTuple

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
from ..world import group as groups
from ..world import group_or_world
from . import layers, sharded_layers
from .layers import Layout
from .shards import Cut, Division

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

    def apply(self, module: Module, path: str, among: Dividers) -> None:
        """Divide `module`, whose path in the model is `path`."""
        raise NotImplementedError

    def _become(self, module: Module, kind: type, among: Dividers) -> None:
        if among.shards is None:
            module.__dict__["_layout"] = Layout(among.group, self.input_layouts, self.output_layouts)
        else:
            kind = getattr(sharded_layers, kind.__name__)
            module.__dict__["_division"], module.__dict__["_gathers"] = among.shards, self.output_layouts == Replicate()
        module.__class__ = kind

    def _need_plain(self, among: Dividers, *outputs: Placement) -> None:
        # Shards are of features: of no other axis, and they begin and end with these layers.
        given = self.input_layouts, self.output_layouts
        if among.shards is not None and given not in [(self.default_layouts[0], output) for output in outputs]:
            needs = f"input_layouts={self.default_layouts[0]} and output_layouts={outputs[0]}, with shards"
            raise ArgumentError(type(self).__name__, needs, f"{given[0]} and {given[1]}")


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

    def apply(self, module: Module, path: str, among: Dividers) -> None:
        self._need_plain(among, Shard(-1), *[Replicate()] * (self.blocks == 1))
        if isinstance(module, Embedding):
            _need_rows_as_stored(module, path)
            _divide(module, path, among, {"weight": 1})
            self._become(module, layers.ColwiseEmbedding, among)
        elif isinstance(module, MultiheadAttention):
            self._divide_heads(module, path, among)
        elif isinstance(module, Linear):
            gathers = self.output_layouts == Replicate() and self.blocks == 1
            _divide(module, path, among, {"weight": 0, "bias": 0}, self.blocks, may_differ=gathers)
            self._become(module, layers.ColwiseLinear, among)
        else:
            raise _of_another_class(self, "a Linear, Embedding or MultiheadAttention", module, path)

    def _divide_heads(self, module: MultiheadAttention, path: str, among: Dividers) -> None:
        if module.in_proj_weight is None or module.bias_k is not None or module.add_zero_attn:
            got = f"{path!r} with kdim, vdim, add_bias_kv or add_zero_attn"
            raise ArgumentError(_NAME, "a MultiheadAttention of one width without keys of its own", got)
        if module.num_heads % among.parts:
            raise ShapeError(_NAME, f"heads that {among.said} divide", f"{module.num_heads} in {path!r}")
        _divide(module, path, among, {"in_proj_weight": 0, "in_proj_bias": 0}, 3)
        module.num_heads //= among.parts
        RowwiseParallel(output_layouts=self._output_of_heads()).apply(module.out_proj, f"{path}.out_proj", among)
        self._become(module, layers.ColwiseAttention, among)

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

    def apply(self, module: Module, path: str, among: Dividers) -> None:
        self._need_plain(among, Replicate())
        if isinstance(module, Embedding):
            _need_rows_as_stored(module, path)
            _divide(module, path, among, {"weight": 0}, may_differ=True)
            self._become(module, layers.RowwiseEmbedding, among)
            if self.input_layouts == Shard(-1) and among.shards is None:  # the default, of a Linear's features
                module.__dict__["_layout"] = Layout(among.group, Replicate(), self.output_layouts)
        elif isinstance(module, Linear):
            _divide(module, path, among, {"weight": 1})
            self._become(module, layers.RowwiseLinear, among)
        else:
            raise _of_another_class(self, "a Linear or Embedding", module, path)


class SequenceParallel(ParallelStyle):
    """Each rank normalizes, or drops out, some positions of the sequence, along `sequence_dim`.

    The layers around it give and take Shard(sequence_dim): RowwiseParallel(output_layouts=Shard(1)) before it,
    ColwiseParallel(input_layouts=Shard(1)) after it (Korthikanti et al. 2022, arXiv:2205.05198).
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = True):
        super().__init__(Shard(sequence_dim), Shard(sequence_dim), use_local_output)

    def apply(self, module: Module, path: str, among: Dividers) -> None:
        if among.shards is not None:
            raise ArgumentError(_NAME, "column-wise and row-wise layers, with shards", "a SequenceParallel")
        kinds = {
            LayerNorm: layers.SequenceLayerNorm, RMSNorm: layers.SequenceRMSNorm, Dropout: layers.SequenceDropout,
        }  # fmt: skip
        if type(module) not in kinds:
            raise _of_another_class(self, "a LayerNorm, RMSNorm or Dropout", module, path)
        self._become(module, kinds[type(module)], among)


def parallelize_module(
    module: Module,
    device_mesh: DeviceMesh | ProcessGroup | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
    shards: int | None = None,
) -> Module:
    """Divide layers of `module` over ranks: each keeps its part of the weights, and computes its part. -> `module`.

    device_mesh: of one dimension, `mesh["tensor"]`, or a group of processes; None is all. parallelize_plan: a style for
    `module` itself, or styles by the paths of its submodules, with * for any name: "layers.*.up". None is the model's
    own `tensor_parallel_plan`, which gpt, bert and vit have. src_data_rank: the rank of the group whose parameters and
    buffers all get first; None leaves each rank its own. Make the optimizer afterwards, and wrap the model in
    DistributedDataParallel over the other dimension of the mesh.
    shards: the parts that each layer is computed in, a power of 2 that the ranks divide, whatever their number; so with
    DeterministicDataParallel it has the bits of any other number of ranks with as many shards. On one process, which
    needs no init_process_group, parameters stay whole. By default each rank computes its part at once.
    Raises ArgumentError for a path that names no module or a layer that the style does not divide, ShapeError for
    features or heads that the ranks or shards do not divide, StateError for parameters that are divided already.
    """
    if not isinstance(module, Module):
        raise DTypeError(_NAME, "a Module", f"a {type(module).__name__}")
    alone = shards is not None and device_mesh is None and groups.WORLD is None
    group, mesh = (None, None) if alone else _group(device_mesh)
    return divide(module, group, mesh, parallelize_plan, src_data_rank, shards)


def divide(
    module: Module, group: ProcessGroup | None, mesh: DeviceMesh | None, parallelize_plan: Any = None,
    src_data_rank: int | None = 0, shards: int | None = None,
) -> Module:  # fmt: skip
    """`parallelize_module` over a group, or on this process alone for None, in shards."""
    among = Dividers(group, mesh, _division(group, shards))
    plan = module_plan(module) if parallelize_plan is None else parallelize_plan
    heads: int = getattr(module, "tensor_parallel_heads", 0) if parallelize_plan is None else 0
    if heads % among.parts:
        raise ShapeError(_NAME, f"heads that {among.said} divide", str(heads))
    if isinstance(plan, ParallelStyle):
        plan = {"": plan}
    if not isinstance(plan, Mapping) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
        raise DTypeError(_NAME, "a plan: a ParallelStyle, or a dict of them by path", f"a {type(plan).__name__}")
    found = {pattern: _matching(module, pattern) for pattern in plan}
    if src_data_rank is not None and group is not None:
        tensors = [*module.parameters(), *module.buffers()]
        broadcast_tensors(group, [t for t in tensors if not isinstance(t, ShardedParameter)], src_data_rank)
    for pattern, style in plan.items():
        for path, part in found[pattern]:
            style.apply(part, path, among)
    return module


class Dividers(NamedTuple):
    """Who divides layers: the ranks of a group along a dimension of `mesh`, in shards or each its part at once."""

    group: Any  # a ProcessGroup, or None with shards
    mesh: DeviceMesh | None
    shards: Division | None

    @property
    def size(self) -> int:
        """The number of ranks."""
        return 1 if self.group is None else int(self.group.size())

    @property
    def parts(self) -> int:
        """In how many parts a layer is computed."""
        return self.size if self.shards is None else self.shards.shards

    @property
    def said(self) -> str:
        """The parts, for messages."""
        return f"{self.parts} {'ranks' if self.shards is None else 'shards'}"


def _division(group: ProcessGroup | None, shards: Any) -> Division | None:
    if shards is None:
        return None
    size = 1 if group is None else group.size()
    if type(shards) is not int or shards < 1 or shards & (shards - 1) or shards % size:
        raise ArgumentError(_NAME, f"shards as a power of 2 that the number of ranks, {size}, divides", repr(shards))
    return Division(group, shards)


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
    module: Module, path: str, among: Dividers, dims: Mapping[str, int], blocks: int = 1, may_differ: bool = False
) -> None:
    # Keep this rank's part of the parameters along the axes `dims`; may_differ: in size.
    if "_division" in module.__dict__:
        raise StateError(_NAME, "layers that are not divided", f"{path!r}, which is divided already")
    cuts = module.__dict__["_cuts"] = {} if among.shards is not None else None
    for name, dim in dims.items():
        parameter = getattr(module, name)
        if parameter is None:
            continue
        title = f"{path}.{name}" if path else name
        length = parameter.full_shape[dim] if isinstance(parameter, ShardedParameter) else parameter.shape[dim]
        if cuts is not None:
            cuts[name] = _cut_of(parameter, dim, blocks, among, length, title)
        if isinstance(parameter, ShardedParameter):
            if _is_alike(parameter._sharding, among.group, dim, blocks):  # tied to one that was divided so
                continue
            raise _divided_already(title)
        if length % (blocks * among.parts) and not may_differ:
            needs = f"an axis that {among.said} divide" + (f", in {blocks} blocks" if blocks > 1 else "")
            raise ShapeError(_NAME, needs, f"{length} in {title!r}")
        parameter._dotted_name = parameter._dotted_name or title
        if cuts is None or among.size > 1:
            pieces = among.parts // among.size
            share_out(parameter, Sharding(among.group, parameter.array.shape, among.mesh, dim, blocks, pieces=pieces))
    if among.shards is None or among.size > 1:
        keep_parts_in_state(module)


def _cut_of(parameter: Any, dim: int, blocks: int, among: Dividers, length: int, title: str) -> Cut:
    # How this rank's part is cut into shards; the parameter notes how it is as a whole.
    assert among.shards is not None
    how, mine = (dim, blocks, among.parts), among.shards.mine
    if parameter._shards not in (None, how):
        raise _divided_already(title)
    bounds = among.shards.bounds(length // blocks)
    if bounds[-2] == bounds[-1]:
        raise ShapeError(_NAME, f"an axis of which each of {among.said} has some", f"{length} in {title!r}")
    parameter._shards = how
    local = [bound - bounds[mine.start] for bound in bounds[mine.start : mine.stop + 1]]
    return Cut(dim, blocks, tuple(local), mine.start)


def _divided_already(title: str) -> StateError:
    got = f"{title!r}, which is divided already"
    return StateError(_NAME, "parameters that no rank has parts of", got, "divide a tied weight by one axis")


def _is_alike(sharding: Any, group: Any, dim: int, blocks: int) -> bool:
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
