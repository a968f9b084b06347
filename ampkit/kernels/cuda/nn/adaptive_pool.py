"""CUDA kernels of adaptive pooling over images and volumes; see `pool`."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

import numpy as np

from ampkit.backends.cuda.launch import elementwise
from ampkit.backends.cuda.launch.reduction import Finish, reduced
from ampkit.base.conv_geometry import ConvGeometry
from ampkit.base.dtypes import Array, DType
from ampkit.base.errors import UnsupportedError
from ampkit.kernels.shared.pool import register_adaptive_mean, register_adaptive_places
from ampkit.ops.nn import adaptive_pool

from ..pointwise import LAUNCHER
from .pool import POOLING, adaptive_geometry, fits, gradient, max_indices, pooled


def _means(images: Array, geometry: ConvGeometry, dtype: DType) -> Array:
    size = geometry.input_size
    if max(geometry.output_size) == 1:
        with suppress(UnsupportedError):  # of an array with gaps
            return reduced("Add", images, tuple(range(-len(size), 0)), True, dtype, Finish(prod(size)))
    return pooled("avg_pool", images, geometry, dtype, adaptive=True)[0]


def _means_gradient(dy: Array, geometry: ConvGeometry, dtype: DType, last: bool | None) -> Array:
    size = geometry.input_size
    if max(geometry.output_size) > 1:
        return gradient("avg_pool", dy, geometry, dtype, last, adaptive=True)
    order = (0, *range(2, dy.ndim), 1) if last else tuple(range(dy.ndim))
    shape = tuple([(*dy.shape[:2], *size)[axis] for axis in order])
    dx = elementwise.forward("Div", (np.broadcast_to(dy.transpose(order), shape), float(prod(size))), dtype)
    return dx.transpose(np.argsort(order).tolist())


_POOLING = POOLING._replace(means=_means, means_gradient=_means_gradient)
register_adaptive_mean(LAUNCHER, _POOLING, adaptive_geometry, adaptive_pool.adaptive_avg_pool2d, 2)
register_adaptive_mean(LAUNCHER, _POOLING, adaptive_geometry, adaptive_pool.adaptive_avg_pool3d, 3)


def _places(images: Array, output_size: Any) -> Array:
    return max_indices(images, adaptive_geometry(images.shape[2:], output_size))


register_adaptive_places(LAUNCHER, _places, fits)
