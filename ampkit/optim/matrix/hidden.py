"""Which parameters of a model are hidden matrices, those that Muon is for, and which module is its output layer."""

from __future__ import annotations

from typing import Any

from ampkit.base.errors import ArgumentError
from ampkit.nn.module import Module
from ampkit.nn.modules.embedding import Embedding


def hidden_matrices(model: Module) -> tuple[list[Any], list[Any]]:
    """The trained parameters of a model as (hidden matrices, others), each as (name, Parameter) pairs.

    Others are biases and gains, which have fewer than two dimensions, embeddings, and the output layer, see
    `output_layer`. The kernels of convolutions are hidden matrices, [out, all others].
    Raises ArgumentError for a model without parameters to train.
    Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise ArgumentError("hidden_matrices", "a model with parameters to train", f"a {type(model).__name__} without")
    outside = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    outside |= {id(module.weight) for _, module in _products(model)[-1:]}
    hidden = [(name, p) for name, p in trained if p.ndim > 1 and id(p) not in outside]
    taken = {id(p) for _, p in hidden}
    return hidden, [(name, p) for name, p in trained if id(p) not in taken]


def output_layer(model: Module) -> str | None:
    """The path of the model's output layer; None for a model without another layer that multiplies by a weight.

    It is the last module of `named_modules` that has a `weight` of two or more dimensions of its own and is no
    embedding. A head that shares the weight of an embedding is one.
    """
    found = _products(model)
    return found[-1][0] if len(found) > 1 else None


def _products(model: Module) -> list[tuple[str, Any]]:
    weights = [(path, module) for path, module in model.named_modules() if not isinstance(module, Embedding)]
    return [(path, module) for path, module in weights if getattr(getattr(module, "weight", None), "ndim", 0) > 1]


def hidden_groups(model: Module) -> list[dict[str, Any]]:
    """The groups of MuonWithAuxAdam for a model; one of them if the other would be empty."""
    hidden, others = hidden_matrices(model)
    groups = [{"params": hidden, "use_muon": True}, {"params": others, "use_muon": False}]
    return [group for group in groups if group["params"]]
