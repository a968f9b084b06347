"""`quantize`: all steps of post-training quantization in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ampkit.base.errors import ArgumentError

from ..module import Module
from .budget import Loss, choose, need_budget
from .convert import calibrate, convert, prepare


def quantize(
    model: Module,
    calibration_batches: Iterable[Any],
    *,
    observer: str = "minmax",
    skip: str | Iterable[str] = (),
    loss: Loss | None = None,
    budget: float | None = None,
) -> Module:
    """A copy of `model` for inference whose Linear and Conv2d layers compute in int8.

    calibration_batches: a few like those to come; each a Tensor, or a tuple of the model's arguments. observer: how
    ranges follow from the values seen: "minmax", "percentile" or "entropy". skip: layers that stay as they are, by
    path, with `*` for any one part; all below a path is skipped too. budget: by how much the loss may rise, relative;
    layers that lose too much for it run in bfloat16. loss: (model, *batch) -> the mean loss [], for a budget; it takes
    what it needs of a batch, and calls the model. Batch norms are folded into the layers before them. Other layers, and
    a Conv2d with a padding_mode other than zeros, stay as they are. `quantization` of the result says which layer
    became what.
    Raises ArgumentError without a batch or a layer to quantize, ConfigError for a `skip` that matches nothing,
    DeviceError for a model that is not on the CPU, NonFiniteError for values that are not finite, StateError for a
    layer that no batch reaches.
    Jacob et al. 2017, arXiv:1712.05877; Krishnamoorthi 2018, arXiv:1806.08342.
    """
    batches = [batch if isinstance(batch, (tuple, list)) else (batch,) for batch in calibration_batches]
    if not batches:
        raise ArgumentError("quantize", "at least one calibration batch", "none", "pass a few of the training data")
    if (budget is None) != (loss is None):
        raise ArgumentError("quantize", "loss and budget, or neither", "one of them")
    forward = (lambda model, batch: model(*batch)) if loss is None else (lambda model, batch: loss(model, *batch))
    if budget is not None:
        need_budget(budget)
    prepared = prepare(model, batches[0], observer=observer, skip=skip, forward=forward)
    calibrate(prepared, batches, forward=forward)
    if loss is None or budget is None:
        return convert(prepared)
    choices = choose(prepared, batches, loss, budget)
    return convert(prepared, bfloat16=[choice.path for choice in choices if not choice.int8])
