"""Resizing, crops, colors and random operations give torchvision's pixels, which a golden file holds."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import pytest
from peers.torchvision_pixels import GOLDEN, JITTERS, pixels

from ampkit import Tensor
from ampkit.base.errors import ArgumentError, DTypeError, ShapeError
from ampkit.data import transforms
from ampkit.data.transforms.geometry import ResizeToCover, resized

Image = pytest.importorskip("PIL.Image", reason="resizing and colors are Pillow's")
FOUND = {name: bytes.fromhex(text) for name, text in json.loads(Path(GOLDEN).read_text()).items()}
DRAW = np.random.default_rng(0)
# The file's pixels are those of torchvision on Pillow 13, whose resizing rounds otherwise than before.
OFF = 0 if int(importlib.metadata.version("pillow").partition(".")[0]) >= 13 else 1
pytestmark = pytest.mark.cpu


def of(prefix):
    """(name, whether the image is gray, pixels) of every entry whose name begins with `prefix`."""
    cases = [(name, name.rpartition(" ")[2] == "True", value) for name, value in FOUND.items()]
    return [case for case in cases if case[0].startswith(prefix)]


@pytest.mark.parametrize("kind", [transforms.RandAugment, transforms.TrivialAugmentWide])
def test_every_random_operation_gives_torchvisions_pixels(kind):
    operations = {operation.name: operation for operation in kind.OPERATIONS}
    cases = of(kind.__name__)
    assert {name.split()[1] for name, _, _ in cases} == set(operations)
    for name, gray, expected in cases:
        _, operation, number, sign, _ = name.split()
        image = Image.fromarray(pixels(gray))
        by = int(sign) * operations[operation].magnitude(int(number), 31, image)
        assert np.asarray(operations[operation].change(image, by)).tobytes() == expected, name


def test_magnitudes_are_spaced_and_rounded_as_torch_linspace_does():
    operations = {operation.name: operation for operation in transforms.TrivialAugmentWide.OPERATIONS}
    # torch 2.13: torch.linspace(0, 32, 31) and torch.linspace(1, 0, 31), in hexadecimal
    expected = {"TranslateX": {15: "0x1.fffffep+3", 17: "0x1.222222p+4", 24: "0x1.99999ap+4"}}
    expected["Solarize"] = {6: "0x1.99999ap-1", 16: "0x1.dddde0p-2"}
    for name, values in expected.items():
        found = {number: operations[name].magnitude(number, 31, None) for number in values}
        assert found == {number: float.fromhex(value) for number, value in values.items()}


@pytest.mark.parametrize("kind", [transforms.Resize, transforms.CenterCrop])
def test_sizes_and_pixels_are_torchvisions(kind):
    cases = of(kind.__name__)
    assert cases
    for name, gray, expected in cases:
        size = eval(name.removeprefix(kind.__name__).rpartition(" ")[0])
        values = pixels(gray)
        found = np.asarray(kind(size)(Image.fromarray(values)))
        wanted = np.frombuffer(expected, np.uint8).reshape(found.shape)
        assert np.abs(found.astype(int) - wanted).max() <= OFF, name
        array = np.atleast_3d(values).transpose(2, 0, 1)
        assert kind(size)(array).transpose(1, 2, 0).tobytes() == found.tobytes(), name


def test_changed_colors_are_torchvisions():
    for name, gray, expected in of("ColorJitter"):
        order, factors = JITTERS[int(name.split()[1])]
        found = transforms.ColorJitter.adjusted(Image.fromarray(pixels(gray)), order, factors)
        assert np.asarray(found).tobytes() == expected, name


def test_a_smaller_image_is_the_weighted_mean_of_what_each_pixel_covers():
    image = np.random.default_rng(1).integers(0, 256, (40, 60, 3), np.uint8)
    found = transforms.Resize((10, 15))(np.moveaxis(image, 2, 0)).astype(float)

    def weights(before, after):
        centers, scale = (np.arange(after) + 0.5) * before / after, before / after
        distance = np.abs(np.arange(before) + 0.5 - centers[:, None]) / scale
        triangle = np.maximum(0, 1 - distance)
        return triangle / triangle.sum(1, keepdims=True)

    exact = np.einsum("ih,hwc,jw->cij", weights(40, 10), image, weights(60, 15))
    assert np.abs(found - exact).max() < 1.01  # two roundings to 8 bits


def test_an_image_keeps_its_kind_and_its_size_needs_no_pillow(monkeypatch):
    values = np.moveaxis(pixels(), 2, 0)
    crop = transforms.Compose([transforms.Resize(4), transforms.CenterCrop(4)])
    kinds = [crop(values), crop(Tensor(values)), crop(Image.fromarray(pixels()))]
    assert [type(each) for each in kinds[:2]] == [np.ndarray, Tensor]
    assert np.array_equal(kinds[0], kinds[1].numpy())
    assert np.array_equal(kinds[0], np.moveaxis(np.asarray(kinds[2]), 2, 0))
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    assert np.array_equal(transforms.Resize(6)(values), values)
    with pytest.raises(OSError, match="resize: needs Pillow to change images, got none installed"):
        transforms.Resize(4)(values)


@pytest.mark.parametrize(("shape", "size"), [((9, 30), (4, 5)), ((30, 9), (5, 4)), ((4, 5), (4, 5)), ((3, 3), (8, 5))])
def test_an_image_is_resized_to_the_least_that_a_crop_needs(shape, size):
    rows, columns = ResizeToCover(size).apply(np.zeros((*shape, 3), np.uint8), DRAW).shape[:2]
    assert rows >= size[0]
    assert columns >= size[1]
    assert rows == size[0] or columns == size[1]
    assert abs(rows / columns / (shape[0] / shape[1]) - 1) < 0.25


def test_a_window_is_resized_as_the_image_that_it_is_cut_out_as():
    image = Image.fromarray(pixels())
    cut = np.asarray(image.crop((1, 2, 6, 5)).resize((4, 4), Image.BILINEAR))
    assert np.array_equal(np.asarray(resized(image, (4, 4), (1, 2, 6, 5))), cut)
    assert np.array_equal(resized(pixels(), (4, 4), (1, 2, 6, 5)), cut)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transforms.Resize(0), "Resize: needs a size from 1"),
        (lambda: transforms.RandomResizedCrop(4, scale=(0.5, 1.5)), "RandomResizedCrop: needs scale"),
        (lambda: transforms.RandomResizedCrop(4, ratio=(2, 1)), "RandomResizedCrop: needs ratio"),
        (lambda: transforms.ColorJitter(brightness=-1), "ColorJitter: needs brightness"),
        (lambda: transforms.ColorJitter(hue=0.6), "ColorJitter: needs hue"),
        (lambda: transforms.RandAugment(magnitude=31), "RandAugment: needs num_ops from 0, magnitude from 0"),
        (lambda: transforms.TrivialAugmentWide(0), "TrivialAugmentWide: needs num_magnitude_bins from 1"),
        (lambda: transforms.RandomHorizontalFlip(2), "RandomHorizontalFlip: needs p"),
        (lambda: transforms.RandomErasing(p=-1), "RandomErasing: needs p"),
        (lambda: transforms.MixUp(alpha=0), "MixUp: needs alpha above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_what_is_no_image_is_refused():
    with pytest.raises(ShapeError, match=r"Resize: needs an image \[c, h, w\] uint8 of 1 or 3 channels, got uint8"):
        transforms.Resize(4)(np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(ShapeError, match="got float32"):
        transforms.Resize(4)(np.zeros((3, 4, 4), np.float32))
    with pytest.raises(
        DTypeError, match=r"Resize: needs an array or a Tensor \[c, h, w\] uint8, or an image of Pillow"
    ):
        transforms.Resize(4)("a.png")
