"""SummaryWriter: event files for TensorBoard, in the words of `torch.utils.tensorboard`."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..base.errors import AmpkitError, ArgumentError, ConfigError, ShapeError
from ..core.tensor import Tensor

__all__ = ["SummaryWriter"]

_STRING = 7  # DT_STRING of TensorBoard's tensors


class SummaryWriter:
    """Writes scalars, histograms, images and texts into an event file of `log_dir`; a context manager.

    log_dir: by default `runs/<time>_<host><comment>`. purge_step: TensorBoard drops what an earlier file has from this
    step on. max_queue, flush_secs: how many values, and how long, a thread may hold back. Tensors and arrays of one
    value are numbers, too. Each file is TensorBoard's own format, written by its package.
    Raises ConfigError without that package.
    """

    def __init__(
        self,
        log_dir: str | Path | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
    ):
        default = f"runs/{datetime.now():%b%d_%H-%M-%S}_{socket.gethostname()}{comment}"
        self.log_dir = str(log_dir or default)
        self._proto, make = _tensorboard()
        self._options = purge_step, max_queue, flush_secs, filename_suffix
        self._file: Any = make(self.log_dir, max_queue, flush_secs, filename_suffix)
        self._of_scalars: dict[str, SummaryWriter] = {}
        if purge_step is not None:
            start = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._file.add_event(self._proto.Event(wall_time=time.time(), step=purge_step, session_log=start))

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Add a number, which TensorBoard keeps in float32. new_style, double_precision: taken for PyTorch's sake."""
        self._add(self._proto.Value(tag=tag, simple_value=_number(tag, scalar_value)), global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Add numbers that are drawn into one chart: each goes to a file in a folder of its own, as PyTorch's do."""
        for tag, value in tag_scalar_dict.items():
            folder = f"{self.log_dir}/{main_tag.replace('/', '_')}_{tag}"
            if folder not in self._of_scalars:
                self._of_scalars[folder] = SummaryWriter(folder, "", *self._options)
            self._of_scalars[folder].add_scalar(main_tag, value, global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Add how often values lie in each interval. values: a tensor or an array. bins: as of `numpy.histogram`.

        bins "tensorflow": intervals that grow by a tenth, from 1e-12. max_bins: at most so many, of equal width.
        """
        numbers = _array(values).astype(np.float64).reshape(-1)
        if not numbers.size or not np.isfinite(numbers).all():
            got = "none" if not numbers.size else "NaN or infinity among them"
            raise ArgumentError("add_histogram", f"finite values for {tag!r}", got)
        self._add(self._histogram(tag, numbers, bins, max_bins), global_step, walltime)

    def _histogram(self, tag: str, values: Any, bins: Any, max_bins: int | None) -> Any:
        counts, edges = np.histogram(values, _growing() if isinstance(bins, str) and bins == "tensorflow" else bins)
        if max_bins is not None and len(counts) > max_bins:
            counts, edges = np.histogram(values, max_bins)
        first, last = np.flatnonzero(counts)[[0, -1]]
        limits = edges[first : last + 2]
        buckets = [0.0, *map(float, counts[first : last + 1])]  # an empty one says where they begin
        found = self._proto.Histogram(
            min=values.min(), max=values.max(), num=len(values), sum=values.sum(), sum_squares=values @ values,
            bucket_limit=limits.tolist(), bucket=buckets,
        )  # fmt: skip
        return self._proto.Value(tag=tag, histo=found)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Add a text, which TensorBoard shows as Markdown."""
        shown = self._proto.Metadata(plugin_data=self._proto.Metadata.PluginData(plugin_name="text"))
        tensor = self._proto.Tensor(dtype=_STRING, string_val=[text_string.encode()])
        self._add(self._proto.Value(tag=f"{tag}/text_summary", metadata=shown, tensor=tensor), global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Add an image: floats from 0 to 1, or bytes; dataformats: the order of its axes, C of 1 or 3, "HW" for grey.

        Needs Pillow. Raises ShapeError for other axes.
        """
        self._add_pixels(tag, _pixels("add_image", img_tensor, dataformats), global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Add images of equal size, side by side in one. dataformats: as of `add_image`, with N for the images."""
        array, rest = _array(img_tensor), dataformats.replace("N", "")
        if len(dataformats) != array.ndim or "N" not in dataformats:
            raise ShapeError("add_images", f"images with axes {dataformats}", f"shape {tuple(array.shape)}")
        images = np.moveaxis(array, dataformats.index("N"), 0)
        pixels = np.concatenate([_pixels("add_images", image, rest) for image in images], 1)
        self._add_pixels(tag, pixels, global_step, walltime)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Add a figure of matplotlib, or a list of them side by side, as an image. close: matplotlib drops them."""
        pyplot: Any = import_module("matplotlib.pyplot")
        backend: Any = import_module("matplotlib.backends.backend_agg")
        drawn = []
        for one in figure if isinstance(figure, list) else [figure]:
            canvas = backend.FigureCanvasAgg(one)
            canvas.draw()
            drawn.append(np.asarray(canvas.buffer_rgba())[..., :3])
            if close:
                pyplot.close(one)
        self._add_pixels(tag, np.concatenate(drawn, 1), global_step, walltime)

    def _add_pixels(self, tag: str, pixels: Any, step: int | None, walltime: float | None) -> None:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, format="PNG")
        height, width, colors = pixels.shape
        found = self._proto.Summary.Image(
            height=height, width=width, colorspace=colors, encoded_image_string=file.getvalue()
        )
        self._add(self._proto.Value(tag=tag, image=found), step, walltime)

    def _add(self, value: Any, step: int | None, walltime: float | None) -> None:
        when = time.time() if walltime is None else walltime
        summary = self._proto.Summary(value=[value])
        self._file.add_event(self._proto.Event(wall_time=when, step=step or 0, summary=summary))

    def get_logdir(self) -> str:
        """The folder of the event file."""
        return self.log_dir

    def flush(self) -> None:
        """Bring all values to the disk."""
        for each in (self, *self._of_scalars.values()):
            each._file.flush()

    def close(self) -> None:
        """Flush and close the files."""
        for each in (self, *self._of_scalars.values()):
            each._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Proto:
    """The messages of an event file."""

    def __init__(self) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2

        self.Event: Any = event_pb2.Event
        self.SessionLog: Any = event_pb2.SessionLog
        self.Summary: Any = summary_pb2.Summary
        self.Value: Any = summary_pb2.Summary.Value
        self.Metadata: Any = summary_pb2.SummaryMetadata
        self.Histogram: Any = summary_pb2.HistogramProto
        self.Tensor: Any = tensor_pb2.TensorProto


def _tensorboard() -> tuple[_Proto, Any]:
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        return _Proto(), EventFileWriter
    except ImportError as error:
        cure = "pip install tensorboard"
        raise ConfigError("SummaryWriter", "the package tensorboard", f"{error}", cure) from error


def _array(values: Any) -> Any:
    return values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)


def _pixels(name: str, image: Any, axes: str) -> Any:
    """Bytes [height, width, colors] of an image with these axes."""
    array = _array(image)
    if sorted(axes) not in (["C", "H", "W"], ["H", "W"]) or array.ndim != len(axes):
        raise ShapeError(
            name, "an image with the axes of dataformats, as CHW, HWC or HW", f"{array.shape} and {axes!r}"
        )
    array = array.transpose([axes.index(axis) for axis in "HWC" if axis in axes])
    array = array if array.ndim == 3 else array[:, :, None]
    if array.shape[2] not in (1, 3):
        raise ShapeError(name, "1 or 3 colors", f"{array.shape[2]}")
    return array if array.dtype == np.uint8 else (array.astype(np.float32) * 255).clip(0, 255).astype(np.uint8)


def _growing() -> Any:
    """The edges that TensorBoard's histograms have by default."""
    positive = 1e-12 * 1.1 ** np.arange(774)  # up to 1e20
    return np.concatenate([-positive[::-1], [0.0], positive])


def _number(tag: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, AmpkitError):
        pass
    raise ArgumentError("add_scalar", f"a number for {tag!r}", f"{value!r:.60}")
