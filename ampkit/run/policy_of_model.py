"""What a policy below 16 bits does with a model: its output layer, and whether the modules that it names exist."""

from __future__ import annotations

from typing import Any

from ..base.errors import ConfigError
from ..core.module_path import matches, need_modules
from ..core.policy import Policy
from ..core.policy.recipe import Recipe
from ..nn.module import Module
from ..nn.module_names import is_below
from ..optim.matrix.hidden import output_layer


def need_modules_of(policy: Policy, model: Module) -> None:
    """Raise ConfigError for a path of policy.modules that no module of `model` has.

    And for one with a recipe whose modules have no weight matrix, such as norms, where it would do nothing.
    """
    paths = dict(model.named_modules())
    need_modules(dict(policy.modules), paths)
    for pattern, found in policy.modules:
        matched = [module for path, module in paths.items() if path and matches(pattern, path)]
        if isinstance(found, Recipe) and not any(weight.ndim > 1 for each in matched for weight in each.parameters()):
            needs = f"modules with a weight matrix, whose products {found.name} quantizes"
            raise ConfigError(f"Policy, modules, {pattern}", needs, f"a {type(matched[0]).__name__}", "leave it out")


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
