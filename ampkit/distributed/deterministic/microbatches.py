"""Microbatches of one update, each computed by itself by one thread, and sums over them in a fixed binary tree."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ... import backends
from ...amp.grad_scaler import GradScaler
from ...backends import Array
from ...backends.cpu.threads import compute_alone
from ...backends.threads import on_this_device
from ...base import observe
from ...base.dtypes import FLOATS, float32
from ...base.errors import ShapeError
from ...core import random
from ...core.autograd.grad_mode import enable_grad
from ...core.autograd.scale_tag import ScaleTag
from ...core.autograd.tape import grad
from ...core.fp_errors import ignore_fp_errors
from ...core.tensor import Tensor
from ...nn import Module
from .sharded import ShardedGradients

Gradients = list[Array | None]  # of each parameter; None where a microbatch has not used it


class TreeSum:
    """The sum of lists of gradients from `count` places, a power of 2, added by neighbours, then their sums and so on.

    Places may come in any order, from any thread; each adds what it completes. Of the lists no more than two at a
    time of each height of the tree are held, beside those that are being computed. A gradient that is missing is 0.
    """

    def __init__(self, count: int):
        self._count, self._lock = count, Lock()
        self._held: dict[tuple[int, int], Gradients] = {}
        self.total: Gradients = []

    def add(self, place: int, gradients: Gradients) -> None:
        """Give the gradients of a place, which are not read or changed by the caller afterwards."""
        height, left_over = 0, self._count
        while left_over > 1:
            with self._lock:
                other = self._held.pop((height, place ^ 1), None)
                if other is None:
                    self._held[height, place] = gradients
                    return
            first, second = (other, gradients) if place % 2 else (gradients, other)
            del gradients, other
            gradients = _sums(first, second, height > 0)
            del first, second
            height, place, left_over = height + 1, place // 2, left_over // 2
        self.total = gradients


@ignore_fp_errors()
def _sums(first: Gradients, second: Gradients, owned: bool) -> Gradients:
    # owned: the memory of `first` is that of sums made here, and takes the new ones.
    found: Gradients = []
    for place, (a, b) in enumerate(zip(first, second, strict=True)):
        first[place] = second[place] = None
        if a is None or b is None:
            given = b if a is None else a
            found.append(None if given is None else np.add(given, given.dtype.type(0)))  # so that -0 becomes 0
        else:
            found.append(np.add(a, b, out=a if owned else None))
    return found


class Microbatch(NamedTuple):
    """What a microbatch gave beside its gradients: its share of the loss [], and the tag of the gradients.

    buffers: by name, those that this microbatch or another has changed, as they are after it. used: for each parameter,
    whether it has a gradient.
    """

    loss: Array
    tag: ScaleTag | None
    buffers: dict[str, Array]
    used: list[bool]


class Microbatches:
    """Computes microbatches, `threads` at a time, each by a thread of its own whose products use no other.

    On a GPU, which is one place, and while ops are observed, they are computed one after the other; and where ranks
    share the parameters out, which they gather in one order. So should be those of layers that ranks divide.
    """

    def __init__(self, module: Module, threads: int, sharded: ShardedGradients | None = None):
        self.module, self.threads, self._sharded = module, 1 if sharded is not None else threads, sharded
        self._pool: ThreadPoolExecutor | None = None

    def run(
        self,
        loss_of: Callable[..., Tensor],
        parts: Sequence[Any],
        streams: Sequence[random.Stream],
        share: float,
        scaler: GradScaler | None,
        trained: Sequence[Tensor],
    ) -> tuple[Gradients, list[Microbatch]]:
        """The sum of the gradients of share * loss_of(module, *part), and what else each part gave, in their order."""
        before = {name: buffer.array.copy() for name, buffer in self.module.named_buffers()}
        at_once = 1 if observe.observers or observe.profilers else min(self.threads, len(parts))
        models: SimpleQueue[Module] = SimpleQueue()
        for model in self._models(at_once):
            models.put(model)
        tree = TreeSum(len(parts))
        if scaler is not None:  # whose scale is read where the loss is first, here before threads do
            scaler.scale(Tensor(backends.backend_of(trained[0].array).zeros((), float32)))

        def compute(place: int) -> Microbatch:
            model = models.get()
            try:
                with random.drawing_from(streams[place]), enable_grad():
                    gradients, found = _computed(
                        model, before, loss_of, parts[place], share, scaler, trained, self._sharded
                    )
            finally:
                models.put(model)
            tree.add(place, gradients)
            return found

        found = self._each(compute, len(parts))
        changed = [name for name in before if any(name in each.buffers for each in found)]
        values = [{name: each.buffers.get(name, before[name]) for name in changed} for each in found]
        return tree.total, [each._replace(buffers=after) for each, after in zip(found, values, strict=True)]

    def _models(self, count: int) -> list[Module]:
        """The module, and copies that have the same parameters, but buffers of their own."""
        shared = {id(parameter): parameter for parameter in self.module.parameters()}
        return [self.module, *(copy.deepcopy(self.module, dict(shared)) for _ in range(count - 1))]

    def _each(self, compute: Callable[[int], Microbatch], count: int) -> list[Microbatch]:
        if any(backends.backend_of(parameter.array).name != "cpu" for parameter in self.module.parameters()):
            return [compute(place) for place in range(count)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "ampkit-microbatch", on_this_device(compute_alone))
            weakref.finalize(self, self._pool.shutdown, wait=False)
        futures = [self._pool.submit(copy_context().run, compute, place) for place in range(count)]
        if any(future.exception() is not None for future in wait(futures, return_when=FIRST_EXCEPTION).done):
            for future in futures:
                future.cancel()
            wait(futures)
            raise next(error for f in futures if not f.cancelled() and (error := f.exception()) is not None)
        return [future.result() for future in futures]


def _computed(
    model: Module,
    before: Mapping[str, Array],
    loss_of: Callable[..., Tensor],
    part: Any,
    share: float,
    scaler: GradScaler | None,
    trained: Sequence[Tensor],
    sharded: ShardedGradients | None,
) -> tuple[Gradients, Microbatch]:
    """The gradients of a microbatch by `model`, whose buffers have the values `before` at first."""
    buffers = dict(model.named_buffers())
    for name, buffer in buffers.items():
        buffer.array[...] = before[name]
        buffer.changed()
    old = {name: (buffer, buffer._version_counter[0]) for name, buffer in buffers.items()}
    if sharded is not None:
        sharded.begin()
    loss = need_loss(loss_of(model, *(part if isinstance(part, (tuple, list)) else (part,)))) * share
    scaled = loss if scaler is None else scaler.scale(loss)
    tag = None if scaled._tape_node is None else scaled._tape_node.tag
    if sharded is None:
        found = grad(scaled, trained, allow_unused=True)
        gradients = [None if gradient is None else gradient.array for gradient in found]
        used = [gradient is not None for gradient in gradients]
    else:
        gradients = [*sharded.of(scaled, trained)]
        used = sharded.used(trained)
    now = {name: (buffer, buffer._version_counter[0]) for name, buffer in model.named_buffers()}
    changed = {
        name: each[0].array.copy()
        for name, each in now.items()
        if each[0] is not old[name][0] or each[1] != old[name][1]
    }
    return gradients, Microbatch(loss.detach().array, tag, changed, used)


def need_loss(loss: Any) -> Tensor:
    """`loss`, or ShapeError for what a backward cannot begin with."""
    if isinstance(loss, Tensor) and loss.array.size == 1 and loss.array.dtype in FLOATS:
        return loss.reshape(())
    got = f"{loss.dtype.name} {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise ShapeError("forward_backward", "a loss of one floating-point number, a Tensor []", got)
