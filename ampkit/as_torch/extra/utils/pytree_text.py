"""Structures of `torch.utils._pytree` as text: JSON, as PyTorch writes it."""

from __future__ import annotations

import builtins
import json
from collections import OrderedDict, defaultdict, deque
from typing import Any

from .pytree import SUPPORTED_NODES, LeafSpec, TreeSpec

__all__ = ["treespec_dumps", "treespec_loads"]

_PROTOCOL = 1
_NAMES = {
    list: "builtins.list", tuple: "builtins.tuple", dict: "builtins.dict", OrderedDict: "collections.OrderedDict",
    defaultdict: "collections.defaultdict", deque: "collections.deque",
}  # fmt: skip


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """The structure as text.

    Raises NotImplementedError for a container that was registered without `serialized_type_name`, ValueError for
    another protocol than 1.
    """
    _need_protocol(_PROTOCOL if protocol is None else protocol)
    return json.dumps((_PROTOCOL, _as_json(treespec)))


def treespec_loads(serialized: str) -> TreeSpec:
    """The structure that `treespec_dumps` wrote. Raises NotImplementedError for a container that nobody registered."""
    protocol, found = json.loads(serialized)
    _need_protocol(protocol)
    return _from_json(found)


def _need_protocol(protocol: Any) -> None:
    if protocol != _PROTOCOL:
        raise ValueError(f"treespec: needs protocol {_PROTOCOL}, got {protocol}")


def _as_json(spec: TreeSpec) -> dict[str, Any]:
    children = [_as_json(child) for child in spec.children_specs]
    if spec.type is None:
        return {"type": None, "context": None, "children_spec": children}
    node = SUPPORTED_NODES[spec.type]
    name = _NAMES.get(spec.type) or node.serialized_type_name
    if name is None:
        got = getattr(spec.type, "__name__", spec.type)
        raise NotImplementedError(f"treespec_dumps: {got} is registered without serialized_type_name")
    context: Any
    if spec.type is defaultdict:
        factory, keys = spec.context
        names = {"default_factory_module": factory.__module__, "default_factory_name": factory.__qualname__}
        context = {**names, "dict_context": keys}
    else:
        context = (node.to_dumpable_context or json.dumps)(spec.context)
    return {"type": name, "context": context, "children_spec": children}


def _from_json(found: dict[str, Any]) -> TreeSpec:
    name, context = found["type"], found["context"]
    if name is None:
        return LeafSpec()
    kinds = {text: kind for kind, text in _NAMES.items()}
    kinds |= {node.serialized_type_name: kind for kind, node in SUPPORTED_NODES.items() if node.serialized_type_name}
    if name not in kinds:
        raise NotImplementedError(f"treespec_loads: {name} is not registered")
    kind = kinds[name]
    if kind is defaultdict:
        if context["default_factory_module"] != "builtins":  # text is no reason to import a module
            raise NotImplementedError(f"treespec_loads: a defaultdict of {context['default_factory_name']}")
        parsed: Any = [getattr(builtins, context["default_factory_name"]), context["dict_context"]]
    else:
        parsed = (SUPPORTED_NODES[kind].from_dumpable_context or json.loads)(context)
    return TreeSpec(kind, parsed, [_from_json(child) for child in found["children_spec"]])
