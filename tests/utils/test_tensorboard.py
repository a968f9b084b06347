"""SummaryWriter: TensorBoard's own reader finds what was written. Counts are those of torch.utils.tensorboard."""

from __future__ import annotations

import io
import sys
import time

import numpy as np
import pytest

import ampkit
from ampkit.base.errors import ArgumentError, ConfigError, ShapeError
from ampkit.utils.tensorboard import SummaryWriter


def read(folder):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def writer(*arguments, **options):
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    return SummaryWriter(*arguments, **options)


def test_scalars_of_any_kind_of_number_are_read_back(tmp_path):
    with writer(tmp_path) as board:
        for step, value in enumerate([0.5, np.float32(1.5), ampkit.tensor([2.5]), 3]):
            board.add_scalar("loss/train", value, step)
    assert [(e.step, e.value) for e in read(tmp_path).Scalars("loss/train")] == [(0, 0.5), (1, 1.5), (2, 2.5), (3, 3)]


def test_scalars_of_one_chart_have_a_folder_each(tmp_path):
    with writer(tmp_path) as board:
        board.add_scalars("loss", {"train": 1.0, "test": 2.0}, 5)
        board.flush()
    for tag, value in {"train": 1.0, "test": 2.0}.items():
        assert [(e.step, e.value) for e in read(tmp_path / f"loss_{tag}").Scalars("loss")] == [(5, value)]


def test_a_histogram_holds_the_counts_that_pytorch_writes(tmp_path):
    values = ampkit.tensor([-1.0, 0.0, 0.25, 0.25, 2.0])
    with writer(tmp_path) as board:
        board.add_histogram("w", values, 3)
        board.add_histogram("equal", values, 3, bins=3)
    found = read(tmp_path).Histograms("equal")[0].histogram_value
    assert found.bucket == [0, 1, 3, 1] and found.bucket_limit == [-1, 0, 1, 2]
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-1, 2, 5, 1.5, 5.125)
    found = read(tmp_path).Histograms("w")[0].histogram_value
    counts = [(round(limit, 3), count) for limit, count in zip(found.bucket_limit, found.bucket, strict=True) if count]
    assert dict(counts) == {-0.917: 1, 0.0: 1, 0.266: 2, 2.163: 1}


def test_a_text_is_read_back(tmp_path):
    with writer(tmp_path) as board:
        board.add_text("note", "**bold**", 2)
    (event,) = read(tmp_path).Tensors("note/text_summary")
    assert (event.step, event.tensor_proto.string_val[0]) == (2, b"**bold**")


def test_images_of_any_order_of_axes_are_read_back(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="pip install pillow")
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    color = np.stack([grey, 2 * grey, 3 * grey], -1)
    with writer(tmp_path) as board:
        board.add_image("chw", ampkit.tensor(color.transpose(2, 0, 1)), 1)
        board.add_image("hw", grey / 255.0 + 1e-4, dataformats="HW")
        board.add_images("two", np.stack([color, color[::-1]]), dataformats="NHWC")
        for bad, axes in ((grey, "CHW"), (np.zeros((2, 4, 4)), "CHW"), (color, "HWN")):
            with pytest.raises(ShapeError, match="add_image: needs (an image with the axes|1 or 3 colors)"):
                board.add_image("bad", bad, dataformats=axes)
    found = read(tmp_path)
    for tag, pixels in {"chw": color, "hw": grey, "two": np.concatenate([color, color[::-1]], 1)}.items():
        (event,) = found.Images(tag)
        assert (np.asarray(pillow.open(io.BytesIO(event.encoded_image_string))) == pixels).all(), tag
        assert (event.height, event.width) == pixels.shape[:2]


def test_a_purged_step_is_written_again(tmp_path):
    for purge, steps in ((None, (1, 2, 3)), (3, (3, 4))):
        with writer(tmp_path, purge_step=purge) as board:
            for step in steps:
                board.add_scalar("loss", step * (10.0 if purge else 1.0), step)
        time.sleep(1)  # files are read in the order of their names, which begin with the second
    assert [(e.step, e.value) for e in read(tmp_path).Scalars("loss")] == [(1, 1), (2, 2), (3, 30), (4, 40)]


def test_what_is_no_number_raises_at_the_call(tmp_path):
    with writer(tmp_path) as board:
        for bad in ("low", None, ampkit.ones(2)):
            with pytest.raises(ArgumentError, match="add_scalar: needs a number for 'loss'"):
                board.add_scalar("loss", bad)
        with pytest.raises(ArgumentError, match="needs finite values for 'w', got NaN or infinity among them"):
            board.add_histogram("w", [1.0, float("nan")])


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(ConfigError, match=r"needs the package tensorboard, got .*\nhelp: pip install tensorboard"):
        SummaryWriter(tmp_path)
