"""fully_shard: a module whose parameters the ranks share out, and gather while it computes; PyTorch's FSDP2.

Around its forward the modules have the full parameters, and afterwards this rank's rows again. In backward the arrays
that the tape saved of them are gathered anew when the first is read. When the gradients of the module's inputs are
complete, those of its parameters are: they are reduced, while backward goes on. What is left is reduced at the end of
the backward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ... import backends
from ...base.dtypes import DType
from ...base.errors import ArgumentError, DTypeError, ShapeError, StateError, switch
from ...core.autograd import hooks
from ...core.autograd.grad_mode import is_grad_enabled
from ...core.autograd.recompute import is_recomputing
from ...core.nested import tensors_in, with_tensors
from ...core.parameter import Parameter
from ...core.policy import region
from ...core.tensor import Tensor, tick
from ...nn.hooks import BackwardHook
from ...nn.module import Module
from ...nn.uninitialized import Uninitialized
from ..collectives import gathered_objects
from ..data_parallel import broadcast_tensors
from ..device_mesh import DeviceMesh
from ..process_group import ProcessGroup, describe
from ..transport import Call, DistError, call_site
from ..world import group_or_world
from .group import Member, ShardedGroup
from .policy import CPUOffloadPolicy, MixedPrecisionPolicy
from .prefetch import prefetch
from .saved_weights import pack_weights
from .sharded_tensor import ShardedParameter, ShardedTensor, Sharding, cut, sharded, share_out

_NAME = "fully_shard"


class _Forwards(threading.local):
    """How many forwards of sharded modules are under way in a thread."""

    depth = 0


_forwards = _Forwards()


class State:
    """What fully_shard keeps for a module. reshards: after a forward, None for where another module is around it."""

    def __init__(self, group: ShardedGroup, reshards: bool | None):
        self.group, self.reshards = group, reshards
        self.reshards_after_backward, self.stays = True, False  # the second: see `unsharded`
        self._calls = 0  # forwards since the last backward
        self._depths: list[int] = []  # of the forwards under way
        self._low: DType | None = None  # the 16 bits of the policy in force in the last forward
        self._pass: Any = None  # the backward pass at whose end `_end` is to be called
        self._since = 0
        for member in group.members:
            if member.sharded.requires_grad:
                self._watch(member)

    def _watch(self, member: Member) -> None:
        member.full.requires_grad = True
        member.full.register_post_accumulate_grad_hook(self._written)

    # forward

    def before_forward(self, module: Module, args: Any, kwargs: Any) -> Any:
        """Gather, show the full parameters, cast the inputs, and note when their gradients are complete."""
        for member in self.group.members:
            if member.sharded.requires_grad and id(member.full) not in hooks.post_accumulate_hooks:
                self._watch(member)
        if self._pass is not None and not hooks.passes.running:  # it has failed
            self._pass = None
            self.group.forget()
        self._low = self._low_dtype()
        self.group.unshard(self._low, in_turn=True)
        self.group.show_full()
        self._depths.append(_forwards.depth)
        _forwards.depth += 1
        policy = self.group.policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args, kwargs = _cast((args, kwargs), policy.param_dtype)
        self._since = tick()
        self._calls += not is_recomputing()
        return _watched((args, kwargs), self._inputs_complete)

    def _low_dtype(self) -> DType | None:
        entry = region()
        if entry is None or not self.group.members:
            return None
        rule = entry.policies[backends.backend_of(self.group.members[0].sharded.array).name]
        return None if rule is None else rule.low_dtype

    def after_forward(self, module: Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Show this rank's rows, cast the outputs, and let go of the full parameters."""
        if not self._depths:  # of a forward that did not begin
            return None
        is_inside = self._depths.pop() > 0
        _forwards.depth -= 1
        if not is_inside and not hooks.passes.running:
            prefetch.end()
        self.group.show_sharded()
        if self.group.policy.output_dtype is not None:
            output = _cast(output, self.group.policy.output_dtype)
        if is_recomputing():  # backward follows
            self._at_end_of_pass()
        elif not is_grad_enabled():
            if not self.stays:
                self.group.reshard()
        elif is_inside if self.reshards is None else self.reshards:
            pack_weights(self.group, tensors_in(output), self._since, self._unshard)
            self.group.reshard()
        return output

    # backward

    def _unshard(self) -> None:
        self._at_end_of_pass()
        self.group.unshard(self._low, in_turn=True)

    def _at_end_of_pass(self) -> None:
        running = hooks.passes.running
        if running and self._pass is not running[0]:
            self._pass = running[0]
            hooks.passes.at_end.append(self._end)

    def _written(self, full: Tensor) -> None:
        self._at_end_of_pass()

    def _inputs_complete(self, gradients: Any) -> Any:
        self._at_end_of_pass()
        if not self.group.in_tree or self._calls == 1:  # another call adds to the gradients
            self._complete()
        return gradients

    def _complete(self) -> None:
        if self.group.syncs:
            self.group.reduce()
        if self.reshards_after_backward:
            self.group.reshard()

    def _end(self) -> None:
        self._pass, self._calls = None, 0
        prefetch.end()
        self._complete()
        self.group.finish()

    def count_calls(self) -> None:
        """Count the forwards from now on to the next backward."""
        self._calls = 0


