"""`nn.quantization`: post-training quantization. Observers see what passes layers, which then compute in int8."""

from .convert import Layout, calibrate, convert, prepare, restore
from .layers import QuantizedConv2d, QuantizedLinear
from .observers import EntropyObserver, HistogramObserver, MinMaxObserver, PercentileObserver
from .post_training import quantize

__all__ = [
    "EntropyObserver", "HistogramObserver", "Layout", "MinMaxObserver", "PercentileObserver", "QuantizedConv2d",
    "QuantizedLinear", "calibrate", "convert", "prepare", "quantize", "restore",
]  # fmt: skip
