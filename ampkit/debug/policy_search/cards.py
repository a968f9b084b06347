"""How fast products in each format are on cards, by those who measured it: published figures, none of them ours."""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """A GPU, the speed of its products by recipe relative to bfloat16, and where the figures stand."""

    name: str
    speeds: dict[str, float]
    source: str


_TE = "Transformer Engine 2, docs/features/low_precision_training: products of a 5B model, quantization included"
CARDS = (
    Card("H200", {"delayed": 1.69, "current": 1.57, "blockwise": 1.41}, _TE),
    Card("B300", {"nvfp4": 2.03, "delayed": 1.61, "mxfp8": 1.44, "current": 1.41}, _TE),
    Card("H200 (step)", {"rowwise": 1.34}, "torchao 0.18, docs/source/workflows/training.md: steps on 2,000 cards"),
    Card("RTX 4090 (step)", {"int8": 1.7}, "torchao 0.18, prototype/quantized_training: tokens per second, Llama2-1B"),
)
