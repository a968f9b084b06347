"""The noise of a model's gradients: which batch size they support, and how much of the noise is rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base import public_dtypes
from ..base.dtypes import DType, float16
from ..base.errors import ArgumentError, StateError
from ..base.html import ShowsItsText
from ..core.arguments import shown
from ..core.autograd.tape import grad
from ..core.policy import Policy, autocast
from ..core.tensor import Tensor
from ..ops.argument_checks import checked
from .planning import in_force, policy_of
from .repeat.unchanged import need_loss, need_module, unchanged

FLOAT16_SCALE = 2.0**16  # of losses whose gradients are float16, as GradScaler begins


@dataclass
class Noise:
    """Sums over the gradients of samples; all others are made of them.

    samples: how many. mean: the mean gradient. squares: the sum of the squared norms. errors: that of the squared
    distances from float32's.
    """

    samples: int
    mean: Any
    squares: float = 0.0
    errors: float = 0.0

    @property
    def norm(self) -> float:
        """The norm of the gradient itself: that of the mean, without what the noise of these samples adds."""
        square = (self.samples * self._square_of_mean - self.squares / self.samples) / (self.samples - 1)
        return math.sqrt(max(square, 0.0))

    @property
    def deviation(self) -> float:
        """The root of the trace of the samples' covariance: how far a sample's gradient is from the mean."""
        variance = (self.squares / self.samples - self._square_of_mean) * self.samples / (self.samples - 1)
        return math.sqrt(max(variance, 0.0))

    @property
    def scale(self) -> float:
        """The noise scale in samples, deviation^2 / norm^2; infinite where these samples show no gradient beside it."""
        return math.inf if not self.norm else (self.deviation / self.norm) ** 2

    @property
    def rounding(self) -> float:
        """The distance of a sample's gradient from float32's, root mean square, as a share of the deviation."""
        return math.sqrt(self.errors / self.samples) / self.deviation if self.deviation else 0.0

    @property
    def _square_of_mean(self) -> float:
        return float(np.vdot(self.mean, self.mean))


class GradientNoise(ShowsItsText):
    """The noise of the gradients of a batch: of all Parameters together and, in `parameters`, of each by its name.

    scale: the noise scale in samples (McCandlish et al. 2018, arXiv:1812.06162, eq. 2.8). Batches much smaller are
    bound by noise, so that twice the batch saves half the steps; much larger ones gain little. rounding: what 16 bits
    add to a sample's deviation, as a share of it; while it is small, so is what they cost.
    """

    def __init__(self, precision: str, parameters: dict[str, Noise]):
        self.precision, self.parameters = precision, parameters
        found = list(parameters.values())
        mean = np.concatenate([noise.mean.reshape(-1) for noise in found])
        self.all = Noise(found[0].samples, mean, sum(n.squares for n in found), sum(n.errors for n in found))

    @property
    def scale(self) -> float:
        """The noise scale of all Parameters together, in samples."""
        return self.all.scale

    @property
    def rounding(self) -> float:
        """The rounding of all Parameters together, as a share of their deviation."""
        return self.all.rounding

    def __str__(self) -> str:
        rows = {"all": self.all, **self.parameters}
        width = max(map(len, rows))
        lines = [f"gradients of {self.all.samples} samples in {self.precision}, beside float32"]
        lines.append(f"{'':{width}}  {'noise scale':>12} {'norm':>10} {'deviation':>10} {'rounding':>9}")
        for name, noise in rows.items():
            scale = "-" if math.isinf(noise.scale) else f"{noise.scale:,.1f}"
            shares = f"{noise.norm:10.3g} {noise.deviation:10.3g} {noise.rounding:9.2%}"
            lines.append(f"{name:{width}}  {scale:>12} {shares}")
        return "\n".join([*lines, self._in_words()])

    def _in_words(self) -> str:
        if math.isinf(self.scale):
            return "these samples are too few to tell their gradient from its noise"
        most = max(1, round(self.scale))
        return f"batches up to about {most:,} samples save steps as they grow; beyond, they gain little"


@checked
def gradient_noise(
    model: Any,
    batch: Any,
    loss: Callable[..., Tensor],
    policy: Policy | public_dtypes.dtype | DType | str | None = None,
    loss_scale: float | None = None,
) -> GradientNoise:
    """The noise of the gradients of `loss(model, *batch)`, sample by sample, under `policy` and in float32.

    batch: a Tensor, or a tuple or list of Tensors with the samples along axis 0, at least two. loss: (model, *batch) ->
    a Tensor []; it is called with batches of one sample. policy: as debug.plan takes it. loss_scale: what losses are
    multiplied by, and gradients divided by; by default 1, and for float16 what a GradScaler comes to from 65,536. The
    model is afterwards as it was. Norms and sums are float64.
    Raises ArgumentError for fewer than two samples or no Parameter that requires grad, StateError for a gradient that
    is not finite, and what debug.plan raises for the others.
    """
    need_module("debug.gradient_noise", model)
    rule = in_force() if policy is None else policy_of("debug.gradient_noise", policy)
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    count = _samples(parts)
    points = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not points:
        raise ArgumentError("debug.gradient_noise", "a model with Parameters that require grad", "none")
    mine, plain = _Gradients(model, loss, points, rule, loss_scale), _Gradients(model, loss, points, None, 1.0)
    found = {name: Noise(count, np.zeros(p.shape)) for name, p in points.items()}
    with unchanged(model):
        for i in range(count):
            sample = [part[i : i + 1] for part in parts]
            for noise, g, f in zip(found.values(), mine(sample, i), plain(sample, i), strict=True):
                noise.mean += g / count
                noise.squares += float(np.vdot(g, g))
                noise.errors += float(np.vdot(g - f, g - f))
    return GradientNoise("float32" if rule is None else str(rule), found)


def _samples(parts: tuple[Any, ...]) -> int:
    counts = {part.shape[0] if isinstance(part, Tensor) and part.ndim else 0 for part in parts}
    if len(counts) != 1 or min(counts) < 2:
        got = ", ".join(str(n) for n in sorted(counts)) if counts else shown(parts)
        raise ArgumentError("debug.gradient_noise", "Tensors of as many samples each, two or more", got)
    return int(counts.pop())


class _Gradients:
    """The gradients of samples under a policy, or in float32; the loss scale falls as a GradScaler's does."""

    def __init__(self, model: Any, loss: Any, points: dict[str, Any], rule: Policy | None, scale: float | None):
        self.model, self.loss, self.points, self.rule = model, loss, points, rule
        self.falls = scale is None and rule is not None and rule.dtype == float16
        self.scale = FLOAT16_SCALE if self.falls else scale or 1.0

    def __call__(self, sample: list[Tensor], place: int) -> list[Any]:
        while True:
            found = self._at_scale(sample)
            bad = [name for name, array in zip(self.points, found, strict=True) if not np.isfinite(array).all()]
            if not bad:
                return found
            if not self.falls or self.scale <= 1:
                cure = "explain the step with debug.explain, or pass a lower loss_scale"
                got = f"NaN or inf in {bad[0]}, sample {place}"
                raise StateError("debug.gradient_noise", "finite gradients", got, cure)
            self.scale /= 2

    def _at_scale(self, sample: list[Tensor]) -> list[Any]:
        with autocast(enabled=False) if self.rule is None else autocast(policy=self.rule):
            scaled = need_loss("debug.gradient_noise", self.loss(self.model, *sample)).float() * self.scale
        found = grad(scaled, list(self.points.values()), allow_unused=True)
        return [
            np.zeros(p.shape) if g is None else g.detach().numpy(force=True).astype(np.float64) / self.scale
            for p, g in zip(self.points.values(), found, strict=True)
        ]
