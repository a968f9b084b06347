"""CPU kernel of interpolation (interpolate.cpp), forward and backward."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ampkit.backends.cpu.native.arrays import MIN_ELEMENTS, HostArray, supported
from ampkit.backends.cpu.resample import AxisTaps, ImageMap, image_map, resample
from ampkit.base.dtypes import DType
from ampkit.core.autograd.saved import Saved
from ampkit.ops.nn.interpolate import Taps, interpolate_


@lru_cache(64)
def _map(axes: tuple[Taps, ...], transposed: bool = False) -> ImageMap:
    weights = [np.ones(taps.indices.shape) if taps.weights is None else taps.weights for taps in axes]
    found = [AxisTaps(taps.indices, weight, taps.old) for taps, weight in zip(axes, weights, strict=True)]
    return image_map([taps.transposed() for taps in found] if transposed else found)


def _fits(images: HostArray, axes: tuple[Taps, ...], transposed: bool = False) -> bool:
    return supported(images) and images.ndim == len(axes) + 2 and _map(axes, transposed).few_taps


@interpolate_.on("cpu", when=_fits, min_elements=MIN_ELEMENTS)
def interpolate_cpu(input: HostArray, axes: tuple[Taps, ...], *, dtype: DType) -> Any:
    return resample(input, _map(axes), dtype), Saved()


def _backward_fits(dy: HostArray, saved: Saved, needs: Any, axes: tuple[Taps, ...]) -> bool:
    return _fits(dy, axes, transposed=True)


@interpolate_.on_backward("cpu", when=_backward_fits, min_elements=MIN_ELEMENTS)
def interpolate_backward_cpu(dy: HostArray, saved: Saved, needs: Any, axes: tuple[Taps, ...]) -> HostArray:
    return resample(dy, _map(axes, transposed=True), needs[0])
