"""PipelineStage: the part of a model that this rank computes; PyTorch's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...autograd import Function
from ...base.errors import ArgumentError, DTypeError, StateError
from ...core import random
from ...core.autograd.tape import backward
from ...core.tensor import Tensor
from ...nn.module import Module
from ..data_parallel import DistributedDataParallel
from ..fsdp import FSDPModule
from ..process_group import ProcessGroup
from ..world import group_or_world
from .messages import Messages
from .stages import Stages
from .tree_sums import TreeSums

_NAME = "PipelineStage"


class PipelineStage:
    """Part `stage_index` of `num_stages` of a model, which the rank of this number in `group` computes.

    submodule: takes the tensors that the part before returns, one or a tuple, and returns one or a tuple. Names of its
    parameters are best those of the whole model, as `pipeline` keeps them: then the states of the stages are together
    the model's. device: where activations that arrive are put, the device of its parameters by default; the module is
    not moved. group: one rank per stage, in their order; all ranks by default. It may be a DistributedDataParallel over
    other ranks, or be shared out by `fully_shard`: then gradients are reduced in the last backward of a step.
    input_args, output_args: PyTorch's, unused, since each message says its dtypes and shapes. From now on clipping by
    norm and a GradScaler's `found_inf` are those of all stages.
    Raises ArgumentError where the group has other ranks than stages, StateError for a part without parameters that
    require grad.
    """

    def __init__(
        self,
        submodule: Module,
        stage_index: int,
        num_stages: int,
        device: Any = None,
        input_args: Any = None,
        output_args: Any = None,
        group: ProcessGroup | None = None,
        dw_builder: Any = None,
    ):
        if not isinstance(submodule, Module):
            raise DTypeError(_NAME, "a Module", f"a {type(submodule).__name__}")
        if dw_builder is not None:
            raise ArgumentError(_NAME, "dw_builder=None", "a function", "a backward computes all of its gradients")
        found = group_or_world(_NAME, group)
        if found.size() != num_stages or found.rank() != stage_index:
            needs = f"a stage for each of the {found.size()} ranks of the group, stage {found.rank()} on this one"
            raise ArgumentError(
                _NAME, needs, f"stage {stage_index} of {num_stages}", 'group=mesh.get_group("pipeline")'
            )
        trained = [parameter for parameter in submodule.parameters() if parameter.requires_grad]
        if not trained:
            raise StateError(_NAME, "a part with parameters that require grad", "one without")
        self.submod, self.stage_index, self.num_stages, self.group = submodule, stage_index, num_stages, found
        self.device = trained[0].device if device is None else device
        self.messages = Messages(found, self.device)
        stages = Stages(found)
        for parameter in submodule.parameters():
            if parameter._sharding is not None and found in parameter._sharding.groups:
                continue  # is of all stages already
            parameter._stages = stages
            if (segment := parameter._arena_segment) is not None:
                segment.arena.stages = stages
        self._held: dict[int, tuple[tuple[Tensor, ...], list[Tensor]]] = {}  # between forward and backward

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.num_stages - 1

    def forward_one(self, number: int, args: tuple[Any, ...], kwargs: Any, stream: Any, trains: bool) -> Any:
        """The output of micro-batch `number`, which goes on to the next stage. args: of the first stage.

        stream: the state of the stream of random numbers that the first stage begins with; another goes on where the
        stage before has stopped, so that masks are those of one process.
        """
        what, received = _activations(number), list[Tensor]()
        if not self.is_first:
            header = self.messages.receive_header(what, self.stage_index - 1)
            received = self.messages.receive(what, self.stage_index - 1, header["tensors"])
            wanted, stream = header["wanted"], header["stream"]
            received = [t.requires_grad_() if w and trains else t for t, w in zip(received, wanted, strict=True)]
        if any(tensor.requires_grad for tensor in received):
            args = _Arrived.apply(*received)
        elif not self.is_first:
            args = tuple(received)
        numbers = random.Stream()
        numbers.restore(tuple(stream))
        with random.drawing_from(numbers):
            output = self.submod(*args, **kwargs)
        if not self.is_last:
            found = _several(output)
            header = {"what": what, "wanted": [tensor.requires_grad for tensor in found], "stream": numbers.state()}
            self.messages.send(what, self.stage_index + 1, [tensor.array for tensor in found], header)
            if trains:
                self._held[number] = found, received
        elif trains:
            self._held[number] = (), received
        return output

    def backward_one(self, number: int, loss: Tensor | None, tag: Any, sums: TreeSums | None) -> None:
        """The gradients of micro-batch `number`: of `loss` on the last stage, else of what the next stage sends.

        tag: of the gradients that arrive, which are scaled as the loss was. sums: what takes the gradients of
        parameters, else they are added to those that are there.
        """
        found, received = self._held.pop(number)
        leaves = [tensor for tensor in received if tensor.requires_grad]
        what = f"gradients of micro-batch {number}"
        outputs = [tensor for tensor in found if tensor.requires_grad] if loss is None else [loss]
        seeds: list[Tensor | None] = [None]
        if loss is None:
            kinds = [(tensor.array.dtype.name, tensor.shape) for tensor in outputs]
            seeds = [*self.messages.receive(what, self.stage_index + 1, kinds)]
            for seed in seeds:
                if seed is not None:
                    seed._scale_tag = tag
        gradients = list[Tensor | None]()
        own: Any = None
        if sums is not None:
            own, gradients = sums.computed(outputs, seeds, leaves)
        elif outputs:
            backward(outputs, seeds)
            gradients = [tensor.grad for tensor in leaves]
        if not self.is_first:
            pairs = zip(leaves, gradients or [None] * len(leaves), strict=True)
            arrays = [(tensor.new_zeros(tensor.shape) if given is None else given).array for tensor, given in pairs]
            self.messages.send(what, self.stage_index - 1, arrays)
        if sums is not None:
            sums.add(number, own)

    @contextmanager
    def reducing(self, last: bool) -> Iterator[None]:
        """A context whose backward leaves gradients on their rank, but for the `last` of a step."""
        self._set_sync(last)
        try:
            yield
        finally:
            self._set_sync(True)

    def _set_sync(self, syncs: bool) -> None:
        for part in self.submod.modules():
            if isinstance(part, DistributedDataParallel):
                part.require_backward_grad_sync = syncs
            elif isinstance(part, FSDPModule):
                part.set_requires_gradient_sync(syncs, recurse=False)


class _Arrived(Function):
    """The identity on tensors that have arrived, so that their gradients are added up where those of results are."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return gradients


def _activations(number: int) -> str:
    return f"activations of micro-batch {number}"


def _several(output: Any) -> tuple[Tensor, ...]:
    found: Sequence[Any] = output if isinstance(output, (tuple, list)) else (output,)
    if other := [each for each in found if not isinstance(each, Tensor)]:
        raise DTypeError(_NAME, "a Tensor or a tuple of them as the output of a stage", f"a {type(other[0]).__name__}")
    return tuple(found)
