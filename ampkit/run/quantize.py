"""A trained run in int8: its layers calibrated on the run's training data, and what that changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any

from .. import nn
from ..base.errors import ArgumentError
from ..core.autograd.grad_mode import no_grad
from ..nn import quantization
from ..nn.quantization.budget import Choice, choose, judged
from . import build
from .input_pipeline import input_pipeline
from .metrics import Scores
from .step import objective_of
from .trained import Trained, kept_random

_ROUNDS = 9  # forwards that are timed, in turns
Show = Callable[[str], None]


@dataclass(frozen=True)
class QuantizedRun:
    """A run's model in int8, beside what it was.

    found: the run with the model in int8. layers: each Linear and Conv2d that was not skipped. before, after: scores on
    the held-out data. nbytes: of parameters and buffers, before and after. seconds: of a forward of one batch of the
    held-out data, the medians, measured in turns.
    """

    found: Trained
    layers: tuple[Choice, ...]
    before: Scores
    after: Scores
    nbytes: tuple[int, int]
    seconds: tuple[float, float]


def quantize_run(
    found: Trained, observer: str = "minmax", skip: Sequence[str] = (), budget: float | None = None, batches: int = 8,
    show: Show = lambda stage: None,
) -> QuantizedRun:  # fmt: skip
    """The model of a run in int8, calibrated on `batches` of its training batches.

    budget: by how much the training loss may rise, relative; layers that lose too much run in bfloat16. Without one all
    layers run in int8. show: called with each stage. Raises what `nn.quantization.quantize` raises, ConfigError for
    data that are not where they were, ArgumentError for a run that is quantized.
    """
    if "quantization" in vars(found.model):
        raise ArgumentError("quantize", "a run in floating point", "one in int8", "quantize the run it was made of")
    pipeline = kept_random(lambda: input_pipeline(found.recipe))
    pipeline.need_same_data("quantize", found.about)
    given, objective = list(islice(pipeline.train(0), batches)), objective_of(found.recipe, found.about)

    def loss(model: Any, inputs: Any, *targets: Any) -> Any:
        return objective.loss(model(inputs), *targets)

    show("calibration")
    prepared = quantization.prepare(found.model, given[0], observer=observer, skip=skip, forward=_first)
    quantization.calibrate(prepared, given, forward=_first)
    show("each layer alone")
    layers = judged(prepared, given, loss) if budget is None else choose(prepared, given, loss, budget)
    low = [layer.path for layer in layers if not layer.int8]
    narrow = replace(found, model=quantization.convert(prepared, bfloat16=low))
    show("evaluation")
    nbytes, scores = (_nbytes(found.model), _nbytes(narrow.model)), (found.evaluate(), narrow.evaluate())
    inputs = next(iter(pipeline.held_out()))[0]
    return QuantizedRun(narrow, tuple(layers), *scores, nbytes, _seconds(found, narrow, inputs))


def _first(model: Any, batch: Any) -> Any:
    return model(batch[0])


def _nbytes(model: nn.Module) -> int:
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(int(tensor.array.nbytes) for tensor in tensors.values())


def _seconds(found: Trained, narrow: Trained, inputs: Any) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = [], []
    for _ in range(_ROUNDS + 2):
        for each, spent in zip((found, narrow), times, strict=True):
            with no_grad(), build.region(each.recipe, each.model):
                start = time.perf_counter()
                each.model(inputs)
                spent.append(time.perf_counter() - start)
    first, second = (median(spent[2:]) for spent in times)  # without those that pack weights
    return first, second
