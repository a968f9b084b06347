"""Data sets of random images, the same in every process: STAND_IN_IMAGES of them, 64 without that variable."""

from __future__ import annotations

import os

import numpy as np
import torch

COUNT = int(os.environ.get("STAND_IN_IMAGES", "64"))


class _Images(torch.utils.data.Dataset):
    shape: tuple[int, ...] = (32, 32, 3)
    classes = list("0123456789")

    def __init__(self, root=None, *split, transform=None, target_transform=None, **options):
        self.transform, self.target_transform = transform, target_transform
        draw = np.random.default_rng(0)
        self.images = draw.integers(0, 256, (COUNT, *self.shape), np.uint8)
        self.labels = np.arange(COUNT) % len(self.classes)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        image = self.images[index] if self.transform is None else self.transform(self.images[index])
        label = int(self.labels[index])
        return image, label if self.target_transform is None else self.target_transform(label)


class MNIST(_Images):
    """Grey images of 28 x 28 pixels in ten classes; `data` and `targets` are tensors."""

    shape = (28, 28)

    def __init__(self, root=None, train=True, transform=None, target_transform=None, download=False):
        super().__init__(root, transform=transform, target_transform=target_transform)
        self.data, self.targets = torch.from_numpy(self.images), torch.from_numpy(self.labels)


class CIFAR10(_Images):
    """Colour images of 32 x 32 pixels in ten classes."""


class ImageFolder(_Images):
    """Colour images of 64 x 48 pixels, of a folder that need not exist."""

    shape = (64, 48, 3)

    def __init__(self, root=None, transform=None, target_transform=None):
        super().__init__(root, transform=transform, target_transform=target_transform)


class FakeData(_Images):
    """Random images of any size; `size` is cut to COUNT."""

    def __init__(self, size=1000, image_size=(3, 224, 224), num_classes=10, transform=None, target_transform=None):
        self.shape, self.classes = (*image_size[1:], image_size[0]), list(range(num_classes))
        super().__init__(transform=transform, target_transform=target_transform)


FashionMNIST = KMNIST = QMNIST = MNIST
CIFAR100 = CIFAR10
LSUN = ImageNet = Places365 = INaturalist = ImageFolder
