"""Observers: from the numbers that pass a layer during calibration to the scale and zero point of their codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampkit import backends
from ampkit.base.errors import ArgumentError, NonFiniteError, StateError
from ampkit.ops.quantized.codes import QParams

_LEVELS = 255  # steps between the smallest and the largest code
_BINS = 2048  # on each side of 0
_LEAST = 1e-9  # of a probability, so that a value without a code costs much, and not everything


class MinMaxObserver:
    """The whole range of what it saw; PyTorch's observer of that name. where: what errors name."""

    def __init__(self, where: str = "MinMaxObserver"):
        self.where, self.min_val, self.max_val = where, np.inf, -np.inf

    def __call__(self, x: Any) -> None:
        """See a tensor. Raises NonFiniteError if some value is NaN or infinite."""
        values = backends.backend_of(x.array).to_numpy(x.array) if hasattr(x, "array") else np.asarray(x)
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not np.isfinite(low + high):
            cure = "look for the layer that makes it in float32: ampkit.debug.detect_nonfinite"
            raise NonFiniteError(self.where, "finite activations in calibration", "some that are NaN or infinite", cure)
        self.min_val, self.max_val = min(self.min_val, low), max(self.max_val, high)
        self._count(np.asarray(values, np.float32))

    def calculate_qparams(self) -> QParams:
        """Scale and zero point of uint8 codes for the range, which is widened to hold 0.

        Raises StateError for an observer that saw no data.
        """
        if self.min_val > self.max_val:
            cure = "calibrate with batches that reach this layer, or skip it"
            raise StateError(self.where, "an observer that has seen data", "one that saw none", cure)
        low, high = self._range()
        low, high = min(low, 0.0), max(high, 0.0)
        scale = float(np.float32((high - low) / _LEVELS))
        if scale < np.finfo(np.float32).tiny:
            return QParams(1.0)
        return QParams(scale, int(np.clip(np.rint(-low / scale), 0, _LEVELS)))

    def _count(self, values: Any) -> None:
        pass

    def _range(self) -> tuple[float, float]:
        return self.min_val, self.max_val


class HistogramObserver(MinMaxObserver):
    """Counts of values in bins of one width, a power of two, which doubles where values need it: none is forgotten."""

    def __init__(self, where: str = "HistogramObserver"):
        super().__init__(where)
        self.width, self.counts = 2.0**-40, np.zeros(2 * _BINS, np.int64)

    def _count(self, values: Any) -> None:
        while max(self.max_val, -self.min_val) >= _BINS * self.width:
            self._double()
        at = np.clip(np.floor(values.ravel() / np.float32(self.width)) + _BINS, 0, 2 * _BINS - 1)
        self.counts += np.bincount(at.astype(np.int64), minlength=2 * _BINS)

    def _double(self) -> None:
        # Bins are numbered from 0, so that two neighbours become one on both sides.
        half, counts = _BINS // 2, np.zeros_like(self.counts)
        counts[half : half + _BINS] = self.counts.reshape(-1, 2).sum(1)
        self.width, self.counts = 2 * self.width, counts

    def _edges(self) -> Any:
        return (np.arange(2 * _BINS + 1) - _BINS) * self.width


class PercentileObserver(HistogramObserver):
    """The range without a share of `1 - percentile / 100` of the values at each end, which saturate.

    Wu, Judd, Zhang, Isaev, Micikevicius 2020, arXiv:2004.09602, section 3.4.
    """

    def __init__(self, where: str = "PercentileObserver", percentile: float = 99.99):
        if not 50 < percentile <= 100:
            raise ArgumentError("PercentileObserver", "a percentile above 50, of at most 100", repr(percentile))
        super().__init__(where)
        self.percentile = percentile

    def _range(self) -> tuple[float, float]:
        below, edges = np.cumsum(self.counts), self._edges()
        tail = below[-1] * (1 - self.percentile / 100)
        low = edges[np.searchsorted(below, tail, "right")]
        high = edges[np.searchsorted(below, below[-1] - tail, "left") + 1]
        return max(self.min_val, float(low)), min(self.max_val, float(high))


class EntropyObserver(HistogramObserver):
    """The range, of those [-t, t], whose codes lose the least information: the least KL divergence between the
    distribution of the values, those beyond t counted at its ends, and that of their codes. Zeros do not count: they
    have a code of their own in any range.

    Migacz 2017, "8-bit Inference with TensorRT", GTC.
    """

    _FEWEST, _STEP = 128, 16  # bins of a side: of the narrowest range, and between two that are tried

    def _count(self, values: Any) -> None:
        super()._count(values[values != 0])

    def _range(self) -> tuple[float, float]:
        if not self.counts.any():
            return self.min_val, self.max_val
        widest = int(np.ceil(max(self.max_val, -self.min_val) / self.width))
        tried = [*range(min(self._FEWEST, max(widest, 1)), widest, self._STEP), max(widest, 1)]
        best = min(tried, key=lambda bins: (self._divergence(bins), -bins))
        return max(self.min_val, -best * self.width), min(self.max_val, best * self.width)

    def _divergence(self, bins: int) -> float:
        """The KL divergence for the range of `bins` on each side, as far as there are values."""
        first = _BINS - min(bins, int(np.ceil(max(-self.min_val, 0) / self.width)))
        end = _BINS + min(bins, int(np.floor(max(self.max_val, 0) / self.width)) + 1)
        inside = self.counts[first:end].astype(np.float64)
        clipped = inside.copy()
        clipped[0] += self.counts[:first].sum()
        clipped[-1] += self.counts[end:].sum()
        group = np.arange(len(inside)) * (_LEVELS + 1) // max(len(inside), _LEVELS + 1)
        filled = np.bincount(group, inside > 0)
        coded = (np.bincount(group, inside) / np.maximum(filled, 1))[group] * (inside > 0)
        some = clipped > 0
        p, q = clipped[some] / clipped.sum(), np.maximum(coded[some] / max(coded.sum(), 1), _LEAST)
        return float((p * np.log(p / q)).sum())


OBSERVERS = {"minmax": MinMaxObserver, "percentile": PercentileObserver, "entropy": EntropyObserver}
