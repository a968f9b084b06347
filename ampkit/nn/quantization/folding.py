"""Batch norms in eval mode folded into the convolutions and linear layers before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ampkit.base import observe
from ampkit.core.parameter import Parameter
from ampkit.core.tensor import Tensor

from ..module import Module
from ..modules.conv import Conv2d
from ..modules.linear import Identity, Linear
from ..modules.norm import BatchNorm1d, BatchNorm2d
from ..utils.fusion import fuse_conv_bn_weights

_LAYERS, _NORMS = (Linear, Conv2d), (BatchNorm1d, BatchNorm2d)


def foldable(model: Module, run: Callable[[], Any]) -> dict[str, str]:
    """The paths of batch norms, and for each that of the layer whose output it alone reads, in a forward `run`."""
    paths = {module: path for path, module in model.named_modules()}
    made: dict[int, tuple[Tensor, Module]] = {}
    reads: Counter[Module] = Counter()
    pairs: dict[str, list[str]] = {}
    calls: Counter[Module] = Counter()

    def returned(layer: Module, args: Any, output: Any) -> None:
        calls[layer] += 1
        made[id(output)] = output, layer

    def reached(norm: Module, args: Any) -> None:
        found = made.get(id(args[0])) if args else None
        if found is not None:
            pairs.setdefault(paths[norm], []).append(paths[found[1]])

    def met(event: observe.Event) -> None:
        for operand in event.operands:
            if (found := made.get(id(operand))) is not None and found[0] is operand:
                reads[found[1]] += 1

    handles = [m.register_forward_hook(returned) for m in paths if type(m) in _LAYERS]
    handles += [m.register_forward_pre_hook(reached) for m in paths if type(m) in _NORMS and m.running_mean is not None]
    try:
        with observe.observing(met):
            run()
    finally:
        for handle in handles:
            handle.remove()
    layers = {path: module for module, path in paths.items()}
    once = {path for path, module in layers.items() if calls[module] == reads[module] == 1}
    return {norm: found[0] for norm, found in pairs.items() if len(found) == 1 and found[0] in once}


def fold(model: Module, pairs: Mapping[str, str]) -> None:
    """Fold each batch norm, a key of `pairs`, into its layer, in place; an Identity takes its place."""
    for norm_path, path in pairs.items():
        layer: Any = model.get_submodule(path)
        norm: Any = model.get_submodule(norm_path)
        statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        layer.weight, layer.bias = fuse_conv_bn_weights(layer.weight, layer.bias, *statistics)
    replace_norms(model, pairs)


def replace_norms(model: Module, pairs: Mapping[str, str]) -> None:
    """Put an Identity in the place of each batch norm, and give its layer a bias where that has none."""
    for norm_path, path in pairs.items():
        layer: Any = model.get_submodule(path)
        if layer.bias is None:
            layer.bias = Parameter(Tensor(np.zeros(len(layer.weight), layer.weight.array.dtype)))
        parent, _, name = norm_path.rpartition(".")
        model.get_submodule(parent).register_module(name, Identity())
