"""Sampled steps added up, and what their numbers recommend."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..amp import exponents
from .range_rows import Range, Sample, Totals, Updates, ranges_of
from .range_words import recommendations


class RangeTotals:
    """The ranges and updates of samples, added up over their steps."""

    def __init__(self) -> None:
        self._ranges, self._updates = Totals(exponents.SIZE, exponents.LARGEST), Totals(4)
        self._scales: dict[Any, float] = {}  # the latest of each range

    def include(self, sample: Sample) -> None:
        """Count a sample, without keeping it."""
        self._ranges.add(sample.keys, sample.counts)
        self._scales.update(zip(sample.keys, sample.scales, strict=True))
        updates = [(u.size, u.changed, u.float16, u.bfloat16) for u in sample.updates]
        self._updates.add([u.path for u in sample.updates], np.reshape(np.array(updates, np.int64), (-1, 4)))

    def ranges(self) -> list[Range]:
        """Per kind, layer, op and dtype, the values of all samples together, with the latest loss scale."""
        return ranges_of(self._scales, self._scales.values(), self._ranges.counts)

    def updates(self) -> list[Updates]:
        """Per parameter, the updates of all samples together."""
        rows = zip(self._updates.places, self._updates.counts.tolist(), strict=True)
        return [Updates(path, *counts) for path, counts in rows]

    def recommendations(self) -> list[str]:
        """What the numbers recommend, the most important first; empty if nothing is lost."""
        return recommendations(self.ranges(), self.updates())
