"""Adapters alone in files, in PEFT's layout: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ampkit.base import atomic_file
from ampkit.base.errors import ArgumentError, FileError
from ampkit.base.files import content
from ampkit.core.autograd.grad_mode import no_grad
from ampkit.core.tensor import Tensor
from ampkit.serialization import load, save

from ..module import Module
from ..module_names import is_below
from .config import LoraConfig
from .inject import adapted, inject_adapter_in_model, need_adapted

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of PEFT's wrapper around the model


def save_adapter(model: Module, directory: str | os.PathLike[str]) -> None:
    """Write the adapters of `model`, and what modules_to_save names, to a directory, as PEFT's save_pretrained.

    Raises StateError for a model without adapters, FileError if the directory cannot be written.
    """
    need_adapted("save_adapter", model)
    folder, config = Path(directory), vars(model)["peft_config"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError("save_adapter", "a directory that can be written", f"{str(folder)!r}: {error}") from None
    tensors = {_PREFIX + name: tensor.detach() for name, tensor in _saved(model, config).items()}
    save(tensors, folder / WEIGHTS)
    text = json.dumps(config.to_dict(), indent=2, sort_keys=True)
    atomic_file.write("save_adapter", folder / CONFIG, text.encode())


def _saved(model: Module, config: LoraConfig) -> dict[str, Tensor]:
    prefixes = tuple(f"{path}.lora_" for path in adapted(model))
    state: dict[str, Tensor] = model.state_dict()
    whole = [name for name in state if any(is_below(pattern, name) for pattern in config.modules_to_save)]
    return {name: tensor for name, tensor in state.items() if name.startswith(prefixes) or name in whole}


def load_adapter(model: Module, directory: str | os.PathLike[str]) -> Module:
    """Load adapters that `save_adapter`, or PEFT, wrote; a model without adapters gets those of the file. -> the model.

    Raises FileError for a directory without them, ArgumentError, with no value changed, for names or shapes that do not
    fit, and what `inject_adapter_in_model` raises.
    """
    folder = Path(directory)
    config, tensors = _read(folder)
    if not adapted(model):
        inject_adapter_in_model(config, model)
    wanted = _saved(model, vars(model)["peft_config"])
    given = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    _need_same(folder, wanted, given)
    with no_grad():
        for name, tensor in wanted.items():
            tensor._write(given[name].to(tensor.device).to(tensor.dtype))
    return model


def _read(folder: Path) -> tuple[LoraConfig, dict[str, Tensor]]:
    try:
        values: Any = json.loads(content(folder / CONFIG, "load_adapter"))
    except ValueError:
        raise FileError("load_adapter", "a file in JSON", f"{str(folder / CONFIG)!r}, which is none") from None
    if not isinstance(values, dict):
        raise FileError("load_adapter", "an object in JSON", f"{str(folder / CONFIG)!r}, which holds none")
    return LoraConfig.from_dict("load_adapter", values), load(folder / WEIGHTS)


def _need_same(folder: Path, wanted: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    missing, unexpected = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    misshapen = [n for n in wanted.keys() & given.keys() if tuple(wanted[n].shape) != tuple(given[n].shape)]
    faults = {"missing": missing, "unexpected": unexpected, "misshapen": sorted(misshapen)}
    if any(faults.values()):
        got = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in faults.items() if names)
        raise ArgumentError("load_adapter", f"the adapters of this model in {str(folder)!r}", got)
