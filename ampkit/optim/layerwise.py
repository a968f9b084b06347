"""Learning rates by layer, as parameter groups: for fine-tuning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..base.errors import ArgumentError
from ..nn.module import Module
from ..nn.module_names import is_below, need_matches


def layerwise_groups(
    model: Module, lr: float, *, layer_decay: float = 1.0, lr_factors: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Parameter groups of the trained parameters of `model`, one for each learning rate, `lr` itself first.

        optimizer = optim.AdamW(optim.layerwise_groups(model, 1e-3, layer_decay=0.75, lr_factors={"fc": 5.0}))

    layer_decay: the learning rate of a layer over that of the next; the top has `lr`. Layers are what paths number, as
    `h.0`, `layer1.0` and `encoder_layer_0`, in the order of `named_parameters`; what comes before them is the first
    layer, what comes after them the top. lr_factors: further factors for modules or parameters, by path (see
    `nn.utils.freeze`); the last pattern that matches counts.
    Raises ArgumentError for a decay outside (0, 1] or a factor that is not above 0, ConfigError for a pattern that
    matches nothing.
    Clark et al. 2020 (ELECTRA), arXiv:2003.10555, appendix B; Bao et al. 2021 (BEiT), arXiv:2106.08254, appendix.
    """
    factors = lr_factors_of(model, layer_decay, lr_factors or {})
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [{**group, "lr": lr * factor} for factor, group in by_factor({"params": trained}, factors)]


def lr_factors_of(model: Module, layer_decay: float, lr_factors: Mapping[str, float]) -> dict[str, float]:
    """What the learning rate of each parameter is multiplied with, by name; see `layerwise_groups`."""
    if not 0 < layer_decay <= 1:
        raise ArgumentError("layerwise_groups", "layer_decay in (0, 1]", repr(layer_decay))
    for pattern, factor in lr_factors.items():
        if not factor > 0:
            raise ArgumentError("layerwise_groups", f"a factor above 0 for {pattern!r}", repr(factor))
    names = [name for name, _ in model.named_parameters()]
    need_matches("lr_factors", "the path of a module or parameter of the model", lr_factors, names)
    heights, found = _layers(names), dict[str, float]()
    top = max(heights.values(), default=0)
    for name in names:
        own = [factor for pattern, factor in lr_factors.items() if is_below(pattern, name)]
        found[name] = layer_decay ** (top - heights[name]) * (own[-1] if own else 1.0)
    return found


def _layers(names: list[str]) -> dict[str, int]:
    # The number of each parameter's layer, from 0.
    blocks = [re.match(r"(?:[^.]+\.)*?(?:[^.]*_)?\d+(?=\.)", name) for name in names]
    numbers = {path: i for i, path in enumerate(dict.fromkeys(b[0] for b in blocks if b), 1)}
    height, last, found = 0, len(numbers), dict[str, int]()
    for name, block in zip(names, blocks, strict=True):
        if block:
            height = numbers[block[0]]
        found[name] = last + 1 if not block and height == last else height
    return found


def by_factor(group: dict[str, Any], factors: Mapping[str, float]) -> list[tuple[float, dict[str, Any]]]:
    """A group of (name, Parameter) pairs, divided by the factors of their names: 1 first, then from high to low."""
    parts: dict[float, list[Any]] = {}
    for name, parameter in group["params"]:
        parts.setdefault(factors[name], []).append((name, parameter))
    ordered = sorted(parts.items(), key=lambda part: (part[0] != 1, -part[0]))
    return [(factor, {**group, "params": members}) for factor, members in ordered]
