"""ModelStage: the layers of a model that this rank of a pipeline has, cut by the model's own list of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from ... import backends, ops
from ...amp.grad_scaler import GradScaler
from ...backends import Array
from ...base.dtypes import float32, float64
from ...base.errors import ArgumentError
from ...core import random
from ...core.fp_errors import ignore_fp_errors
from ...core.parameter import Parameter
from ...core.tensor import Tensor
from ...nn.module import Module
from ..buckets import buckets
from ..data_parallel import FIRST_BUCKET, MEGABYTE
from ..deterministic import mine_of
from ..fsdp.module import keep_parts_in_state
from ..fsdp.sharded_tensor import ShardedParameter, share_out
from ..process_group import ProcessGroup
from ..reduction import ReduceOp, in_tree
from .schedules import Schedule1F1B
from .stage import PipelineStage
from .stages import OnStage

_NAME = "ModelStage"


class ModelStage(Module):
    """What this rank of `group` computes of `model`, whose `pipeline_layers` is the path of its list of layers.

    Each rank has equally many of them, to one, in their order. The first has all that stands before the layers by the
    names of parameters, the last what stands behind. Parameters of other stages stay in the model without rows, as
    those that `fully_shard` shares out: so states, norms, averages and `found_inf` of a GradScaler are the whole
    model's. A weight that the first and the last stage both use is the first one's: the last gets its values before a
    step, and returns their gradient. Make the optimizer afterwards. replicas: the group of the ranks that have the same
    stage and other data; gradients are averaged over them when all have been added up, in messages of bucket_bytes.
    tree_of: with so many micro-batches of an update, on all replicas together, give the bits of
    DeterministicDataParallel; a power of 2.
    Raises ArgumentError for a model that names no layers, or has fewer than ranks.
    """

    def __init__(
        self,
        model: Module,
        group: ProcessGroup,
        replicas: ProcessGroup | None = None,
        bucket_bytes: int = 25 * MEGABYTE,
        tree_of: int | None = None,
    ):
        super().__init__()
        self.replicas, self.bucket_bytes, self.tree_of = replicas, bucket_bytes, tree_of
        path, self.stages = getattr(model, "pipeline_layers", None), group.size()
        layers = [] if path is None else list(model.get_submodule(path).named_children())
        if len(layers) < self.stages:
            got = f"a {type(model).__name__} with {len(layers)}"
            raise ArgumentError(_NAME, f"a model that names {self.stages} layers or more", got)
        stage_of_layer = {
            f"{path}.{name}.": next(s for s in range(self.stages) if place < len(layers) * (s + 1) // self.stages)
            for place, (name, _) in enumerate(layers)
        }
        rank = group.rank()
        self._mine = [layer for name, layer in layers if stage_of_layer[f"{path}.{name}."] == rank]
        self.model: Any = model
        named = list(model.named_parameters(remove_duplicate=False))
        stages, behind = {}, False
        for name, _ in named:
            found = next((stage for start, stage in stage_of_layer.items() if name.startswith(start)), None)
            behind = behind or found is not None
            stages[name] = found if found is not None else (self.stages - 1) * behind
        owners: dict[int, int] = {}
        self._tied: list[_Tied] = []
        for name, parameter in named:
            if owners.setdefault(id(parameter), stages[name]) != stages[name]:
                where, _, attribute = name.rpartition(".")
                used = Parameter(parameter.array, parameter.requires_grad) if rank == stages[name] else parameter
                self._tied.append(_Tied(model.get_submodule(where), attribute, stages[name], parameter, used))
        for name, parameter in model.named_parameters():
            parameter._dotted_name = parameter._dotted_name or name
            share_out(parameter, OnStage(group, parameter.array.shape, owners[id(parameter)]))
            parameter._norm_by_rows = tree_of is not None
        for module in model.modules():
            keep_parts_in_state(module)
        self._stage = PipelineStage(self, rank, self.stages, group=group)
        self._schedules: dict[int, Schedule1F1B] = {}
        self._loss_of: Callable[..., Tensor] | None = None
        self._share: Any = 1.0  # of a batch in the mean loss

    def forward(self, *given: Tensor) -> Any:
        """The activations of this stage, of those of the one before; of the last stage the model's output."""
        if self._stage.is_first:
            given = (self.model._before_layers(*given),)
        for layer in self._mine:
            output = layer(*given)
            given = output if isinstance(output, tuple) else (output,)
        return self.model._after_layers(*given) if self._stage.is_last else given

    def forward_backward(
        self,
        loss_of: Callable[..., Tensor],
        batches: Sequence[Any],
        microbatches: int,
        scaler: GradScaler,
        weights: Sequence[Any] | None = None,
    ) -> Tensor:
        """Write the gradients of the mean loss over `batches`, the same on all stages. -> that loss [], on all ranks.

        loss_of(output, *targets): the mean loss [] of a micro-batch. batches: each inputs and targets. microbatches: in
        how many equal parts a batch is cut; one that it does not divide, in their greatest common divisor. weights: of
        the losses of the batches, numbers or tensors [], by default 1. With `replicas` gradients and loss are the means
        over them. With `tree_of` the batches are this rank's micro-batches of the update, `mine`.
        """
        self._loss_of = loss_of
        if self.tree_of is not None:
            return self._in_tree(batches, scaler)
        losses = list[Tensor]()
        with self._with_tied_weights():
            for (inputs, *targets), weight in zip(batches, weights or [1.0] * len(batches), strict=True):
                schedule = self._schedule(gcd(len(inputs), microbatches), scaler)
                found = list[Tensor]()
                self._share = weight / len(batches)
                schedule.step(inputs, target=tuple(targets), losses=found, return_outputs=False)
                losses += [loss / len(found) for loss in found]
        tag = schedule._tag()
        self._return_tied_gradients(tag)
        self._write_empty(tag)
        self._average_over_replicas()
        return self._on_all(losses)

    def _write_empty(self, tag: Any) -> None:
        # Gradients of other stages' parameters, so that all ranks call the same collectives.
        for parameter in self.model.parameters():
            if parameter.requires_grad and not parameter.array.size:
                zeros = backends.backend_of(parameter.array).zeros(parameter.array.shape, parameter._grad_dtype())
                parameter.accumulate(zeros, tag)

    # an update whose bits do not depend on the ranks

    @property
    def mine(self) -> range:
        """With `tree_of`: the numbers of this rank's micro-batches of an update."""
        assert self.tree_of is not None
        rank, ranks = (0, 1) if self.replicas is None else (self.replicas.rank(), self.replicas.size())
        return mine_of(self.tree_of, rank, ranks, False)

    def draws(self) -> list[AbstractContextManager[None]]:
        """With `tree_of`: the contexts in which they draw their random numbers in the next update."""
        assert self.tree_of is not None
        streams = random.split_into(self.tree_of)
        return [random.drawing_from(streams[number]) for number in self.mine]

    def _in_tree(self, batches: Sequence[Any], scaler: GradScaler) -> Tensor:
        schedule, losses = self._schedule(len(self.mine), scaler), list[Tensor]()
        inputs, *targets = (ops.cat(parts) for parts in zip(*batches, strict=True))
        with self._with_tied_weights():
            schedule.step(inputs, target=tuple(targets), losses=losses, return_outputs=False)
        self._write_empty(schedule._tag())
        return self._mean_in_tree(losses)

    def _mean_in_tree(self, losses: list[Tensor]) -> Tensor:
        # Of the last stage's losses, on all; in float64, as DeterministicDataParallel adds them.
        assert self.tree_of is not None
        like = next(self.model.parameters()).array
        with backends.device_guard(like):
            backend, share = backends.backend_of(like), 1 / self.tree_of
            total = backend.zeros((1,), float64)
            if losses:
                shares = [loss.array.reshape(1) * loss.array.dtype.type(share) for loss in losses]
                total = in_tree([backend.cast(each, float64) for each in shares], np.add)
        if self.replicas is not None and self.replicas.size() > 1:
            self.replicas.all_reduce_array(total, tree=True)
        self._stage.group.all_reduce_array(total)
        return Tensor(backend.cast(total.reshape(()), float32))

    @ignore_fp_errors()
    def _exchange_tied(self, number: int, gradients: dict[int, Array | None]) -> None:
        # One process adds both gradients of a tied weight within a micro-batch.
        messages, rank = self._stage.messages, self._stage.stage_index
        for tied in self._tied:
            what = f"the gradient of the tied {tied.name} in micro-batch {number}"
            if rank == tied.user and tied.used.requires_grad:
                given = gradients.pop(id(tied.used))
                if given is None:
                    given = backends.backend_of(tied.used.array).zeros(tied.used.shape, tied.used._grad_dtype())
                messages.send(what, tied.owner, [given], {"what": what})
            elif rank == tied.owner and tied.parameter.requires_grad:
                mine, theirs = gradients[id(tied.parameter)], self._received(what, tied.user)
                gradients[id(tied.parameter)] = theirs if mine is None else np.add(theirs, mine)

    def _average_over_replicas(self) -> None:
        if self.replicas is not None and self.replicas.size() > 1:
            trained = [each for each in self.model.parameters() if each.requires_grad and each.array.size]
            made = buckets(trained, FIRST_BUCKET, self.bucket_bytes)
            for bucket in made:
                bucket.begin()
                bucket.launch(self.replicas, None)
            for bucket in made:
                bucket.finish()

    def _schedule(self, count: int, scaler: GradScaler) -> Schedule1F1B:
        if count not in self._schedules:
            options: dict[str, Any] = {} if self.tree_of is None else {"deterministic": True, "replicas": self.replicas}
            made = self._schedules[count] = Schedule1F1B(self._stage, count, self._loss, scaler=scaler, **options)
            if made._sums is not None:
                made._sums.used = [tied.used for tied in self._tied if self._stage.stage_index == tied.user]
                made._sums.exchange = self._exchange_tied
        return self._schedules[count]

    def _loss(self, output: Any, targets: Any) -> Tensor:
        assert self._loss_of is not None
        loss = self._loss_of(output, *targets)
        return loss if type(self._share) is float and self._share == 1 else loss * self._share

    def _on_all(self, losses: list[Tensor]) -> Tensor:
        # The sum of the last stage's losses, on all.
        like = next(self.model.parameters()).array
        with backends.device_guard(like):
            total = backends.backend_of(like).zeros((), float32)
            for loss in losses:
                total += loss.array.reshape(())
        self._stage.group.all_reduce_array(total)
        if self.replicas is not None and self.replicas.size() > 1:
            self.replicas.all_reduce_array(total, ReduceOp.AVG)
        return Tensor(total)

    # weights that two stages use

    @contextmanager
    def _with_tied_weights(self) -> Iterator[None]:
        """A context in which the last stage has those of the first as well."""
        messages, rank = self._stage.messages, self._stage.stage_index
        for tied in self._tied:
            what = f"the tied {tied.name}"
            if rank == tied.owner:
                messages.send(what, tied.user, [tied.parameter.array], {"what": what})
                messages.finish()
            elif rank == tied.user:
                tied.used.array[...] = self._received(what, tied.owner)
                tied.used.changed()
                tied.module._parameters[tied.name] = tied.used
        try:
            yield
        finally:
            for tied in self._tied:
                tied.module._parameters[tied.name] = tied.parameter

    def _return_tied_gradients(self, tag: Any) -> None:
        messages, rank = self._stage.messages, self._stage.stage_index
        for tied in self._tied:
            what = f"the gradient of the tied {tied.name}"
            if rank == tied.user and tied.used._grad is not None:
                messages.send(what, tied.owner, [tied.used._grad.array], {"what": what})
                messages.finish()
                tied.used.drop_grad()
            elif rank == tied.owner and tied.parameter.requires_grad:
                tied.parameter.accumulate(self._received(what, tied.user), tag)

    def _received(self, what: str, source: int) -> Any:
        messages = self._stage.messages
        (tensor,) = messages.receive(what, source, messages.receive_header(what, source)["tensors"])
        return tensor.array


class _Tied(NamedTuple):
    """A parameter of the stage `owner` that a module of the stage `user` has by `name`; `used` has its values there."""

    module: Module
    name: str
    user: int
    parameter: Any
    used: Parameter

    @property
    def owner(self) -> int:
        found: int = self.parameter._sharding.stage
        return found


@contextmanager
def whole_model(model: Module) -> Iterator[None]:
    """A context in which every rank has all parameters of a model whose stages ranks have, to compute it without them.

    All ranks enter it; the parameters must not change within. Another model is left as it is.
    """
    found = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if isinstance(parameter, ShardedParameter) and isinstance(parameter._sharding, OnStage)
    ]
    made: dict[int, Parameter] = {}
    for module, name, parameter in found:
        if id(parameter) not in made:
            made[id(parameter)] = full = Parameter(parameter.full_tensor(), parameter.requires_grad)
            full._dotted_name = parameter._dotted_name
        module._parameters[name] = made[id(parameter)]
    try:
        yield
    finally:
        for module, name, parameter in found:
            module._parameters[name] = parameter
