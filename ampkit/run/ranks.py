"""Ranks: the processes that train one recipe together.

Every rank computes on its part of each batch, so the order of the data does not depend on how many ranks there are. The
gradients and the loss are averaged, and what ends a run is agreed on, so all ranks take the same steps and stop after
the same one. Rank 0 alone writes.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .. import backends, nn
from ..backends.cpu.threads import usable_cpus
from ..base.errors import AmpkitError, ArgumentError, ConfigError, ShapeError, error_with_text
from ..core import random
from ..core.tensor import Tensor
from ..distributed import DistError, ProcessGroup, ReduceOp, init_process_group
from ..distributed.collectives import gathered_objects
from ..distributed.data_parallel import MEGABYTE, DistributedDataParallel, broadcast_tensors
from ..distributed.deterministic import DeterministicDataParallel
from ..distributed.device_mesh import DeviceMesh, init_device_mesh
from ..distributed.environment import launched
from ..distributed.fsdp import FSDPModule, ShardedTensor
from ..distributed.pipelining.model_stage import ModelStage
from ..distributed.tensor.styles import divide
from ..distributed.transport import Call
from ..distributed.world import go_on_without_lost, group

_T = TypeVar("_T")
_LIBRARY = Path(__file__).parents[1]
_PACKAGE = f"{_LIBRARY.name}."


class Ranks:
    """The ranks of `processes`, or this process alone for None.

    rank: this one's number. size: how many there are. data_rank, data_size: the same of those that share the data out,
    data_group, fewer where groups of them divide the layers of the model or have its stages. in_agreement: whether the
    last error was one of all ranks, which rank 0 alone need print.
    """

    def __init__(self, processes: ProcessGroup | None = None):
        self._group = self.group = processes
        self._replica: DistributedDataParallel | FSDPModule | None = None
        self.rank, self.size = (0, 1) if processes is None else (processes.rank(), processes.size())
        self.data_group, self.data_rank, self.data_size = processes, self.rank, self.size
        self._mesh: DeviceMesh | None = None  # of the ranks that divide layers
        self._stages: ProcessGroup | None = None  # the ranks that have stages of one model
        self.in_agreement = False

    @classmethod
    def present(cls) -> Ranks:
        """The ranks of ampkit.distributed; this process alone before init_process_group."""
        return cls(group.WORLD)

    def agree_on_the_end(self) -> None:
        """Return on all ranks, or raise RankLostError on all, where MPI can go on without a rank that has died."""
        if self._group is not None:
            self._group.transport.agree()

    @classmethod
    def that_are_left(cls) -> tuple[Ranks, list[int]]:
        """The ranks that go on after RankLostError, with numbers from 0; the numbers of those that died."""
        died = go_on_without_lost()
        return cls.present(), died

    @classmethod
    def of_launcher(cls) -> Ranks:
        """All processes that a launcher such as mpiexec has started, connected; this one alone where there is none."""
        if launched().world_size > 1 and group.WORLD is None:
            init_process_group()
        return cls.present()

    @property
    def on_devices(self) -> bool:
        """Whether collectives of GPUs are done by them, so that a recorded step can contain them."""
        return self._group is not None and self._group.gpu_transport is not None

    # what belongs to this rank

    def part(self, rows: int) -> slice:
        """This rank's part of a batch of `rows`; of one with fewer rows than ranks a single row, see `weighted`."""
        mine = self._bounds(rows)
        return mine if mine.stop > mine.start else slice(0, 1)

    def weighted(self, part: tuple[Tensor, ...], rows: int) -> tuple[Tensor, ...]:
        """This rank's part of a batch of `rows`, with the weight of its mean loss as the last tensor [].

        So the mean over the ranks is that of the batch, also where the parts differ in size. One rank needs no weight.
        """
        if self.data_size == 1:
            return part
        mine = self._bounds(rows)
        return *part, Tensor(np.asarray((mine.stop - mine.start) * self.data_size / rows, np.float32))

    def share(self, items: Any) -> Any:
        """This rank's share of an array [n, ...] to evaluate on: consecutive ones, none twice.

        Ranks that divide layers evaluate together, those that have stages each the whole model.
        """
        if self._stages is None:
            return items[self._bounds(len(items))]
        return items[len(items) * self.rank // self.size : len(items) * (self.rank + 1) // self.size]

    def _bounds(self, count: int) -> slice:
        return slice(count * self.data_rank // self.data_size, count * (self.data_rank + 1) // self.data_size)

    def draw_apart(self) -> None:
        """Let the default random stream draw other numbers on each rank, as many on all; on rank 0 those of before.

        Ranks that divide layers draw the same.
        """
        seed, call = random.default.state()
        # Philox mixes its key well: any other seed gives independent draws.
        random.default.restore(((seed + (self.data_rank << 40)) % 2**64, call))

    # what all ranks have in common

    def replicate(self, model: nn.Module, **options: Any) -> nn.Module:
        """`model` with gradients that are averaged over the ranks; options: of DistributedDataParallel.

        One that `fully_shard` has shared out averages them itself.
        """
        if self._group is None:
            return model
        if isinstance(model, FSDPModule):
            self._replica = model
            return model
        self._replica = DistributedDataParallel(model, process_group=self.data_group, **options)
        return self._replica

    def group_by_layers(self, count: int, device: str) -> None:
        """Let groups of `count` consecutive ranks divide the layers of a model, and share the data out among groups.

        Raises ConfigError, on all ranks, for a number that does not divide theirs.
        """
        if (mesh := self._mesh_of_groups("tensor", count, device)) is not None:
            self._mesh = mesh["tensor"]

    def _mesh_of_groups(self, name: str, count: int, device: str) -> DeviceMesh | None:
        if count == 1:
            return None
        if self.size % count:
            self.in_agreement = True
            cure = f"start it with `ampkit launch -n {count}`, or leave the key out" if self.size == 1 else None
            raise ConfigError(f"parallel.{name}", f"a divisor of the number of ranks, {self.size}", str(count), cure)
        mesh = init_device_mesh(device, (self.size // count, count), mesh_dim_names=("data", name))
        self.data_group, self.data_rank = mesh.get_group("data"), mesh.get_local_rank("data")
        self.data_size = mesh.size("data")
        return mesh

    def need_data_size(self, count: int | None) -> None:
        """Raise ConfigError, on all ranks, unless `count` groups of ranks share the data out; after they are made."""
        if count in (None, self.data_size):
            return
        self.in_agreement = True
        each = self.size // self.data_size
        ranks = f"{self.size} rank{'s' if self.size > 1 else ''}" + (f" in groups of {each}" if each > 1 else "")
        cure = f"start it with `ampkit launch -n {count * each}`, or leave the key out"
        raise ConfigError("parallel.data", f"{self.data_size} on {ranks}", str(count), cure)

    def divide_layers(self, model: nn.Module, shards: int | None = None) -> None:
        """Keep this rank's part of the layers of `model`, by its own plan, after `group_by_layers`.

        shards: the parts that layers are computed in whatever the ranks, with parallel.deterministic.
        """
        if self._mesh is None and shards in (None, 1):
            return
        key = "parallel.tensor_shards" if self._mesh is None else "parallel.tensor"
        if not hasattr(model, "tensor_parallel_plan"):
            self.in_agreement = True
            got = f"a {type(model).__name__}"
            raise ConfigError(key, "1, or a model that has a tensor_parallel_plan, as gpt, bert, vit", got)
        try:
            divide(model, None if self._mesh is None else self._mesh.get_group(), self._mesh, shards=shards)
        except ShapeError as error:
            self.in_agreement = True
            needs, _, got = str(error).partition(" needs ")[2].rpartition(", got ")
            raise ConfigError(key, needs, got) from None

    def group_by_stages(self, count: int, device: str) -> None:
        """Let groups of `count` consecutive ranks have the stages of a model, and share the data out among groups.

        Raises ConfigError, on all ranks, for a number that does not divide theirs.
        """
        if (mesh := self._mesh_of_groups("pipeline", count, device)) is not None:
            self._stages = mesh.get_group("pipeline")

    def stage_of(self, model: nn.Module, bucket_mb: float, tree_of: int | None = None) -> ModelStage | None:
        """This rank's stage of `model`, which keeps the stage's parameters alone, after `group_by_stages`.

        tree_of: see ModelStage.
        """
        if self._stages is None:
            return None
        try:
            return ModelStage(model, self._stages, self.data_group, int(bucket_mb * MEGABYTE), tree_of)
        except ArgumentError as error:
            self.in_agreement = True
            needs = f"1, or a model of {self._stages.size()} layers or more that names them, as gpt, bert, vit"
            raise ConfigError("parallel.pipeline", needs, str(error).rpartition(", got ")[2]) from None

    def deterministic(self, model: nn.Module, **options: Any) -> DeterministicDataParallel:
        """What computes the gradients of `model` on all ranks alike; options: of DeterministicDataParallel."""
        return DeterministicDataParallel(model, process_group=self.data_group, **options)

    def no_sync(self) -> AbstractContextManager[Any]:
        """A context whose backward passes leave gradients on their rank; the next one averages their sums."""
        if isinstance(self._replica, FSDPModule):
            return _without_sync(self._replica)
        return nullcontext() if self._replica is None else self._replica.no_sync()

    def mean(self, loss: Tensor) -> Tensor:
        """The mean of `loss` [] over the ranks, with the same bits on all."""
        if self._group is None:
            return loss
        with backends.device_guard(loss.array):  # where CuPy copies to
            total = loss.array.copy()
        self._group.all_reduce_array(total)
        return Tensor(total) / self.size

    def copy_buffers(self, model: nn.Module) -> None:
        """Give the buffers of `model`, running statistics among them, the values of rank 0."""
        if self._group is not None:
            broadcast_tensors(self._group, list(model.buffers()))

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on some rank."""
        return bool(self.most(flag))

    def most(self, value: int) -> int:
        """The largest `value` of the ranks."""
        if self._group is None:
            return value
        largest = np.array([value], np.int32)
        self._group.all_reduce_array(largest, ReduceOp.MAX)
        return int(largest[0])

    def gathered(self, value: _T, what: str = "an agreement of the ranks") -> list[_T]:
        """The picklable `value` of every rank, in order. what: names the exchange in errors."""
        return [value] if self._group is None else gathered_objects(self._group, value, Call(what, ""))

    def of_first(self, value: _T) -> _T:
        """The `value` of rank 0."""
        return self.gathered(value if self.rank == 0 else None)[0]  # type: ignore[return-value]  # rank 0 has one

    # errors that all ranks raise, or none

    def agreed(self, action: Callable[[], _T]) -> _T:
        """What `action` returns on this rank. Where it raises on some rank, all ranks raise the first one's error."""
        result, error = None, None
        try:
            result = action()
        except Exception as raised:
            error = raised
        if (first := self.first_error(error)) is not None:
            raise first
        return result  # type: ignore[return-value]  # `action` has returned

    def first_error(self, error: Exception | None) -> Exception | None:
        """What to raise, where `error` is that of this rank: the error of the first rank that has one, or None."""
        found = self.gathered((_told(error), getattr(error, "__notes__", [])))
        first = next((rank for rank, (told, _) in enumerate(found) if told is not None), None)
        if first is None:
            return None
        self.in_agreement = True
        everywhere = len({str(told) for told, _ in found}) == 1
        if error is not None and (everywhere or first == self.rank):
            return error
        told, notes = found[first]
        theirs = self._of_rank(first, told)
        theirs.__notes__ = notes
        return theirs

    @contextmanager
    def raising_alike(self) -> Iterator[None]:
        """A context that tells the other ranks of an error: `in_agreement` says whether all have the same.

        Otherwise it names the rank; the others raise DistError at their next collective, with this error's text.
        """
        try:
            yield
        except DistError as error:
            if self._group is not None and error is self._group.device_error:
                with suppress(DistError):  # the rank that has told of its error waits for the others
                    self.gathered(None, str(error))
            raise
        except (AmpkitError, OSError, MemoryError) as error:
            if self._group is not None and self.size > 1 and not self.in_agreement:
                text = f"{type(error).__name__}: {error}"
                try:
                    self._group.tell(text)
                    self.gathered(None, text)
                except DistError:
                    raise self._of_rank(self.rank, error) from error
                self.in_agreement = True
            raise

    def _of_rank(self, rank: int, error: Any) -> Exception:
        told: Any = _told(error)
        if rank == 0:  # which speaks for all
            return told
        text = f"rank {rank}: {told}"
        return error_with_text(type(told), text) if isinstance(told, AmpkitError) else OSError(text)

    def need_same(self, what: dict[str, str]) -> None:
        """Raise ConfigError, on all ranks, where the texts of `what` by name differ between ranks."""
        first, *others = self.gathered(what)
        for rank, theirs in enumerate(others, 1):
            for name in first.keys() | theirs.keys():
                if first.get(name) != theirs.get(name):
                    self.in_agreement = True
                    got = f"{name}={first.get(name)} on rank 0, {theirs.get(name)} on rank {rank}"
                    raise ConfigError("training on several ranks", "the same recipe, code and data on all", got)

    # cores

    def threads(self, chosen: int, usual: int) -> int:
        """How many threads this rank computes with: `chosen`, or `usual` for 0, but at most its share of the cores.

        Raises ConfigError, on all ranks, where a machine has more ranks than cores and `chosen` is 0.
        """
        if self._group is None:
            return chosen or usual
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        mine, cores = (socket.gethostname(), tuple(usable)), usable_cpus()
        sharing = self.gathered(mine).count(mine)

        def check() -> None:
            if sharing > cores and not chosen:
                needs, got = "a core for each rank of a machine", f"{sharing} ranks for {cores} of {mine[0]}"
                cure = "start fewer, or let them share cores by train.threads=1"
                raise ConfigError("training on several ranks", needs, got, cure)

        self.agreed(check)
        return min(chosen or usual, max(1, cores // sharing))


@contextmanager
def _without_sync(model: FSDPModule) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def has_parts(model: nn.Module) -> bool:
    """Whether this rank has only parts of parameters of `model`."""
    return any(isinstance(parameter, ShardedTensor) for parameter in model.parameters())


def whole(state: Any) -> Any:
    """A nested state in which whole tensors, on the host, stand for rows that ranks share out; all ranks call it.

    Rank 0 alone keeps them.
    """
    if isinstance(state, ShardedTensor):
        tensor = state.full_tensor()
        return tensor.cpu() if all(level.group.rank() == 0 for level in state._sharding.levels) else None
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    return type(state)(map(whole, state)) if type(state) in (list, tuple) else state


def _told(error: Exception | None) -> Exception | None:
    """What other ranks raise for an error: the same, or where they may lack its class, DistError with its text."""
    if error is None or (isinstance(error, AmpkitError) and type(error).__module__.startswith(_PACKAGE)):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, OSError | MemoryError):
        return OSError(text)
    return error_with_text(DistError, text if text == type(error).__name__ else f"{type(error).__name__}: {text}")


ALONE = Ranks()  # a process that trains without others


def code_checksum() -> str:
    """The SHA-256 of ampkit's Python files, shortened."""
    digest = hashlib.sha256()
    for path in sorted(_LIBRARY.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
