"""How fast formats are on cards, and what memory a step takes: figures that others have measured and published."""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """A GPU, and by recipe what was measured on it relative to bfloat16, and where the figures stand.

    speeds: of products, or of whole steps where the name says so. memory: the peak of a step, where it was published.
    """

    name: str
    speeds: dict[str, float]
    source: str
    memory: dict[str, float] = {}  # noqa: RUF012 - no card changes it


_TE = "Transformer Engine 2, docs/features/low_precision_training: products of a 5B model, quantization included"
_AO = "docs/source/workflows/training.md"
_LLAMA = f"torchao, {_AO}: Llama3-8b, FSDP on 8 cards, activation checkpointing"
CARDS = (
    Card("H200", {"delayed": 1.69, "current": 1.57, "blockwise": 1.41}, _TE),
    Card("B300", {"nvfp4": 2.03, "delayed": 1.61, "mxfp8": 1.44, "current": 1.41}, _TE),
    Card("H200 (step)", {"rowwise": 1.34}, f"torchao 0.18, {_AO}: steps on 2,000 cards"),
    Card("H100 (step)", {"current": 1.25, "rowwise": 1.10}, _LLAMA, {"current": 1.0, "rowwise": 1.0}),
    Card(
        "B200 (step)",
        {"current": 1.25, "mxfp8": 1.16, "rowwise": 1.04},
        _LLAMA,
        {"current": 0.99, "mxfp8": 1.0, "rowwise": 1.0},
    ),
    Card("RTX 4090 (step)", {"int8": 1.7}, "torchao 0.18, prototype/quantized_training: tokens per second, Llama2-1B"),
)
