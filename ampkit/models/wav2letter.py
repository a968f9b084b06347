"""Wav2Letter, with torchaudio's parameter names.

Collobert, Puhrsch, Synnaeve 2016, arXiv:1609.03193, section 2.2 and figure 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from .. import nn, ops
from ..base.errors import ArgumentError, ShapeError
from ..base.limits import Classes, Features, Size
from ..base.registry import Fault, register_model
from ..core.tensor import Tensor
from ..nn.factory import check_sizes

Input = Literal["waveform", "power_spectrum", "mfcc"]
INPUTS = get_args(Input)
# (kernel, stride, padding) of the convolutions that change the length.
_WAVE, _HALVING, _LAST = (250, 160, 45), (48, 2, 23), (32, 1, 16)


class Wav2Letter(nn.Module):
    """Log-probabilities of letters over time: input [N, num_features, T] -> [N, num_classes, T'].

    26 million parameters for waveforms. input_type: "waveform", which a first convolution of stride 160 turns into
    `width` features (16 kHz to 100 Hz), or features, "power_spectrum" or "mfcc"; a stride of 2 follows. num_features:
    channels of the input, 1 for a waveform. width: channels of the inner convolutions. wide: channels of the last two
    hidden ones. `ctc_loss` takes the output as [T', N, num_classes].
    Raises ArgumentError for another input_type, ShapeError for input that is not [N, num_features, T].
    """

    def __init__(
        self,
        num_classes: Classes = 40,
        input_type: Input = "waveform",
        num_features: Features = 1,
        width: Size = 250,
        wide: Size = 2000,
    ):
        super().__init__()
        check_sizes("Wav2Letter", num_classes=num_classes, num_features=num_features, width=width, wide=wide)
        if input_type not in INPUTS:
            raise ArgumentError("Wav2Letter", f"input_type {', '.join(INPUTS)}", repr(input_type))
        self.num_features = num_features
        wave = input_type == "waveform"
        acoustic = nn.Sequential(
            *_active(width if wave else num_features, width, *_HALVING),
            *(layer for _ in range(7) for layer in _active(width, width, 7, 1, 3)),
            *_active(width, wide, *_LAST),
            *_active(wide, wide, 1),
            *_active(wide, num_classes, 1),
        )
        first = nn.Sequential(*_active(num_features, width, *_WAVE)) if wave else None
        self.acoustic_model = acoustic if first is None else nn.Sequential(first, acoustic)
        self._initialize()

    def _initialize(self) -> None:
        # Eleven ReLUs without norms keep the variance of activations only with this scale (He et al. 2015,
        # arXiv:1502.01852, eq. 10). The positive last bias keeps the logits in the last ReLU's active range, where they
        # have gradients.
        *inner, last = [layer for layer in self.modules() if isinstance(layer, nn.Conv1d)]
        for layer in inner:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        nn.init.constant_(last.bias, 2.0)

    @staticmethod
    def frames(length: int, input_type: str = "waveform") -> int:
        """The length T' of the output for an input of `length`. Raises ShapeError if the input is too short for one."""
        left = length
        for kernel, stride, padding in (*[_WAVE] * (input_type == "waveform"), _HALVING, _LAST):
            left = (left + 2 * padding - kernel) // stride + 1
            if left < 1:
                raise ShapeError("Wav2Letter", "an input long enough for a step of time", f"a length of {length}")
        return left

    @staticmethod
    def step(input_type: str = "waveform") -> int:
        """The total stride: input values per time step of the output."""
        return _HALVING[1] * (_WAVE[1] if input_type == "waveform" else 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[1] != self.num_features:
            raise ShapeError("Wav2Letter", f"input [N, {self.num_features}, T]", f"shape {tuple(x.shape)}")
        return ops.log_softmax(self.acoustic_model(x), 1)


def _active(before: int, after: int, kernel: int, stride: int = 1, padding: int = 0) -> tuple[nn.Module, nn.Module]:
    return nn.Conv1d(before, after, kernel, stride, padding), nn.ReLU()


def _check(model: Any, data: Any) -> Iterator[Fault]:
    if model.input_type == "waveform" and model.num_features != 1:
        yield Fault("model.num_features", "1 for a waveform", str(model.num_features))


wav2letter = Wav2Letter
register_model(Wav2Letter, "speech", name="wav2letter", check=_check)
