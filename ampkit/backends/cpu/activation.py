"""Bodies of the activations: those of several steps run in blocks."""

from __future__ import annotations

from ...ops import activation
from .blocks import in_blocks

for op in (
    activation.elu,
    activation.gelu,
    activation.leaky_relu,
    activation.logsigmoid,
    activation.mish,
    activation.sigmoid,
    activation.silu,
    activation.softplus,
):
    in_blocks(op)
