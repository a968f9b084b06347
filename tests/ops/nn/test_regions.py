"""nms and roi_align against their definitions, written out in float64."""

from __future__ import annotations

import numpy as np
import pytest

import ampkit
from ampkit import ArgumentError, DTypeError, RangeError, ShapeError, ops, tensor
from ampkit.autograd import grad


def boxes_of(random, count, size):
    corners = random.uniform(0, size, (count, 4))
    corners[:, 2:] = corners[:, :2] + random.uniform(0, size / 2, (count, 2))
    return corners


def overlap(a, b):
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    shared = np.prod(np.maximum(sides, 0))
    return shared / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
def test_a_box_stays_unless_one_that_stays_overlaps_it_by_more(threshold):
    random = np.random.default_rng(0)
    boxes, scores = boxes_of(random, 60, 20), random.integers(0, 20, 60) / 20.0  # with equal scores
    kept = []
    for i in sorted(range(60), key=lambda i: -scores[i]):
        if all(overlap(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    for dtype in ("float64", "float32"):
        found = ops.nms(tensor(boxes, dtype=dtype), tensor(scores, dtype=dtype), threshold)
        assert found.tolist() == kept and found.dtype == ampkit.int64


def test_no_boxes_and_boxes_without_an_area():
    assert ops.nms(tensor(np.zeros((0, 4))), tensor(np.zeros(0)), 0.5).tolist() == []
    assert ops.nms(tensor(np.zeros((2, 4))), tensor([0.1, 0.2]), 0.5).tolist() == [1, 0]
    assert ops.roi_align(ampkit.ones(1, 2, 4, 4), ampkit.zeros(0, 5), 3).shape == (0, 2, 3, 3)


def sampled(image, y, x):
    """`image` [C, H, W] at a point: bilinear, up to one pixel outside as on the edge, beyond it 0."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(image))
    y, x = np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = image[:, top, left] * (left + 1 - x) + image[:, top, right] * (x - left)
    lower = image[:, bottom, left] * (left + 1 - x) + image[:, bottom, right] * (x - left)
    return upper * (top + 1 - y) + lower * (y - top)


def aligned_region(image, box, size, scale, ratio, aligned):
    x1, y1, x2, y2 = box * scale - (0.5 if aligned else 0.0)
    extents = [y2 - y1, x2 - x1] if aligned else [max(y2 - y1, 1), max(x2 - x1, 1)]
    cells = [extent / n for extent, n in zip(extents, size, strict=True)]
    counts = [ratio if ratio > 0 else int(np.ceil(cell)) for cell in cells]
    out = np.zeros((len(image), *size))
    for i, j in np.ndindex(*size):
        for a, b in np.ndindex(*counts):
            y, x = y1 + (i + (a + 0.5) / counts[0]) * cells[0], x1 + (j + (b + 0.5) / counts[1]) * cells[1]
            out[:, i, j] += sampled(image, y, x) / np.prod(counts)
    return out


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("scale", "ratio"), [(1.0, -1), (0.25, 2), (1.5, 0)])
def test_features_of_a_box_are_means_of_bilinear_samples(aligned, scale, ratio):
    random = np.random.default_rng(1)
    images, boxes = random.standard_normal((3, 2, 6, 8)), boxes_of(random, 5, 7)
    boxes[1] = [-3, -2, 4, 5]  # partly outside
    numbers = np.array([2, 0, 2, 0, 0])
    wanted = [aligned_region(images[n], b, (3, 2), scale, ratio, aligned) for n, b in zip(numbers, boxes, strict=True)]
    x = tensor(images, dtype="float64", requires_grad=True)
    found = ops.roi_align(x, tensor(np.c_[numbers, boxes], dtype="float64"), (3, 2), scale, ratio, aligned)
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-12, atol=1e-12)
    dy, step = random.standard_normal(found.shape), random.standard_normal(images.shape)
    (dx,) = grad([found], [x], [tensor(dy, dtype="float64")])
    moved = ops.roi_align(x + tensor(step, dtype="float64"), tensor(np.c_[numbers, boxes], dtype="float64"), (3, 2),
                          scale, ratio, aligned)  # fmt: skip
    assert np.sum(dx.numpy() * step) == pytest.approx(np.sum((moved - found).detach().numpy() * dy))  # it is linear


def test_lists_of_boxes_and_16_bits():
    random = np.random.default_rng(2)
    x, lists = tensor(random.standard_normal((2, 3, 5, 5)), dtype="float32"), [boxes_of(random, n, 4) for n in (2, 1)]
    boxes = [tensor(each, dtype="float32") for each in lists]
    numbered = tensor(np.c_[[0, 0, 1], np.concatenate(lists)], dtype="float32")
    whole = ops.roi_align(x, numbered, 2)
    assert ampkit.equal(ops.roi_align(x, boxes, [2, 2]), whole)
    with ampkit.autocast(dtype=ampkit.bfloat16):
        assert ampkit.equal(ops.roi_align(x, boxes, 2), whole)  # computed in float32, as without autocast
        narrow = ops.roi_align(x.bfloat16(), boxes, 2)
    assert narrow.dtype == ampkit.bfloat16
    np.testing.assert_allclose(narrow.float().numpy(), whole.numpy(), atol=0.03)


X, B = ampkit.ones(2, 1, 3, 3), ampkit.zeros(1, 5)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ops.nms(X, B, 0.5), ShapeError, r"needs boxes \[N, 4\] and scores \[N\]"),
        (lambda: ops.nms(ampkit.ones(2, 4), ampkit.ones(3), 0.5), ShapeError, r"got \[2, 4\] and \[3\]"),
        (lambda: ops.roi_align(X[0], B, 2), ShapeError, r"got \[1, 3, 3\] and \[1, 5\]"),
        (lambda: ops.roi_align(X, [B], 2), ShapeError, r"a list of boxes \[L, 4\], got \[\[1, 5\]\]"),
        (lambda: ops.roi_align(X, B + 2, 2), RangeError, "needs images from 0 to 1, got 2 to 2"),
        (lambda: ops.roi_align(X.long(), B, 2), DTypeError, "a floating-point input, got int64"),
        (lambda: ops.roi_align(X, B, 0), ArgumentError, "output_size of at least 1, got 0"),
    ],
    ids=["nms of images", "scores", "an image", "list", "image 2", "int64", "size 0"],
)
def test_other_arguments_raise(call, error, says):
    with pytest.raises(error, match=says):
        call()
