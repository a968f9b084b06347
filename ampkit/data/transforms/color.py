"""Brightness, contrast, saturation and hue, as Pillow computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .geometry import check_range
from .pillow import as_array, as_pillow, need_pillow
from .transform import Transform


def enhanced(image: Any, kind: str, factor: float) -> Any:
    """An image of Pillow with more or less of "Brightness", "Contrast", "Color" or "Sharpness"; 1 changes nothing."""
    from PIL import ImageEnhance

    return getattr(ImageEnhance, kind)(image).enhance(factor)


def hue_shifted(image: Any, by: float) -> Any:
    """An image of Pillow with its hue turned by `by` of a circle, cut off to steps of 1/255; a gray one unchanged."""
    if image.mode == "L":
        return image
    hue, *others = image.convert("HSV").split()
    steps = int(by * 255) % 256
    turned = hue.point([(value + steps) % 256 for value in range(256)])
    return need_pillow("hue", "turn the hue").merge("HSV", (turned, *others)).convert(image.mode)


class ColorJitter(Transform):
    """An image whose brightness, contrast, saturation and hue are changed by random factors, in random order.

    brightness, contrast, saturation: a number x draws the factor from [max(0, 1 - x), 1 + x], a pair from itself.
    hue: a number x up to 0.5 draws the turn from [-x, x] of a circle, a pair from itself. None changes nothing.
    The formulas are Pillow's (ImageEnhance; hue by HSV in 8 bits), as in torchvision for images of Pillow.
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ):
        self.brightness = _range("brightness", brightness)
        self.contrast = _range("contrast", contrast)
        self.saturation = _range("saturation", saturation)
        self.hue = _range("hue", hue, 0.0, -0.5, 0.5)

    def apply(self, image: Any, draw: np.random.Generator) -> Any:
        """`image` with random changes of its colors."""
        order = draw.permutation(4).tolist()
        bounds = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [None if pair is None else draw.uniform(*pair) for pair in bounds]
        changed = self.adjusted(as_pillow(image, "ColorJitter"), order, factors)
        return as_array(changed) if isinstance(image, np.ndarray) else changed

    @staticmethod
    def adjusted(image: Any, order: Sequence[int], factors: Sequence[float | None]) -> Any:
        """An image of Pillow changed by each factor (brightness, contrast, saturation, hue; None: not) in `order`."""
        for number in order:
            factor = factors[number]
            if factor is not None:
                kind = ("Brightness", "Contrast", "Color", "")[number]
                image = enhanced(image, kind, factor) if kind else hue_shifted(image, factor)
        return image


def _range(
    name: str, given: float | Sequence[float] | None, center: float = 1.0, least: float = 0.0, most: float = math.inf
) -> tuple[float, float] | None:
    """(from, to) of the factor, None where it would change nothing."""
    if given is None:
        return None
    if isinstance(given, (int, float)):
        check_range("ColorJitter", name, (given, given), 0, most)
        given = (max(least, center - given), center + given)
    check_range("ColorJitter", name, given, least, most)
    return None if given[0] == given[1] == center else (float(given[0]), float(given[1]))
