"""The 1,797 handwritten digits of UCI, 8 x 8 pixels, shipped with the package.

Alpaydin and Kaynak 1998, doi 10.24432/C50P49. Licence and citation: DIGITS_LICENSE.md, beside this file.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.errors import check_choice
from ..base.registry import Splits, register_dataset

SHAPE = (1, 8, 8)
CLASSES = 10
_SEED = 0
_DARKEST = 16  # a pixel counts the set pixels of a 4 x 4 block of the scan


def load(split: Literal["train", "test"] = "train") -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The training split (1,437 images) or the test split (360 images) of the digits.

    -> (images [n, 1, 8, 8] float32 in [0, 1], labels [n] int64 in 0..9), in the order of the file.
    The split is stratified and fixed: sorted by label and shuffled within a label (seed 0), every fifth image
    is a test image. The same people wrote the digits of both splits.
    Raises ArgumentError for another split.
    """
    check_choice("digits.load", "split", split, "train", "test")
    images, labels = _read()
    chosen = _is_test(labels) == (split == "test")
    scaled = images[chosen].reshape(-1, *SHAPE) / np.float32(_DARKEST)
    return scaled, labels[chosen].astype(np.int64)


def _read() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    path = resources.files(__package__) / "digits.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


def _is_test(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each image is a test image. [n] -> [n] bool."""
    # RandomState and not Generator: NumPy promises that its numbers never change.
    shuffled = np.random.RandomState(_SEED).permutation(len(labels))
    test = np.zeros(len(labels), bool)
    test[np.lexsort((shuffled, labels))[::5]] = True
    return test


def load_splits() -> Splits:
    """The handwritten digits shipped with ampkit, 8 x 8 pixels."""
    return Splits(load("train"), load("test"))


register_dataset("digits", load_splits, "images", "arrays", constants={"shape": SHAPE, "classes": CLASSES})
