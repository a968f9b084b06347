"""Changes of images with the names of torchvision.transforms.v2, random ones by numbers that can be repeated.

    from ampkit.data import transforms

    train = transforms.Compose([transforms.RandomResizedCrop(224), transforms.TrivialAugmentWide()])
    image = train(image)

An image is an array or a Tensor [c, h, w] uint8 with 1 or 3 channels, or an image of Pillow; what comes is of the same
kind. Called so, a random one draws from the default stream, which `ampkit.manual_seed` sets;
`transform.apply(image, draw)` draws from a NumPy Generator. Resizing and colors are Pillow's, so pixels are those of
torchvision for an image of Pillow.
"""

from .auto_augment import RandAugment, TrivialAugmentWide
from .color import ColorJitter
from .erasing import RandomErasing
from .geometry import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from .mix import CutMix, MixUp
from .transform import Compose, Transform

__all__ = [
    "CenterCrop", "ColorJitter", "Compose", "CutMix", "MixUp", "RandAugment", "RandomErasing", "RandomHorizontalFlip",
    "RandomResizedCrop", "Resize", "Transform", "TrivialAugmentWide",
]  # fmt: skip
