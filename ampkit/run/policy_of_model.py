"""Whether the modules that a policy names are modules of the model, and such as it can act on."""

from __future__ import annotations

from ..base.errors import ConfigError
from ..core.module_path import matches, need_modules
from ..core.policy import Policy
from ..core.policy.recipe import Recipe
from ..nn.module import Module


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
