"""Which layers read the output of a layer: where all readers are layers in int8, it can stay in codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ampkit.base import observe
from ampkit.core.tensor import Tensor


class Readers:
    """What reads the outputs of observed layers, noted within `noting`.

    A layer's output has the object's identity; layers compute on other tensors over the same memory, so that an op that
    meets the object itself is one outside of the layers.
    """

    def __init__(self) -> None:
        self._layers: dict[int, set[int]] = {}
        self._others: set[int] = set()
        self._made: dict[int, tuple[Tensor, Any]] | None = None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Within the block, forwards are followed."""
        self._made = {}
        try:
            with observe.observing(self._met):
                yield
        finally:
            self._made = None

    def made(self, layer: Any, output: Tensor) -> None:
        """Note the output of a layer, or what stands for it."""
        if self._made is not None:
            self._made[id(output)] = output, layer

    def passed_on(self, given: Tensor, output: Tensor) -> None:
        """Note that `output` is `given` for the layers that read it, as the maxima of codes are codes."""
        if self._made is not None and id(given) in self._made:
            self.made(self._made[id(given)][1], output)

    def read(self, layer: Any, *inputs: Tensor | None) -> None:
        """Note that a layer reads tensors."""
        for one in inputs:
            if self._made is not None and id(one) in self._made:
                self._layers.setdefault(id(self._made[id(one)][1]), set()).add(id(layer))

    def of(self, layer: Any) -> set[int] | None:
        """The ids of the layers that read the output of `layer`; None if something else does, or nothing."""
        return None if id(layer) in self._others else self._layers.get(id(layer))

    def _met(self, event: observe.Event) -> None:
        for operand in event.operands:
            if self._made is not None and id(operand) in self._made and self._made[id(operand)][0] is operand:
                self._others.add(id(self._made[id(operand)][1]))
