"""Weight averaging with PyTorch's names: exponential moving averages and plain means over optimizer steps."""

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
from ..core.capture.recorder import uses
from ..core.dispatch import primitive
from ..core.fp_errors import ignore_fp_errors
from ..core.policy import delayed
from ..core.tensor import Tensor
from ..nn.module import Module
from ..nn.modules.norm import _BatchNorm
from ..ops.argument_checks import check_all
from .flat.memory import CHUNK, chunks, flag_mask, mask_bits, where_flag
from .lr_scheduler.cyclic import SWALR
from .lr_scheduler.schedule import fraction

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn",
    "update_bn",
]  # fmt: skip

WeightRule = Callable[[Any], Any]  # number of weights averaged so far -> weight of the new ones in the average


@primitive("optim.elementwise")
def lerp(average: Array, current: Array, part: Any, fresh: Array | None, stepped: Array | None) -> None:
    """average += part (current - average), flat and in place, where stepped is true or None.

    Where fresh is true the average is taken as 0, whatever it holds.
    """
    kind = average.dtype
    bits, take = flag_mask(stepped, kind), where_flag(stepped, part, 0.0, kind)
    old = None if fresh is None else flag_mask(np.logical_not(fresh), kind)
    scratch = backends.backend_of(average).empty((min(CHUNK, average.size),), kind)
    for piece in chunks(average.size):
        a, b = average[piece], scratch[: piece.stop - piece.start]
        np.subtract(current[piece], mask_bits(a, old, a), out=b)
        np.add(a, mask_bits(np.multiply(b, take, out=b), bits, b), out=a)


def _lerp_into(
    average: Array, current: Array, part: Any, fresh: Array | None = None, stepped: Array | None = None
) -> None:
    # `lerp` of an average of any shape and strides; where its flat form is a copy, the result is written back.
    flat = average.reshape(-1)
    lerp(flat, current, part, fresh, stepped)
    if not average.flags.c_contiguous:
        average[...] = flat.reshape(average.shape)


class _Averaging:
    """An averaging function with PyTorch's call: of lists, in place; or if `single`, of one tensor, returned.

    Averages of integers are float32, in place rounded towards zero.
    """

    def __init__(self, weight_of: WeightRule, single: bool):
        self.weight_of, self.single = weight_of, single

    def __call__(self, averaged: Any, current: Any, num_averaged: Any) -> Any:
        count = num_averaged.array if isinstance(num_averaged, Tensor) else num_averaged
        with backends.device_guard(count):
            weight = self.weight_of(count)
        with ignore_fp_errors():
            if self.single:
                return _average_of(averaged, current, weight)
            for tensor, new in zip(averaged, current, strict=True):
                if tensor.is_floating_point():
                    _lerp_into(tensor.array, _master_values(new, tensor.dtype), weight)
                    tensor.changed()
                else:
                    tensor.copy_(_average_of(tensor, new, weight))  # towards zero, as in PyTorch
        return None


def _average_of(averaged: Tensor, current: Tensor, weight: Any) -> Tensor:
    # A new average of one tensor; of integers in float32.
    dtype = averaged.array.dtype if averaged.is_floating_point() else dtypes.float32
    with backends.device_guard(averaged.array):
        made = Tensor(averaged.array.astype(dtype))
    lerp(made.array.reshape(-1), _master_values(current, dtype), weight, None, None)
    return made


class _Ema:
    """The constant weight 1 - decay of an exponential moving average."""

    def __init__(self, where: str, decay: float):
        self.weight = 1 - fraction(where, "decay", decay)

    def __call__(self, count: Any) -> Any:
        return self.weight


def _mean_weight(count: Any) -> Any:
    return 1 / (count + 1)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Any:
    """An EMA for `AveragedModel(multi_avg_fn=)`: average <- decay average + (1 - decay) current, of lists, in place."""
    return _Averaging(_Ema("get_ema_multi_avg_fn", decay), single=False)


def get_ema_avg_fn(decay: float = 0.999) -> Any:
    """An EMA for `AveragedModel(avg_fn=)`: returns decay average + (1 - decay) current, for one tensor."""
    return _Averaging(_Ema("get_ema_avg_fn", decay), single=True)


def get_swa_multi_avg_fn() -> Any:
    """The plain mean, for `multi_avg_fn`: average <- average + (current - average) / (n + 1), of lists, in place."""
    return _Averaging(_mean_weight, single=False)


def get_swa_avg_fn() -> Any:
    """The plain mean, for `avg_fn`: returns average + (current - average) / (n + 1), for one tensor."""
    return _Averaging(_mean_weight, single=True)


