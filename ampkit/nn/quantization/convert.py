"""Post-training quantization: prepare a model, calibrate it, convert its layers to int8."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampkit import backends
from ampkit.base.errors import ArgumentError, DeviceError, StateError, check_choice
from ampkit.core.autograd.grad_mode import no_grad

from ..module import Module
from ..module_names import is_below, need_matches
from ..modules.conv import Conv2d
from ..modules.linear import Linear
from . import layers
from .folding import fold, foldable, replace_norms
from .observers import OBSERVERS
from .readers import Readers

Call = Callable[[Any, Any], Any]  # (model, batch) -> anything


@dataclass(frozen=True)
class Layout:
    """Which layers of a model are in int8: what `restore` needs beside a state_dict.

    int8: the paths of layers in int8, and whether each returns codes. bfloat16: those of layers whose product is in
    bfloat16. folded: batch norms by path, with the layer that each was folded into.
    """

    int8: Mapping[str, bool] = field(default_factory=dict)
    bfloat16: tuple[str, ...] = ()
    folded: Mapping[str, str] = field(default_factory=dict)


def call(model: Module, batch: Any) -> Any:
    """The model's output for a batch: its argument, or a tuple of them."""
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def prepare(
    model: Module, batch: Any, *, observer: str = "minmax", skip: Iterable[str] = (), forward: Call = call
) -> Module:
    """A copy of `model` in eval mode whose Linear and Conv2d layers observe what passes them.

    batch: one that the model takes, as in `quantize`; it is run to see which batch norms follow a layer, which are
    folded into it, and which layer reads which output. Options and errors as of `quantize`.
    """
    check_choice("quantize", "observer", observer, *OBSERVERS)
    _need_cpu(model)
    made = copy.deepcopy(model).eval()
    skip = [skip] if isinstance(skip, str) else list(skip)
    need_matches("quantize", "skip: the path of a module of the model", skip, [p for p, _ in made.named_modules() if p])
    with no_grad():
        folded = foldable(made, lambda: forward(made, batch))
        fold(made, folded)
        readers = Readers()
        for path, layer in _quantizable(made, skip).items():
            layers.observe(layer, OBSERVERS[observer], readers, path)
        with readers.noting():
            forward(made, batch)
    made.__dict__["_folded"] = folded
    for layer in observed(made).values():  # the first batch counts once
        layer.input_observer, layer.output_observer = (OBSERVERS[observer](layer.input_observer.where) for _ in "io")
    return made


def _need_cpu(model: Module) -> None:
    if not isinstance(model, Module):
        raise ArgumentError("quantize", "a module as `model`", f"a {type(model).__name__}")
    for tensor in (*model.parameters(), *model.buffers()):
        if backends.backend_of(tensor.array).name != "cpu":
            raise DeviceError(
                "quantize", "a model on the CPU: int8 is not there yet on a GPU", tensor.device, "model.cpu()"
            )


def _quantizable(model: Module, skip: Iterable[str]) -> dict[str, Any]:
    kinds = {path: module for path, module in model.named_modules() if type(module) in (Linear, Conv2d)}
    found = {p: m for p, m in kinds.items() if not isinstance(m, Conv2d) or m.padding_mode == "zeros"}
    if not found:
        raise ArgumentError("quantize", "a model with Linear or Conv2d layers", f"{type(model).__name__}, without any")
    left = {path: module for path, module in found.items() if not any(is_below(pattern, path) for pattern in skip)}
    if not left:
        raise ArgumentError("quantize", "a layer that `skip` leaves", "none", "skip fewer layers")
    return left


def observed(model: Module) -> dict[str, Any]:
    """The layers of a prepared model by path."""
    return {
        path: m for path, m in model.named_modules() if isinstance(m, (layers.ObservedLinear, layers.ObservedConv2d))
    }


def calibrate(model: Module, batches: Iterable[Any], *, forward: Call = call) -> None:
    """Run batches through a prepared model, whose observers see them.

    Raises StateError for a model that is not prepared, ArgumentError without a batch, NonFiniteError where a layer
    meets NaN or infinity.
    """
    if not observed(model):
        raise StateError("calibrate", "a prepared model", "one without observers", "call prepare(model, batch) before")
    count = 0
    with no_grad():
        for batch in batches:
            forward(model, batch)
            count += 1
    if not count:
        raise ArgumentError("calibrate", "at least one batch", "none")


def convert(model: Module, *, bfloat16: Iterable[str] = (), float32: Iterable[str] = ()) -> Module:
    """Convert the layers of a calibrated model to int8, in place; returns the model.

    bfloat16: the paths of layers whose product runs in bfloat16 instead; float32: those that stay as they are. A layer
    returns codes where all layers that read its output are in int8, else float32.
    Raises StateError for an observer that saw no data, NonFiniteError for a weight that is not finite; the model is not
    changed then.
    """
    found = observed(model)
    if not found:
        raise StateError("convert", "a prepared model", "one without observers", "call prepare(model, batch) before")
    low, wide = set(bfloat16), set(float32)
    chosen = {path: layer for path, layer in found.items() if path not in low | wide}
    codes = {path: layer.returns_codes_to(chosen.values()) for path, layer in chosen.items()}
    made = {path: layers.in_int8(layer, path, codes[path]) for path, layer in chosen.items()}
    for path, layer in found.items():
        layers.end_observation(layer)
        if path in made:
            layer.__class__, layer.__dict__ = made[path].__class__, made[path].__dict__
        elif path in low:
            layer.__class__ = layers.BFLOAT16[type(layer)]
    model.__dict__["quantization"] = Layout(codes, tuple(sorted(low)), model.__dict__.pop("_folded", {}))
    return model


def restore(model: Module, layout: Layout) -> Module:
    """Give `model` the layers of a quantized one, in place, to load its state_dict into; returns the model."""
    replace_norms(model, layout.folded)
    for path, codes in layout.int8.items():
        layers.to_int8(model.get_submodule(path), codes)
    for path in layout.bfloat16:
        layer = model.get_submodule(path)
        layer.__class__ = layers.BFLOAT16[type(layer)]
    model.__dict__["quantization"] = layout
    return model.eval()
