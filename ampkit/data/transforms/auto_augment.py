"""RandAugment and TrivialAugmentWide: random operations of Pillow on an image of 8 bits.

The operations and their magnitudes are those of torchvision; its order of them decides what an index means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import ArgumentError
from .color import enhanced
from .pillow import as_array, as_pillow
from .transform import Transform

_Change = Callable[[Any, float], Any]  # of an image of Pillow by a magnitude


class Operation(NamedTuple):
    """An operation of a random augmentation.

    name: torchvision's. change: changed(image, magnitude). first, last: the magnitudes of the first and the last of the
    bins. signed: whether half of the magnitudes are negative. of_side: which side of the image multiplies them.
    """

    name: str
    change: _Change
    first: float = 0.0
    last: float = 0.0
    signed: bool = False
    of_side: str | None = None

    def magnitude(self, bin: int, bins: int, image: Any) -> float:
        """The magnitude of a bin for an image of Pillow."""
        last = self.last * (getattr(image, self.of_side) if self.of_side else 1)
        value = _spaced(self.first, last, bin, bins)
        return float(round(value)) if self.name == "Posterize" else value


def _spaced(first: float, last: float, index: int, count: int) -> float:
    """Value `index` of `count` from `first` to `last`, evenly spaced, in float32 from the nearer end, rounded once.

    So torch.linspace rounds; a difference in the last bit would change some pixels.
    """
    start, end = np.float32(first), np.float32(last)
    step = (end - start) / np.float32(max(1, count - 1))
    near, steps = (start, index) if index < count // 2 else (end, index - count + 1)
    return float(np.float32(float(near) + float(step) * steps))


def _affine(image: Any, matrix: tuple[float, ...]) -> Any:
    # Pillow's matrix tells for each new pixel where it comes from: AFFINE, NEAREST, black outside.
    return image.transform(image.size, 0, matrix, 0, fillcolor=0 if image.mode == "L" else (0, 0, 0))


def _shear_x(image: Any, by: float) -> Any:
    return _affine(image, (1.0, by, 0.0, 0.0, 1.0, 0.0))


def _shear_y(image: Any, by: float) -> Any:
    return _affine(image, (1.0, 0.0, 0.0, by, 1.0, 0.0))


def _translate_x(image: Any, by: float) -> Any:
    return _affine(image, (1.0, 0.0, float(-int(by)), 0.0, 1.0, 0.0))


def _translate_y(image: Any, by: float) -> Any:
    return _affine(image, (1.0, 0.0, 0.0, 0.0, 1.0, float(-int(by))))


def _rotate(image: Any, degrees: float) -> Any:
    return image.rotate(degrees, 0, fillcolor=0 if image.mode == "L" else (0, 0, 0))


def _enhance(kind: str) -> _Change:
    return lambda image, by: enhanced(image, kind, 1 + by)


def _by_levels(name: str, argument: Callable[[float], Any] | None = None) -> _Change:
    def change(image: Any, magnitude: float) -> Any:
        from PIL import ImageOps

        return getattr(ImageOps, name)(image, *(() if argument is None else (argument(magnitude),)))

    return change


def _operations(
    shear: float, translate: float, side: bool, degrees: float, factor: float, bits: int
) -> list[Operation]:
    """The 14 operations, from which a random augmentation draws, with the largest magnitudes of each."""
    width, height = ("width", "height") if side else (None, None)
    return [
        Operation("Identity", lambda image, magnitude: image),
        Operation("ShearX", _shear_x, 0, shear, True),
        Operation("ShearY", _shear_y, 0, shear, True),
        Operation("TranslateX", _translate_x, 0, translate, True, width),
        Operation("TranslateY", _translate_y, 0, translate, True, height),
        Operation("Rotate", _rotate, 0, degrees, True),
        *(
            Operation(kind, _enhance(kind), 0, factor, True)
            for kind in ("Brightness", "Color", "Contrast", "Sharpness")
        ),
        Operation("Posterize", _by_levels("posterize", int), 8, bits),
        Operation("Solarize", _by_levels("solarize", lambda share: 255 * share), 1, 0),
        Operation("AutoContrast", _by_levels("autocontrast")),
        Operation("Equalize", _by_levels("equalize")),
    ]


class _AutoAugment(Transform):
    OPERATIONS: list[Operation]

    def _changed(self, image: Any, bin: int, bins: int, operation: Operation, draw: np.random.Generator) -> Any:
        magnitude = operation.magnitude(bin, bins, image)
        if operation.signed and draw.random() < 0.5:
            magnitude = -magnitude
        return operation.change(image, magnitude)

    def _random_operation(self, draw: np.random.Generator) -> Operation:
        return self.OPERATIONS[int(draw.integers(len(self.OPERATIONS)))]


class RandAugment(_AutoAugment):
    """`num_ops` random operations on an image, one after the other, all of one magnitude.

    magnitude: the number of a bin, from 0 to num_magnitude_bins - 1; the last is the strongest. Pixels from outside of
    the image are black. Cubuk et al. 2019, arXiv:1909.13719; the operations are torchvision's.
    """

    OPERATIONS = _operations(0.3, 150 / 331, True, 30, 0.9, 4)

    def __init__(self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31):
        if num_ops < 0 or not 0 <= magnitude < num_magnitude_bins:
            needs = "num_ops from 0, magnitude from 0 and below num_magnitude_bins"
            raise ArgumentError("RandAugment", needs, f"{num_ops}, {magnitude} and {num_magnitude_bins}")
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image` changed by random operations."""
        changed = as_pillow(image, "RandAugment")
        for _ in range(self.num_ops):
            operation = self._random_operation(draw)
            changed = self._changed(changed, self.magnitude, self.num_magnitude_bins, operation, draw)
        return as_array(changed) if isinstance(image, np.ndarray) else changed


class TrivialAugmentWide(_AutoAugment):
    """One random operation on an image, of a random magnitude out of `num_magnitude_bins`.

    Mueller and Hutter 2021, arXiv:2103.10158; the operations are torchvision's.
    """

    OPERATIONS = _operations(0.99, 32, False, 135, 0.99, 2)

    def __init__(self, num_magnitude_bins: int = 31):
        if num_magnitude_bins < 1:
            raise ArgumentError("TrivialAugmentWide", "num_magnitude_bins from 1", f"{num_magnitude_bins}")
        self.num_magnitude_bins = num_magnitude_bins

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image` changed by a random operation."""
        changed, operation = as_pillow(image, "TrivialAugmentWide"), self._random_operation(draw)
        bin = int(draw.integers(self.num_magnitude_bins))
        changed = self._changed(changed, bin, self.num_magnitude_bins, operation, draw)
        return as_array(changed) if isinstance(image, np.ndarray) else changed
