"""`python -m tests.peers.torchvision_pixels` writes tests/golden/torchvision.json: what torchvision makes of an image.

It needs torchvision and Pillow. tests/data/transforms compares ampkit's transforms with it, pixel by pixel.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parents[1] / "golden" / "torchvision.json"
BINS = (7, 30)  # of the magnitudes
SIZES = (4, 5, (3, 9), (8, 2))
JITTERS = [
    ((0, 1, 2, 3), (0.5, 1.7, 0.3, 0.2)),
    ((3, 1, 0, 2), (1.9, 0.4, 1.6, -0.45)),
    ((2, 3, 1, 0), (0.0, 1.1, 2.0, 0.5)),
]


def pixels(gray: bool = False) -> np.ndarray:
    """The image that everything is done to: [6, 7, 3] uint8, or [6, 7]."""
    draw = np.random.RandomState(0)
    values = draw.randint(0, 256, (6, 7, 3)) // 2 + np.arange(7)[:, None] * 18
    return values.astype(np.uint8)[..., 0] if gray else values.astype(np.uint8)


def main() -> None:
    """Write the golden file."""
    import torch
    from PIL import Image
    from torchvision.transforms import v2

    found: dict[str, str] = {}

    def add(name: str, image: Image.Image) -> None:
        found[name] = np.asarray(image).tobytes().hex()

    for gray in (False, True):
        image = Image.fromarray(pixels(gray))
        for kind in (v2.RandAugment, v2.TrivialAugmentWide):
            made = kind()
            for name, (magnitudes, signed) in made._AUGMENTATION_SPACE.items():
                steps = magnitudes(31, image.height, image.width)
                for number in (0,) if steps is None else BINS:
                    for sign in (1, -1) if signed else (1,):
                        by = 0.0 if steps is None else sign * float(steps[number])
                        changed = made._apply_image_or_video_transform(image, name, by, "nearest", made._fill)
                        add(f"{kind.__name__} {name} {number} {sign} {gray}", changed)
        for size in SIZES:
            add(f"Resize {size} {gray}", v2.Resize(size)(image))
            add(f"CenterCrop {size} {gray}", v2.CenterCrop(size)(image))
        for number, (order, factors) in enumerate(JITTERS):
            names = [f"{name}_factor" for name in ("brightness", "contrast", "saturation", "hue")]
            words = {"fn_idx": torch.tensor(order), **dict(zip(names, factors, strict=True))}
            add(f"ColorJitter {number} {gray}", v2.ColorJitter(1, 1, 1, 0.5).transform(image, words))
    GOLDEN.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