class AveragedModel(Module):
    """A copy of `model`, as `module`, whose parameters are running averages of the model's: by default their mean.

    `update_parameters(model)` adds the current weights to the average if an optimizer of the model has updated them
    since the last call: after a step that a GradScaler skipped, neither the average nor `n_averaged` changes. This is
    decided on the device, without a synchronization. Without an optimizer every call counts. The first call copies the
    weights. Averages are float32 (float64 for float64 parameters); of 16-bit parameters the master weights are
    averaged. The scales of delayed scaling are those of the model.

    device: the device of the averages. avg_fn(averaged, current, n_averaged) returns the new average of one tensor,
    multi_avg_fn(averaged, current, n_averaged) updates a list of tensors in place; pass at most one of them.
    use_buffers=True averages floating-point buffers too; the others are copied from the model: a counter that was
    averaged in integers would stay where it is, as in PyTorch.
    Raises ArgumentError if both functions are passed, DTypeError if `model` is no Module.
    Polyak, Juditsky 1992, SIAM J. Control Optim. 30(4); Izmailov et al. 2018, arXiv:1803.05407.
    """

    _wraps_model = True

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
            if tensor.array.dtype in dtypes.LOW:
                with backends.device_guard(source.array):
                    tensor.array = _master_values(source, dtypes.float32).reshape(source.shape).copy()
                tensor._cast_copies = None
                tensor.changed()
        if device is not None:
            self.module.to(device)
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        backend = backends.backend_of(next(iter(_tensors(self.module)), Tensor(np.zeros(()))).array)
        self.register_buffer("n_averaged", Tensor(backend.zeros((), dtypes.int64)))
        self.register_buffer("_seen", Tensor(backend.zeros((), dtypes.int64)), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with the averaged weights."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Add the weights of `model` to the average, if an optimizer updated them since the last call.

        Raises ArgumentError for a model whose parameters or buffers have other shapes.
        """
        want, got = ([tuple(t.shape) for t in _tensors(each)] for each in (self.module, model))
        if want != got:
            what = f"{len(want)} parameters and buffers of the model that it was made of"
            raise ArgumentError("AveragedModel.update_parameters", what, f"{len(got)}, or other shapes")
        uses(self)
        with ignore_fp_errors(), no_grad(), backends.device_guard(self.n_averaged.array):
            stepped = self._stepped(model)
            fresh = np.equal(self.n_averaged.array, 0)
            fresh = fresh if stepped is None else np.logical_and(fresh, stepped)
            (averaged, copies), (current, sources) = self._split(self.module), self._split(model)
            self._average(averaged, current, fresh, stepped)
            for average, trained in zip(self.module.parameters(), model.parameters(), strict=True):
                delayed.copy_state(average, trained)
            for mine, theirs in zip(copies, sources, strict=True):
                _assign_where(mine, backends.to_device_of(theirs.array, mine.array), stepped)
            count = self.n_averaged.array
            np.add(count, 1 if stepped is None else stepped, out=count)
            self.n_averaged.changed()

    def _stepped(self, model: Module) -> Array | None:
        """Whether an optimizer of `model` stepped since the last call: a 0-d bool on the device; None without one."""
        segments = [s for p in model.parameters() if (s := getattr(p, "_arena_segment", None)) is not None]
        owners = {id(owner): owner for segment in segments if (owner := segment.arena.owner()) is not None}
        if not owners:
            return None
        seen = self._seen.array
        steps = sum(backends.to_device_of(owner.steps, seen) for owner in owners.values())
        stepped = np.not_equal(steps, seen)
        seen[...] = steps
        return backends.backend_of(seen).asarray(stepped, dtypes.bool_)

    def _split(self, model: Module) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors to average, and the buffers to copy."""
        buffers = list(model.buffers())
        mean = [b for b in buffers if self.use_buffers and b.is_floating_point()]
        return [*model.parameters(), *mean], [b for b in buffers if not any(b is m for m in mean)]

    def _average(self, averaged: list[Tensor], model: list[Tensor], fresh: Array, stepped: Array | None) -> None:
        rule = self.multi_avg_fn or self.avg_fn or get_swa_multi_avg_fn()
        values = [_master_values(new, mine.array.dtype) for mine, new in zip(averaged, model, strict=True)]
        current = [backends.to_device_of(new, mine.array) for mine, new in zip(averaged, values, strict=True)]
        if isinstance(rule, _Averaging):
            weight = np.where(fresh, 1.0, rule.weight_of(self.n_averaged.array))
            for mine, new in zip(averaged, current, strict=True):
                if mine.array.size:
                    _lerp_into(mine.array, new, weight, fresh, stepped)
                    mine.changed()
            return
        shaped = [Tensor(new.reshape(mine.shape)) for mine, new in zip(averaged, current, strict=True)]
        for mine, made, new in zip(averaged, self._call_rule(averaged, shaped), shaped, strict=True):
            _assign_where(mine, np.where(fresh, new.array, made.array), stepped)

    def _call_rule(self, averaged: list[Tensor], current: list[Tensor]) -> list[Tensor]:
        before = [Tensor(mine.array.copy()) for mine in averaged]
        if self.multi_avg_fn is None:
            assert self.avg_fn is not None
            return [self.avg_fn(mine, new, self.n_averaged) for mine, new in zip(before, current, strict=True)]
        self.multi_avg_fn(before, current, self.n_averaged)
        return before


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Recompute the running statistics of `model`'s batch norms: their mean over the batches of `loader`.

    Averaged weights need this, since the statistics were those of other weights. The model runs in train mode without
    gradients. A batch is a tensor, or a list or tuple whose first item is the input. device: where to move the input;
    None leaves it where it is.
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
                input = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(input if device is None else input.to(device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(training)


check_all(globals())


def _tensors(model: Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _master_values(tensor: Tensor, dtype: Any) -> Array:
    """The values [n] in `dtype`, flat; of a 16-bit parameter of an optimizer, its master weights."""
    segment = getattr(tensor, "_arena_segment", None)
    array = tensor.array if segment is None or not segment.owns_parameter() else segment.master_weights()
    return (array if array.dtype == dtype else backends.backend_of(array).cast(array, dtype)).reshape(-1)


def _assign_where(tensor: Tensor, value: Array, stepped: Array | None) -> None:
    # tensor <- value, in place, where `stepped` is true or None.
    with backends.device_guard(tensor.array):
        tensor.array[...] = value if stepped is None else np.where(stepped, value, tensor.array)
    tensor.changed()
