"""Schedules: in which order a stage computes the forwards and backwards of a step's micro-batches; PyTorch's names.

GPipe computes all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965). One forward, one backward (1F1B)
begins with a backward as soon as it can, so that a stage holds the activations of as many micro-batches as there are
stages after it, and one (Narayanan et al. 2019, PipeDream). Both add up the gradients of the micro-batches in their
order, and so give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ... import ops
from ...amp.grad_scaler import GradScaler
from ...base.dtypes import FLOATS
from ...base.errors import ArgumentError, DTypeError, ShapeError, StateError, switch
from ...core import random
from ...core.autograd.grad_mode import no_grad
from ...core.nested import tensors_in, with_tensors
from ...core.tensor import Tensor
from ..collectives import gathered_objects
from ..process_group import ProcessGroup
from ..transport import Call, DistError, call_site
from .stage import PipelineStage
from .tree_sums import TreeSums

Action = tuple[str, int]  # "forward" or "backward", and the number of a micro-batch


class Schedule:
    """The steps of a pipeline. All ranks make one of the same kind, for their stage, and call `step` together.

        schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=loss_fn, scaler=scaler)
        schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses) if rank == last else schedule.step()

    n_microbatches: equal parts of a step's batch along axis 0. loss_fn(output, target): the mean loss [] of a
    micro-batch; given on all ranks, called on the last, and left out for forwards alone. scale_grads: whether gradients
    are those of the mean over the micro-batches, else of the sum. scaler: the GradScaler that this rank steps with. It
    scales the loss. deterministic: give the bits of DeterministicDataParallel with as many microbatches, a power of 2,
    on any number of stages; replicas: the group of the ranks that have the same stage then, and other parts of the
    batch, its first rank the first. The specs of PyTorch, by which tensors are cut along other axes, are refused.
    """

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        scale_grads: bool = True,
        *,
        scaler: GradScaler | None = None,
        deterministic: bool = False,
        replicas: ProcessGroup | None = None,
    ):
        self._name = type(self).__name__
        if not isinstance(stage, PipelineStage):
            raise DTypeError(self._name, "a PipelineStage", f"a {type(stage).__name__}")
        if type(n_microbatches) is not int or n_microbatches < 1:
            raise ArgumentError(self._name, "n_microbatches from 1", repr(n_microbatches))
        if any(spec is not None for spec in (args_chunk_spec, kwargs_chunk_spec, output_merge_spec)):
            raise ArgumentError(self._name, "no specs", "one", "tensors are cut and joined along axis 0")
        self.stage, self.n_microbatches, self.loss_fn, self.scaler = stage, n_microbatches, loss_fn, scaler
        self.scale_grads = switch(self._name, "scale_grads", scale_grads)
        self._is_agreed = self._has_failed = False
        self._sums: TreeSums | None = None
        if switch(self._name, "deterministic", deterministic):
            self._sums = TreeSums(self._name, stage.submod, n_microbatches, replicas)
        elif replicas is not None:
            cure = "DistributedDataParallel(part, process_group=group) is one of a stage"
            raise ArgumentError(self._name, "deterministic=True with replicas", "False", cure)

    def actions(self) -> Iterator[Action]:
        """What this stage computes in a step, in order."""
        raise NotImplementedError

    def step(
        self, *args: Any, target: Any = None, losses: list[Tensor] | None = None, return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Add the gradients of a batch to those of this stage's parameters; every stage calls it.

        args: of the first stage, others need not give them. kwargs: of this stage. Their tensors are cut into
        micro-batches. target: what loss_fn gets, on the last stage. losses: becomes the list of the micro-batches'
        losses there, unscaled. -> on the last stage the output of the batch off the tape, unless return_outputs=False.
        Raises ShapeError for a batch that n_microbatches does not divide, DistError where a stage has another schedule
        or ends; after an error a new schedule is needed.
        """
        return self._call(args, kwargs, target, losses, return_outputs, self.loss_fn is not None)

    def eval(
        self, *args: Any, target: Any = None, losses: list[Tensor] | None = None, return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """`step` without gradients: the output of a batch, and the losses where a target is given."""
        with no_grad():
            return self._call(args, kwargs, target, losses, return_outputs, False)

    def _call(self, *given: Any) -> Any:
        return self._run(*given) if self._sums is None else self._sums.alone(self._run, *given)

    def _run(self, args: Any, kwargs: Any, target: Any, losses: Any, returns: bool, trains: bool) -> Any:
        stage, count = self.stage, self.n_microbatches
        if self._has_failed:
            raise StateError(f"{self._name}.step", "a schedule whose steps were complete", "one whose step has failed")
        self._has_failed = True
        self._agree()
        given = self._parts(args if stage.is_first else ()), self._parts(kwargs)
        targets = self._parts(target) if stage.is_last else [None] * count
        if stage.is_last and trains and target is None:
            raise StateError(f"{self._name}.step", "target on the last stage", "none")
        sums, share = self._sums if trains else None, 1 / (count if self._sums is None else self._sums.total)
        streams = random.split_into(count) if self._sums is None else self._sums.streams()
        outputs, found, scaled = [], list[Tensor](), dict[int, Tensor]()
        tag = self._tag() if trains else None
        if sums is not None:
            sums.begin()
        for kind, number in self.actions():
            if kind == "backward":
                if trains:
                    with stage.reducing(number == count - 1):
                        stage.backward_one(number, scaled.pop(number, None), tag, sums)
                continue
            with stage.reducing(number == 0):
                output = stage.forward_one(number, given[0][number], given[1][number], streams[number].state(), trains)
            if not stage.is_last:
                continue
            if returns:
                outputs.append(with_tensors(output, (tensor.detach() for tensor in tensors_in(output))))
            if self.loss_fn is not None and target is not None:
                loss = self._loss(output, targets[number])
                found.append(loss.detach())
                if trains:
                    loss = loss * share if self.scale_grads else loss
                    scaled[number] = loss if self.scaler is None else self.scaler.scale(loss)
        if sums is not None:
            sums.finish(tag)
        stage.messages.finish()
        self._has_failed = False
        if losses is not None:
            losses[:] = found
        return _joined(outputs) if outputs else None

    def _loss(self, output: Any, target: Any) -> Tensor:
        assert self.loss_fn is not None
        loss = self.loss_fn(output, target)
        if not isinstance(loss, Tensor) or loss.array.size != 1 or loss.array.dtype not in FLOATS:
            got = f"{loss.dtype.name} {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ShapeError(f"{self._name}.step", "a loss of one floating-point number, a Tensor []", got)
        return loss.reshape(())

    def _tag(self) -> Any:
        # Of gradients that arrive: the scale that the last stage, whose scaler has the same state, has multiplied by.
        if self.scaler is None or not self.scaler.is_enabled():
            return None
        like = next(p for p in self.stage.submod.parameters() if p.requires_grad)
        node = self.scaler.scale(like.new_zeros(()).float().requires_grad_())._tape_node
        assert node is not None
        return node.tag

    def _parts(self, values: Any) -> list[Any]:
        # `values` with the tensors of each micro-batch.
        tensors, count = list(tensors_in(values)), self.n_microbatches
        for tensor in tensors:
            if not tensor.ndim or tensor.shape[0] % count:
                needs = f"tensors whose first axis {count} micro-batches divide"
                raise ShapeError(f"{self._name}.step", needs, str(list(tensor.shape)))
        rows = [[tensor.shape[0] // count * place for tensor in tensors] for place in range(count + 1)]
        return [
            with_tensors(values, (t[a:b] for t, a, b in zip(tensors, rows[i], rows[i + 1], strict=True)))
            for i in range(count)
        ]

    def _agree(self) -> None:
        # Raise DistError, on all stages, where they would not compute the same step.
        if self._is_agreed:
            return
        scaler = None if self.scaler is None or not self.scaler.is_enabled() else self.scaler.get_scale()
        mine = {
            "schedule": self._name, "n_microbatches": self.n_microbatches, "loss_fn": self.loss_fn is not None,
            "scale_grads": self.scale_grads, "loss scale": scaler,
            "micro-batches of a deterministic step": self._sums and self._sums.total,
        }  # fmt: skip
        first, *others = gathered_objects(self.stage.group, mine, Call("the first step of a pipeline", call_site()))
        for rank, theirs in enumerate(others, 1):
            for name, value in first.items():
                if theirs[name] != value:
                    got = f"{name} {value} on rank 0, {theirs[name]} on rank {rank}"
                    raise DistError(self._name, "the same schedule on all stages", got)
        self._is_agreed = True


class ScheduleGPipe(Schedule):
    """All forwards, then all backwards; see Schedule."""

    def actions(self) -> Iterator[Action]:
        for kind in ("forward", "backward"):
            yield from ((kind, number) for number in range(self.n_microbatches))


class Schedule1F1B(Schedule):
    """A forward and a backward in turn, after as many forwards as there are stages behind; see Schedule."""

    def actions(self) -> Iterator[Action]:
        ahead = min(self.n_microbatches, self.stage.num_stages - self.stage.stage_index - 1)
        yield from (("forward", number) for number in range(ahead))
        for number in range(self.n_microbatches):
            if number + ahead < self.n_microbatches:
                yield "forward", number + ahead
            yield "backward", number


def _joined(outputs: list[Any]) -> Any:
    # The outputs of the micro-batches as one; numbers become a tensor of them.
    parts = zip(*(list(tensors_in(output)) for output in outputs), strict=True)
    return with_tensors(outputs[0], (ops.cat(part) if part[0].ndim else ops.stack(part) for part in parts))
