"""Give layers of a model their low-rank products, and merge these into the weights."""

from __future__ import annotations

from ampkit.base.errors import ArgumentError, StateError
from ampkit.core.module_path import matches

from ..module import Module
from ..module_names import is_below, need_matches, no_match
from ..modules.conv import Conv2d
from ..modules.linear import Linear
from ..utils.freezing import keep_in_eval
from .config import ALL_LINEAR, LoraConfig
from .layers import ADAPTED, LoraConv2d, LoraLinear


def inject_adapter_in_model(peft_config: LoraConfig, model: Module) -> Module:
    """Adapt the target modules of `model` in place, and freeze all parameters but the new ones; returns the model.

    A target keeps its weight and bias under their names, so that `state_dict` loads weights as before. What
    modules_to_save names is not frozen. The model computes at first what it did. Batch norms that are frozen stay in
    eval mode, as by `nn.utils.freeze`.
    Raises ConfigError for a target that names no module, ArgumentError for one that is no Linear or Conv2d of groups 1
    or whose weight another module shares, and StateError for a model that has adapters; nothing is changed then.
    """
    where, paths = "inject_adapter_in_model", {path: module for path, module in model.named_modules() if path}
    if adapted(model):
        raise StateError(where, "a model without adapters", "one that has some", "call merge_and_unload before")
    need_matches(where, "modules_to_save of the model", peft_config.modules_to_save, paths)
    targets = _targets(peft_config, paths)
    for path, module in targets.items():
        _need_adaptable(path, module, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = _is_saved(peft_config, name)
    keep_in_eval(module for path, module in paths.items() if not _is_saved(peft_config, path))
    for module in targets.values():
        module.__class__ = ADAPTED[type(module)]
        module.adapt(peft_config)
        module.train(module.training)
    vars(model)["peft_config"] = peft_config
    return model


def adapted(model: Module) -> dict[str, LoraLinear | LoraConv2d]:
    """The adapted layers of a model by path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, (LoraLinear, LoraConv2d))}


def merge_and_unload(model: Module) -> Module:
    """Put each low-rank product into its weight, in place; returns the model, whose layers are again what they were.

    The sum is computed in float64 and rounded once. Which parameters are frozen does not change.
    Raises StateError for a model without adapters.
    """
    found = need_adapted("merge_and_unload", model)
    for module in found.values():
        module.merge()
    vars(model).pop("peft_config", None)
    return model


def need_adapted(where: str, model: Module) -> dict[str, LoraLinear | LoraConv2d]:
    """`adapted`; raises StateError if there are none."""
    if not (found := adapted(model)):
        raise StateError(where, "a model with adapters", "one without", "call inject_adapter_in_model before")
    return found


def _targets(config: LoraConfig, paths: dict[str, Module]) -> dict[str, Module]:
    where, needs = "LoraConfig", "target_modules of the model"
    if config.target_modules == ALL_LINEAR:
        linear = {path: module for path, module in paths.items() if type(module) is Linear}
        if len(linear) < 2:
            raise ArgumentError(where, "a model with Linear layers before its last", f"{len(linear)}")
        return dict(list(linear.items())[:-1])
    found: dict[str, Module] = {}
    for target in config.target_modules:
        named = {path: module for path, module in paths.items() if _is_named(target, path)}
        if not named:
            ends = [path.rpartition(".")[2] for path in paths]
            raise no_match(where, needs, target, ends if "." not in target else paths)
        found |= named
    return {path: module for path, module in paths.items() if path in found}


def _is_saved(config: LoraConfig, name: str) -> bool:
    return any(is_below(pattern, name) for pattern in config.modules_to_save)


def _is_named(target: str, path: str) -> bool:
    return matches(target, path) or path.endswith(f".{target}")


def _need_adaptable(path: str, module: Module, model: Module) -> None:
    where = "inject_adapter_in_model"
    if type(module) not in ADAPTED or (type(module) is Conv2d and module.groups != 1):
        got = f"{path!r}, {type(module).__name__}{' of several groups' if type(module) is Conv2d else ''}"
        raise ArgumentError(where, "target modules that are Linear, or Conv2d with groups=1", got)
    holders = [other for other in model.modules() if other.__dict__["_parameters"].get("weight") is module.weight]
    if len(holders) > 1:
        cure = "leave it out of target_modules"
        raise ArgumentError(where, "a weight that no other module shares", f"that of {path!r}", cure)
