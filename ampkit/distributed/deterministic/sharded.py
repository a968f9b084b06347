"""Gradients of a microbatch by a module that `fully_shard` has shared out: this rank's rows, summed over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import Array
from ...base.dtypes import float32
from ...base.errors import StateError
from ...core.tensor import Tensor
from ..fsdp import FSDPModule
from ..process_group import ProcessGroup

_WHERE = "DeterministicDataParallel"


class ShardedGradients:
    """What backward passes through `module` give, of which the ranks of `group` have rows.

    Each pass sums over the ranks, whose microbatches are neighbours in the tree, and each rank keeps its rows.
    Raises StateError for parameters that the group does not share out in the dtype that they have.
    """

    def __init__(self, module: FSDPModule, group: ProcessGroup):
        self._states = list(module._sharded_states(recurse=True))
        self._members = {id(member.sharded): member for state in self._states for member in state.group.members}
        trained = [p for p in module.parameters() if p.requires_grad and id(p) not in self._members]
        needs, got = "parameters that its ranks share out by fully_shard", None
        if trained:
            got = f"{trained[0]._dotted_name or 'one'!r}, which each has all of"
        for state in self._states:
            shared = state.group
            if shared.replicate is not None or shared.shard.ranks != group.ranks:
                got = f"some that ranks {shared.shard.ranks} share out"
            elif any(member.sharding.of is not None and member.sharded._shards is None for member in shared.members):
                got = "rows of layers that ranks divide without shards"
            elif shared.policy.param_dtype is not None or shared.policy.reduce_dtype not in (None, float32):
                got = "a MixedPrecisionPolicy with dtypes"
        if got is not None:
            raise StateError(_WHERE, needs, got)

    def of(self, loss: Tensor, trained: Sequence[Tensor]) -> list[Array]:
        """The rows of the gradients of `loss` [], those of all ranks' losses together; zeros where none has used it."""
        groups = [state.group for state in self._states]
        try:
            for group in groups:
                group.begin_tree()
            loss.backward()
        finally:
            for group in groups:
                group.in_tree = False
        found = []
        for parameter in trained:
            assert parameter._grad is not None
            found.append(parameter._grad.array.copy())
            parameter.drop_grad()
        return found

    def begin(self) -> None:
        """Expect the forward of a microbatch."""
        for state in self._states:
            state.count_calls()

    def used(self, trained: Sequence[Tensor]) -> list[bool]:
        """For each parameter, whether this rank's last pass has used it."""
        return [self._members[id(parameter)].is_used for parameter in trained]
