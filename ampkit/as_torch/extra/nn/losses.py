"""Losses under `torch` itself, whose arguments are those of PyTorch's kernels: `reduction` is a number there."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from ....nn import functional
from .reduction import name_of

_REQUIRED = Parameter.empty
_SIGNATURES: dict[str, dict[str, Any]] = {
    "binary_cross_entropy_with_logits": {
        "input": _REQUIRED, "target": _REQUIRED, "weight": None, "pos_weight": None, "reduction": 1,
    },
    "cosine_embedding_loss": {
        "input1": _REQUIRED, "input2": _REQUIRED, "target": _REQUIRED, "margin": 0.0, "reduction": 1,
    },
    "ctc_loss": {
        "log_probs": _REQUIRED, "targets": _REQUIRED, "input_lengths": _REQUIRED, "target_lengths": _REQUIRED,
        "blank": 0, "reduction": 1, "zero_infinity": False,
    },
    "hinge_embedding_loss": {"input": _REQUIRED, "target": _REQUIRED, "margin": 1.0, "reduction": 1},
    "kl_div": {"input": _REQUIRED, "target": _REQUIRED, "reduction": 1, "log_target": False},
    "margin_ranking_loss": {
        "input1": _REQUIRED, "input2": _REQUIRED, "target": _REQUIRED, "margin": 0.0, "reduction": 1,
    },
    "poisson_nll_loss": {
        "input": _REQUIRED, "target": _REQUIRED, "log_input": _REQUIRED, "full": _REQUIRED, "eps": _REQUIRED,
        "reduction": _REQUIRED,
    },
    "triplet_margin_loss": {
        "anchor": _REQUIRED, "positive": _REQUIRED, "negative": _REQUIRED, "margin": 1.0, "p": 2.0, "eps": 1e-6,
        "swap": False, "reduction": 1,
    },
}  # fmt: skip


def _loss(name: str, defaults: dict[str, Any]) -> Callable[..., Any]:
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter(key, kind, default=value) for key, value in defaults.items()])
    of_layers = getattr(functional, name)

    def loss(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments["reduction"] = name_of(bound.arguments["reduction"])
        return of_layers(**bound.arguments)

    loss.__name__ = loss.__qualname__ = name
    loss.__doc__ = f"`torch.nn.functional.{name}`, whose reduction may be a number: 0 none, 1 mean, 2 sum."
    loss.__dict__["__signature__"] = signature
    return loss


globals().update({name: _loss(name, defaults) for name, defaults in _SIGNATURES.items()})
