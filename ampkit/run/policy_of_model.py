"""What a policy below 16 bits does with a model: its output layer, and whether the modules that it names exist."""

from __future__ import annotations

from typing import Any

from ..base.errors import ConfigError
from ..core.module_path import need_modules
from ..core.policy import Policy, need_products
from ..nn.module import Module
from ..nn.module_names import is_below
from ..optim.matrix.hidden import output_layer


def need_modules_of(policy: Policy, model: Module) -> None:
    """Raise ConfigError for a path of policy.modules that no module of `model` has.

    And for one with a recipe whose modules have no weight matrix, such as norms, where it would do nothing.
    """
    patterns = dict(policy.modules)
    need_modules(patterns, dict(model.named_modules()))
    need_products([policy], patterns, model)


def output_layer_in_16_bits(policy: Policy, model: Module) -> dict[str, Any]:
    """An entry for the policy's `modules` that keeps the output layer of `model` out of the policy's recipe.

    Empty for a policy without a recipe, and where `modules` has an entry for that layer or a module above it.
    Raises ConfigError for a model that has no other layer to quantize.
    """
    if policy.recipe is None:
        return {}
    path = output_layer(model)
    if path is None:
        needs = f"recipe, as the products of the output layer are the only ones that {policy.recipe.name} can quantize"
        raise ConfigError("amp.output_layer", needs, "low")
    return {} if any(is_below(pattern, path) for pattern, _ in policy.modules) else {path: policy.dtype}
