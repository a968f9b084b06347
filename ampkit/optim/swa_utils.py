"""Averages of weights, with PyTorch's names: exponential ones and plain ones, that follow real steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base import dtypes
from ..base.errors import ArgumentError, DTypeError
from ..core.autograd.grad_mode import no_grad
from ..core.dispatch import Primitive
from ..core.fp_errors import ignore_fp_errors
from ..core.tensor import Tensor, uses
from ..nn.module import Module
from ..nn.modules.norm import _BatchNorm
from .flat.memory import CHUNK, chunks, flag_mask, mask_bits, where_flag
from .lr_scheduler.cyclic import SWALR as SWALR
from .lr_scheduler.schedule import share

Share = Callable[[Any], Any]  # n averaged so far -> the share of the new weights in the average


def _lerp(average: Array, current: Array, part: Any, fresh: Array | None, stepped: Array | None) -> None:
    kind = average.dtype
    bits, take = flag_mask(stepped, kind), where_flag(stepped, part, 0.0, kind)
    old = None if fresh is None else flag_mask(np.logical_not(fresh), kind)
    scratch = backends.backend_of(average).empty((min(CHUNK, average.size),), kind)
    for piece in chunks(average.size):
        a, b = average[piece], scratch[: piece.stop - piece.start]
        np.subtract(current[piece], mask_bits(a, old, a), out=b)
        np.add(a, mask_bits(np.multiply(b, take, out=b), bits, b), out=a)


# (flat average, flat current, weight, fresh or None, stepped or None): average += weight (current - average), where
# stepped; the average counts as 0 where fresh
lerp = Primitive("lerp", "optim.elementwise", _lerp)


class _Averaging:
    """A rule of averaging; called as PyTorch calls it: with lists, in place, or `single`, for a new tensor."""

    def __init__(self, part: Share, single: bool):
        self.part, self.single = part, single

    def __call__(self, averaged: Any, current: Any, num_averaged: Any) -> Any:
        part = self.part(num_averaged.array if isinstance(num_averaged, Tensor) else num_averaged)
        with ignore_fp_errors():
            if self.single:
                with backends.device_guard(averaged.array):
                    made = Tensor(averaged.array.copy())
                lerp(made.array.reshape(-1), _wide(current, made.dtype), part, None, None)
                return made
            for tensor, new in zip(averaged, current, strict=True):
                lerp(tensor.array.reshape(-1), _wide(new, tensor.dtype), part, None, None)
                tensor.changed()
        return None


class _Ema:
    """The share 1 - decay, whatever came before."""

    def __init__(self, where: str, decay: float):
        self.rest = 1 - share(where, "decay", decay)

    def __call__(self, count: Any) -> Any:
        return self.rest


def _equal(count: Any) -> Any:
    return 1 / (count + 1)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Any:
    """average <- decay average + (1 - decay) current, for lists of tensors, in place."""
    return _Averaging(_Ema("get_ema_multi_avg_fn", decay), single=False)


def get_ema_avg_fn(decay: float = 0.999) -> Any:
    """decay average + (1 - decay) current, for one tensor."""
    return _Averaging(_Ema("get_ema_avg_fn", decay), single=True)


def get_swa_multi_avg_fn() -> Any:
    """average <- average + (current - average) / (n + 1), for lists of tensors, in place."""
    return _Averaging(_equal, single=False)


def get_swa_avg_fn() -> Any:
    """average + (current - average) / (n + 1), for one tensor."""
    return _Averaging(_equal, single=True)


class AveragedModel(Module):
    """A copy of `model`, as `module`, whose parameters are averages of the model's; the plain mean unless told.

    `update_parameters(model)` takes the weights of now into the average, if an optimizer of the model really stepped
    since the last call: a step that a GradScaler skipped advances nothing, `n_averaged` neither. The device decides
    that. Without an optimizer every call counts. The first weights are taken whole. Averages are float32 (float64 for
    float64 parameters): of 16-bit parameters the optimizer's float32 values are averaged.

    device: where the averages live. avg_fn(averaged, current, n_averaged) returns a tensor, multi_avg_fn(list, list,
    n_averaged) works in place; give one at most. use_buffers=True averages floating-point buffers too; otherwise they
    are those of the model. Raises ArgumentError for both functions.
    Polyak, Juditsky 1992, SIAM J. Control Optim. 30(4); Izmailov et al. 2018, arXiv:1803.05407.
    """

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Callable[..., Any] | None = None,
        multi_avg_fn: Callable[..., Any] | None = None,
        use_buffers: bool = False,
    ):
        super().__init__()
        if not isinstance(model, Module):
            raise DTypeError("AveragedModel", "a Module", type(model).__name__)
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("AveragedModel", "avg_fn or multi_avg_fn", "both")
        self.module = deepcopy(model)
        for tensor, source in zip(self.module.parameters(), model.parameters(), strict=True):
            tensor.grad = None
            if tensor.dtype in dtypes.LOW:
                with backends.device_guard(source.array):
                    tensor.array, tensor.copies = _wide(source, dtypes.float32).reshape(source.shape).copy(), None
                tensor.changed()
        if device is not None:
            self.module.to(device)
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        home = backends.backend_of(next(iter(_tensors(self.module)), Tensor(np.zeros(()))).array)
        self.register_buffer("n_averaged", Tensor(home.zeros((), dtypes.int64)))
        self.register_buffer("_seen", Tensor(home.zeros((), dtypes.int64)), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, with averaged weights."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the weights of `model` into the average, if they moved. ArgumentError for a model of another shape."""
        self._need_alike(model)
        uses(self)
        with ignore_fp_errors(), no_grad(), backends.device_guard(self.n_averaged.array):
            stepped = self._stepped(model)
            fresh = np.equal(self.n_averaged.array, 0)
            fresh = fresh if stepped is None else np.logical_and(fresh, stepped)
            averaged, copied = self._parts(self.module), self._parts(model)
            self._average(averaged[0], copied[0], fresh, stepped)
            for mine, theirs in zip(averaged[1], copied[1], strict=True):
                _settle(mine, backends.to_device_of(theirs.array, mine.array), stepped)
            count = self.n_averaged.array
            np.add(count, 1 if stepped is None else stepped, out=count)
            self.n_averaged.changed()

    def _need_alike(self, model: Module) -> None:
        want, got = ([tuple(t.shape) for t in _tensors(each)] for each in (self.module, model))
        if want != got:
            what = f"{len(want)} parameters and buffers of the model that it was made of"
            raise ArgumentError("AveragedModel.update_parameters", what, f"{len(got)}, or other shapes")

    def _stepped(self, model: Module) -> Array | None:
        """Whether an optimizer of `model` stepped since the last call, a flag on the device; None without one."""
        segments = [p.segment for p in model.parameters() if getattr(p, "segment", None) is not None]
        owners = {id(owner): owner for segment in segments if (owner := segment.arena.owner()) is not None}
        if not owners:
            return None
        seen = self._seen.array
        steps = sum(backends.to_device_of(owner.steps, seen) for owner in owners.values())
        stepped = np.not_equal(steps, seen)
        seen[...] = steps
        return backends.backend_of(seen).asarray(stepped, dtypes.bool_)

    def _parts(self, model: Module) -> tuple[list[Tensor], list[Tensor]]:
        """What is averaged, and what is copied."""
        buffers = list(model.buffers())
        mean = [b for b in buffers if self.use_buffers and b.is_floating_point()]
        return [*model.parameters(), *mean], [b for b in buffers if not any(b is m for m in mean)]

    def _average(self, averaged: list[Tensor], model: list[Tensor], fresh: Array, stepped: Array | None) -> None:
        rule = self.multi_avg_fn or self.avg_fn or get_swa_multi_avg_fn()
        current = [
            backends.to_device_of(_wide(new, mine.dtype), mine.array) for mine, new in zip(averaged, model, strict=True)
        ]
        if isinstance(rule, _Averaging):
            part = np.where(fresh, 1.0, rule.part(self.n_averaged.array))
            for mine, new in zip(averaged, current, strict=True):
                if mine.array.size:
                    lerp(mine.array.reshape(-1), new, part, fresh, stepped)
                    mine.changed()
            return
        shaped = [Tensor(new.reshape(mine.shape)) for mine, new in zip(averaged, current, strict=True)]
        for mine, made, new in zip(averaged, self._made(averaged, shaped), shaped, strict=True):
            _settle(mine, np.where(fresh, new.array, made.array), stepped)

    def _made(self, averaged: list[Tensor], current: list[Tensor]) -> list[Tensor]:
        before = [Tensor(mine.array.copy()) for mine in averaged]
        if self.multi_avg_fn is None:
            assert self.avg_fn is not None
            return [self.avg_fn(mine, new, self.n_averaged) for mine, new in zip(before, current, strict=True)]
        self.multi_avg_fn(before, current, self.n_averaged)
        return before


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Take the running statistics of `model`'s batch norms anew: the mean over the batches of `loader`, in train mode.

    What averaging weights calls for, whose statistics were those of other weights. A batch is a tensor, or a list or
    tuple whose first item is the input; device: where to bring it, None for as it comes.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta, training = [norm.momentum for norm in norms], model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean
    try:
        with no_grad():
            for batch in loader:
                given = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(given if device is None else given.to(device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(training)


def _tensors(model: Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _wide(tensor: Tensor, dtype: Any) -> Array:
    """The values, flat, in `dtype`: of a 16-bit parameter the optimizer's own."""
    segment = getattr(tensor, "segment", None)
    array = tensor.array if segment is None or not segment.owns_parameter() else segment.master_weights()
    return (array if array.dtype == dtype else backends.backend_of(array).cast(array, dtype)).reshape(-1)


def _settle(tensor: Tensor, value: Array, stepped: Array | None) -> None:
    with backends.device_guard(tensor.array):
        tensor.array[...] = value if stepped is None else np.where(stepped, value, tensor.array)
    tensor.changed()
