"""Compare every module of PyTorch's ModuleInfo: results, gradients, state after the call, and errors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

import ampkit

from . import ops
from .comparison import Tally, faults
from .ops import Place, Refused, Settings, call_ampkit, call_pytorch
from .translate import DTYPES, copied, in_float64, leaves, tensors, to_ampkit

# Drawn at random in training: dtypes and shapes are compared.
RANDOM = {
    f"nn.{name}" for name in "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout RReLU".split()
}


@cache
def infos() -> dict[str, Any]:
    """ModuleInfos of the modules that ampkit has, by name."""
    return {info.name: info for info in module_db if hasattr(ampkit.nn, info.name.rpartition(".")[2])}


def compare(info: Any, settings: Settings) -> Tally:
    """The tally of one module, in training and evaluation mode, for every supported dtype."""
    tally = Tally({info.name})
    for name in [dtype for dtype in settings.dtypes if getattr(torch, dtype) in info.supported_dtypes("cpu")]:
        for training in (True, False):
            _samples(info, getattr(torch, name), training, settings, tally)
    _errors(info, settings, tally)
    return tally


def _samples(info: Any, dtype: torch.dtype, training: bool, settings: Settings, tally: Tally) -> None:
    ops.seed_all(settings.seed)
    drawn = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    for number, sample in enumerate(drawn[: settings.samples]):
        mode = "train" if training else "eval"
        place = Place(info.name, mode, str(dtype).removeprefix("torch."), number, "modules")
        ops.one(place, _Call(sample), tally, lambda s=sample: _compared(info, s, dtype, training))


class _Call:
    # A module's arguments in the words of an OpInfo's sample, for the report.
    def __init__(self, sample: Any):
        made, given = sample.constructor_input, sample.forward_input
        self.input, self.args, self.kwargs = (made.args, made.kwargs), (), {}
        if given is not None:
            self.args, self.kwargs = given.args, given.kwargs


def _compared(info: Any, sample: Any, dtype: torch.dtype, training: bool) -> list[tuple[str, str]]:
    given = copied((sample.forward_input.args, sample.forward_input.kwargs))
    theirs, wide = (call_pytorch(lambda: _pytorchs(info, sample, dtype, training)) for _ in range(2))
    to_ours = to_ampkit(given)
    state, made = to_ampkit(dict(theirs.state_dict())), to_ampkit(_made(sample))
    wide, wide_given = wide.double(), in_float64(given)
    needed = call_pytorch(lambda: leaves(_everything(ops.TORCH, theirs, given)))
    try:
        ours = call_ampkit(lambda: _ampkits(info, made, dtype, training, state, to_ours))
        got = call_ampkit(lambda: _everything(ops.AMPKIT, ours, to_ours))
    except Refused as refused:
        return [refused.args]
    truth = ops.lazily(lambda: leaves(_everything(ops.TORCH, wide, wide_given)))
    return faults(leaves(got), needed, truth, not (training and info.name in RANDOM))


def _made(sample: Any) -> tuple[Any, Any]:
    return sample.constructor_input.args, sample.constructor_input.kwargs


def _pytorchs(info: Any, sample: Any, dtype: torch.dtype, training: bool) -> Any:
    args, kwargs = _made(sample)
    torch.manual_seed(0)
    module = info.module_cls(*args, **kwargs).to(dtype).train(training)
    if info.is_lazy:  # its first input gives it its parameters
        module(*copied(sample.forward_input.args), **copied(sample.forward_input.kwargs))
    return module


def _ampkits(info: Any, made: Any, dtype: torch.dtype, training: bool, state: dict[str, Any], given: Any) -> Any:
    module = getattr(ampkit.nn, info.name.rpartition(".")[2])(*made[0], **made[1]).to(DTYPES[dtype]).train(training)
    if info.is_lazy:
        module(*given[0], **given[1])
    module.load_state_dict(state)
    return module


def _everything(library: ops.Library, module: Any, given: Any) -> list[Any]:
    """Results, gradients of inputs and parameters, and buffers, in this order."""
    results: list[Any] = []

    def call() -> Any:
        results.append(module(*given[0], **given[1]))
        return results[0]

    parameters = [parameter for _, parameter in module.named_parameters()]
    inputs = [one for one in tensors(given, library.tensor) if one.requires_grad]
    gradients = ops.derivatives(library, call, inputs + parameters, False)
    return [results, gradients, [buffer for _, buffer in module.named_buffers()]]


def _errors(info: Any, settings: Settings, tally: Tally) -> None:
    if info.module_error_inputs_func is None:
        return
    ops.seed_all(settings.seed)
    drawn = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    for number, error in enumerate(drawn):
        sample = error.module_error_input
        place = Place(info.name, "errors", "float32", number, "modules")
        ops.one(place, _Call(sample), tally, lambda e=error, s=sample: _error(info, e, s))


def _error(info: Any, error: Any, sample: Any) -> list[tuple[str, str]]:
    made, given = sample.constructor_input, sample.forward_input
    (args, kwargs), forward = to_ampkit(((made.args, made.kwargs), given and (given.args, given.kwargs)))

    def call() -> Any:
        module = getattr(ampkit.nn, info.name.rpartition(".")[2])(*args, **kwargs)
        if error.error_on is ModuleErrorEnum.FORWARD_ERROR:
            module(*forward[0], **forward[1])

    return ops.must_raise(call, RuntimeError(str(error.error_regex)))
