"""Bytes of a model's state on a rank, by stage: weights, gradients, AdamW's moments, and copies in 16 bits."""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    """Bytes by what they hold."""

    weights: float
    gradients: float
    moments: float
    copies: float

    @property
    def total(self) -> float:
        return sum(self)


def state(parameters: int, ranks: int, stage: int, autocast: bool = True, largest: float = 0.0) -> State:
    """The state of float32 masters with AdamW: 16 bytes a parameter, and 2 for the copies of 16-bit autocast.

    stage: 0, every rank has all; 1, moments are shared out; 2, gradients too; 3, weights too. largest: the share of the
    parameters in the largest part that is gathered at a time at stage 3, of which the next is there as well.
    """
    shared = [1 if stage < needed else ranks for needed in (3, 2, 1)]
    weights, gradients, moments = (each * parameters / n for each, n in zip((4, 4, 8), shared, strict=True))
    whole = parameters * (1 if stage < 3 else min(1.0, 2 * largest))
    return State(weights, gradients, moments, 2 * whole if autocast else (0 if stage < 3 else 4 * whole))


def gpt_parameters(layers: int, width: int, vocabulary: int, context: int) -> int:
    """Of a GPT-2 with tied embeddings: 12 C^2 + 13 C in a block (Radford et al. 2019)."""
    return layers * (12 * width**2 + 13 * width) + (vocabulary + context + 2) * width


def llama_parameters(layers: int, width: int, hidden: int, vocabulary: int) -> int:
    """Of a LLaMA without grouped heads and with an output layer of its own (Touvron et al. 2023)."""
    return layers * (4 * width**2 + 3 * width * hidden + 2 * width) + 2 * vocabulary * width + width
