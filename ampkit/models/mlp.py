"""A multi-layer perceptron."""

from __future__ import annotations

from typing import Any, Literal

from .. import nn
from ..base.errors import ArgumentError
from ..base.limits import Probability, Sizes
from ..base.registry import register_model
from ..core.arguments import holds_items
from ..nn.factory import check_sizes

Activation = Literal["relu", "gelu", "silu", "tanh", "sigmoid"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


def mlp(
    in_features: int = 64,
    hidden: int | Sizes = (256, 256),
    out_features: int = 10,
    activation: Activation = "relu",
    dropout: Probability = 0.0,
) -> nn.Sequential:
    """A multi-layer perceptron: input [N, ...] of in_features values each -> [N, out_features].

    hidden: the width of each hidden layer, or of the only one. activation: between the layers. dropout: the probability
    of a zero behind each activation. The axes after the first are flattened.
    Raises ArgumentError for an unknown activation, or widths that are no positive integers.
    """
    given: Any = hidden
    widths = list(given) if holds_items(given) else [given]
    check_sizes(
        "mlp", in_features=in_features, out_features=out_features, **{f"hidden[{i}]": n for i, n in enumerate(widths)}
    )
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ArgumentError("mlp", f"activation {', '.join(ACTIVATIONS)}", repr(activation))
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip([in_features, *widths], widths, strict=False):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
        layers += [dropped] if (dropped := nn.Dropout(dropout)).p else []
    return nn.Sequential(*layers, nn.Linear(([in_features, *widths])[-1], out_features))


register_model(mlp, "images", "rows")