def _watched(values: Any, complete: Any) -> Any:
    """The structure `values` with `complete` called in backward on the gradients of its tensors."""
    found = list(tensors_in(values))
    at = [i for i, tensor in enumerate(found) if tensor.requires_grad and not isinstance(tensor, Parameter)]
    if not at or not is_grad_enabled():
        return values
    for i, tensor in zip(at, BackwardHook.apply(complete, *[found[i] for i in at]), strict=True):
        found[i] = tensor
    return with_tensors(values, iter(found))


def _cast(values: Any, dtype: Any) -> Any:
    found = [t.to(dtype) if t.is_floating_point() and t.array.dtype != dtype else t for t in tensors_in(values)]
    return with_tensors(values, iter(found))


class FSDPModule(Module):
    """A module that `fully_shard` has shared out: its class is this one and the one that it had. PyTorch's name."""

    def _sharded_states(self, recurse: bool) -> Iterator[State]:
        for module in self.modules() if recurse else (self,):
            if (state := module.__dict__.get("_fsdp")) is not None:
                yield state

    def unshard(self, async_op: bool = False) -> None:
        """Gather the parameters of this module, which has them until `reshard()`; all ranks call it."""
        state = self.__dict__["_fsdp"]
        state.group.unshard()
        state.group.show_full()

    def reshard(self) -> None:
        """Let go of the full parameters of this module."""
        state = self.__dict__["_fsdp"]
        state.group.reshard()
        state.group.show_sharded()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward reduces gradients: False accumulates whole ones on each rank, until a pass with True."""
        syncs = switch("set_requires_gradient_sync", "requires_gradient_sync", requires_gradient_sync)
        for state in self._sharded_states(recurse):
            state.group.syncs = syncs

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """No effect: each backward pass ends what it has begun."""

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether a forward lets go of the full parameters."""
        for state in self._sharded_states(recurse):
            state.reshards = switch("set_reshard_after_forward", "reshard_after_forward", reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether a backward lets go of the full parameters."""
        for state in self._sharded_states(recurse):
            given = switch("set_reshard_after_backward", "reshard_after_backward", reshard_after_backward)
            state.reshards_after_backward = given

    def set_modules_to_forward_prefetch(self, modules: Iterable[Module]) -> None:
        """No effect: what followed a module in the last forward is gathered while it computes."""

    def set_modules_to_backward_prefetch(self, modules: Iterable[Module]) -> None:
        """No effect: what followed a module in the last backward is gathered while it computes."""


@contextmanager
def unsharded(module: Module) -> Iterator[None]:
    """A context in which all of `module` is gathered, so that ranks may run it without grad as often as each likes.

    All ranks enter it; the parameters must not change within. A module that is not shared out is left as it is.
    """
    found = [state for part in module.modules() if (state := part.__dict__.get("_fsdp")) is not None]
    for state in found:
        state.group.unshard()
        state.stays = True
    try:
        yield
    finally:
        for state in found:
            state.stays = False
            state.group.reshard()


_classes: dict[type, type] = {}


def fully_shard(
    module: Module,
    *,
    mesh: DeviceMesh | ProcessGroup | None = None,
    reshard_after_forward: bool | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: Any = None,
    ignored_params: Iterable[Parameter] | None = None,
    shard_placement_fn: Any = None,
) -> Module:
    """Share the parameters of `module` out over the ranks; those of submodules that are shared out stay as they are.

    Call it for submodules, the blocks of a transformer say, before the modules around them, and make the optimizer
    afterwards. Each parameter keeps this rank's rows of axis 0, and so do its gradient and the optimizer's state. The
    values are those of rank 0. The forward gathers the parameters of a module, in one message; so does the backward,
    and reduces their gradients to means over the ranks. -> `module`, whose class becomes an FSDPModule too.

    Layers that `parallelize_module` has divided go along another dimension of a mesh: each rank keeps rows of its part.

    mesh: of one dimension, the ranks that share out; of two, the second one does, and the first has copies. A group of
    processes stands for a mesh; None is all of them. reshard_after_forward: whether the full parameters are let go of
    between forward and backward (ZeRO stage 3), or kept (stage 2); None: kept of the outermost module alone.
    mp_policy: the dtypes; without param_dtype, float32 parameters that autocast casts are gathered in its 16 bits.
    ignored_params: parameters that stay whole, and are not reduced.
    Raises StateError before init_process_group, and for parameters that another shared out module has; ShapeError for
    parameters without an axis; ArgumentError for a module without parameters; DistError where ranks have others.
    Rajbhandari et al. 2020, arXiv:1910.02054, section 5.3; Zhao et al. 2023, arXiv:2304.11277.
    """
    if not isinstance(module, Module):
        raise DTypeError(_NAME, "a Module", f"a {type(module).__name__}")
    if isinstance(offload_policy, CPUOffloadPolicy):
        raise ArgumentError(_NAME, "OffloadPolicy()", "CPUOffloadPolicy", "state_dtype makes an optimizer smaller")
    if shard_placement_fn is not None:
        raise ArgumentError(_NAME, "shard_placement_fn=None", "a function", "parameters are cut along axis 0")
    if reshard_after_forward is not None:
        reshard_after_forward = switch(_NAME, "reshard_after_forward", reshard_after_forward)
    if "_fsdp" in module.__dict__:
        raise StateError(_NAME, "a module that is not shared out", f"a {type(module).__name__} that is")
    replicate, shard, mesh_of = _groups(mesh)
    found = _parameters_of(module, {id(p) for p in ignored_params or ()})
    groups = [shard, *([] if replicate is None else [replicate])]
    _need_other_ranks(groups, found)
    _need_alike(shard, replicate, found)
    for each in groups:
        broadcast_tensors(each, [parameter for parameter, _ in found.values()])
    members = []
    for parameter, places in found.values():
        sharding = Sharding(shard, parameter.array.shape, mesh_of, of=parameter._sharding)
        members.append(Member(share_out(parameter, sharding), places))
    group = ShardedGroup(members, shard, replicate, mp_policy or MixedPrecisionPolicy())
    state = module.__dict__["_fsdp"] = State(group, reshard_after_forward)
    module.register_forward_pre_hook(state.before_forward, prepend=True, with_kwargs=True)
    module.register_forward_hook(state.after_forward, with_kwargs=True, always_call=True)
    for holder in {id(holder): holder for member in members for holder, _ in member.places}.values():
        keep_parts_in_state(holder)
    kind = type(module)
    if kind not in _classes:
        _classes[kind] = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {"__module__": kind.__module__})
    module.__class__ = _classes[kind]
    return module


def _groups(mesh: Any) -> tuple[ProcessGroup | None, ProcessGroup, DeviceMesh | None]:
    # The ranks with the same rows, those that share out, and the mesh.
    if mesh is None or isinstance(mesh, ProcessGroup):
        return None, group_or_world(_NAME, mesh), None
    if not isinstance(mesh, DeviceMesh) or mesh.ndim > 2:
        got = f"one of {mesh.ndim}" if isinstance(mesh, DeviceMesh) else f"a {type(mesh).__name__}"
        raise ArgumentError(_NAME, "a DeviceMesh of one or two dimensions", got)
    groups = mesh.get_all_groups()
    return (groups[0] if mesh.ndim == 2 else None), groups[-1], mesh


def _parameters_of(module: Module, ignored: set[int]) -> dict[int, tuple[Parameter, list[tuple[Module, str]]]]:
    # The parameters to share out, with the modules that have each, under which names.
    found: dict[int, tuple[Parameter, list[tuple[Module, str]]]] = {}
    others = {id(p): path for path, part in module.named_modules() for p in _shared_by(part)}
    todo = [("", module)]
    seen = set()
    while todo:
        path, part = todo.pop(0)
        if id(part) in seen or (part is not module and "_fsdp" in part.__dict__):
            continue
        seen.add(id(part))
        for name, parameter in part._parameters.items():
            if parameter is None or id(parameter) in ignored:
                continue
            title = f"{path}.{name}" if path else name
            if (where := others.get(id(parameter))) is not None:
                got = f"{title!r}, which {where!r} shares out"
                cure = "shard submodules first, and tied parameters in the module around all that have them"
                raise StateError(_NAME, "parameters of one sharded module", got, cure)
            if isinstance(parameter, Uninitialized) or not parameter.array.ndim:
                got = f"{title!r} without a shape" if isinstance(parameter, Uninitialized) else f"{title!r} []"
                raise ShapeError(_NAME, "parameters with an axis to cut along", got)
            parameter._dotted_name = parameter._dotted_name or title
            found.setdefault(id(parameter), (parameter, []))[1].append((part, name))
        todo += [(f"{path}.{name}" if path else name, m) for name, m in part._modules.items() if m is not None]
    if not found and not others:
        raise ArgumentError(_NAME, "a module with parameters", f"a {type(module).__name__} without")
    return found


def _shared_by(part: Module) -> list[ShardedParameter]:
    state = part.__dict__.get("_fsdp")
    return [] if state is None else [member.sharded for member in state.group.members]


def _need_other_ranks(groups: list[ProcessGroup], found: dict[int, Any]) -> None:
    # Parameters that are divided already are so among ranks of another dimension of the mesh.
    for parameter in (p for p, _ in found.values() if isinstance(p, ShardedParameter)):
        for level in parameter._sharding.levels:
            if any(level.group is each or len({*level.group.ranks} & {*each.ranks}) > 1 for each in groups):
                got = f"{parameter._dotted_name!r}, of which ranks {level.group.ranks} have parts"
                cure = "shard submodules first, and divided layers over the other dimension of the mesh"
                raise StateError(_NAME, "parameters that these ranks have all of", got, cure)


def _need_alike(shard: ProcessGroup, replicate: ProcessGroup | None, found: dict[int, Any]) -> None:
    mine = [(p._dotted_name, describe(p.array), p.requires_grad) for p, _ in found.values()]
    for group in (shard, replicate):
        first, *others = [mine] if group is None else gathered_objects(group, mine, Call("fully_shard()", call_site()))
        for rank, theirs in enumerate(others, 1):
            if theirs != first:
                pairs = (pair for pair in zip(first, theirs, strict=False) if pair[0] != pair[1])
                ours, other = next(pairs, (f"{len(first)} of them", f"{len(theirs)}"))
                raise DistError(_NAME, "the same parameters on all ranks", f"{ours} on rank 0, {other} on rank {rank}")


def keep_parts_in_state(module: Module) -> None:
    """Let `state_dict` show parts of parameters as ShardedTensors, and `load_state_dict` take parts or whole ones."""
    if not module.__dict__.get("_keeps_parts"):
        module.__dict__["_keeps_parts"] = True
        module._register_state_dict_hook(_save_rows)
        module.register_load_state_dict_pre_hook(_load_rows)


def _save_rows(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        if isinstance(parameter, ShardedParameter) and type(value) is Tensor:
            sharded(value, parameter._sharding)


def _load_rows(module: Any, state: Any, prefix: str, *rest: Any) -> None:
    for name, parameter in module._parameters.items():
        if isinstance(parameter, ShardedParameter) and prefix + name in state:
            state[prefix + name] = cut(state[prefix + name], parameter._sharding)


__all__ = ["FSDPModule", "ShardedTensor", "State", "fully_shard", "keep_parts_in_state", "unsharded"]
