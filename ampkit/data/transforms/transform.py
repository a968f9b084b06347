"""Transform, the base of all changes of an image, and Compose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.errors import DTypeError, ShapeError
from ...core import random
from ...core.arguments import shown
from ...core.tensor import Tensor
from .pillow import as_array


class Transform:
    """A change of an image: a subclass implements `apply`.

    `transform(image)` takes and returns an array or a Tensor [c, h, w] uint8, or an image of Pillow; random numbers are
    the next draw of the default stream. Raises ShapeError unless there are 1 or 3 channels, DTypeError for another
    kind.
    """

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image` changed by the numbers of `draw`: an array [h, w, c] uint8 or an image of Pillow, whichever comes."""
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def __call__(self, image: Any) -> Any:
        draw = random.next_draw()
        if isinstance(image, Tensor):
            return Tensor(np.ascontiguousarray(self._of_array(image.numpy(force=True), draw)))
        if isinstance(image, np.ndarray):
            return self._of_array(image, draw)
        if not hasattr(image, "getbands"):
            name, got = type(self).__name__, shown(image)
            raise DTypeError(name, "an array or a Tensor [c, h, w] uint8, or an image of Pillow", got)
        return self.apply(image, draw)

    def _of_array(self, image: Any, draw: np.random.Generator) -> Any:
        if image.ndim != 3 or image.shape[0] not in (1, 3) or image.dtype != np.uint8:
            got = f"{image.dtype} {list(image.shape)}"
            raise ShapeError(type(self).__name__, "an image [c, h, w] uint8 of 1 or 3 channels", got)
        return np.moveaxis(as_array(self.apply(np.moveaxis(image, 0, 2), draw)), 2, 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Compose(Transform):
    """The `transforms` one after the other."""

    def __init__(self, transforms: Sequence[Transform]):
        self.transforms = list(transforms)

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image` changed by each in turn."""
        for transform in self.transforms:
            image = transform.apply(image, draw)
        return image
