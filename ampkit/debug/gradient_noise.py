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
from ..core import random
from ..core.arguments import shown
from ..core.autograd.tape import grad
from ..core.dispatch.batching.array import UnmappedError
from ..core.policy import Policy, autocast
from ..core.tensor import Tensor
from ..func import vmap
from ..ops import stack, zeros_like
from ..ops.argument_checks import checked
from .planning import in_force, policy_of
from .repeat.unchanged import need_loss, need_module, unchanged

AT_ONCE = 1 << 28  # bytes of the gradients of as many samples as run at once
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
    policy: Policy | public_dtypes.dtype | DType | str | None = None,
    loss: Callable[..., Tensor] | None = None,
    loss_scale: float | None = None,
) -> GradientNoise:
    """The noise of the gradients of `loss(model, *batch)`, of each sample, under `policy` and in float32.

    batch: a Tensor, or a tuple or list of Tensors with the samples along axis 0, at least two. policy: as debug.plan
    takes it. loss: (model, *batch) -> a Tensor []; it is called with batches of one sample, by `vmap` as many at once
    as give gradients of 256 MiB, and one after the other where it reads values or a recipe quantizes. loss_scale: what
    losses are multiplied by, and gradients divided by; by default 1, and for float16 what a GradScaler comes to from
    65,536. The model is afterwards as it was. Norms and sums are float64.
    Raises ArgumentError for fewer than two samples, no loss, or no Parameter that requires grad, StateError for a
    gradient that is not finite, and what debug.plan raises for the others.
    """
    need_module("debug.gradient_noise", model)
    if not callable(loss):
        raise ArgumentError("debug.gradient_noise", "a loss, (model, *batch) -> a Tensor []", shown(loss))
    active = in_force() if policy is None else policy_of("debug.gradient_noise", policy)
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    count = _samples(parts)
    points = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not points:
        raise ArgumentError("debug.gradient_noise", "a model with Parameters that require grad", "none")
    mine, plain = _Gradients(model, loss, points, active, loss_scale), _Gradients(model, loss, points, None, 1.0)
    found = {name: Noise(count, np.zeros(p.shape)) for name, p in points.items()}
    size = max(1, AT_ONCE // sum(4 * p.numel() for p in points.values()))
    with unchanged(model):
        for first in range(0, count, size):
            samples, start = [part[first : first + size] for part in parts], random.get_rng_state()
            gradients = mine(samples, first)
            random.set_rng_state(start)
            for noise, g, f in zip(found.values(), gradients, plain(samples, first), strict=True):
                noise.mean += g.sum(0) / count
                noise.squares += float(np.vdot(g, g))
                noise.errors += float(np.vdot(g - f, g - f))
    return GradientNoise("float32" if active is None else str(active), found)


def _samples(parts: tuple[Any, ...]) -> int:
    counts = {part.shape[0] if isinstance(part, Tensor) and part.ndim else 0 for part in parts}
    if len(counts) != 1 or min(counts) < 2:
        got = ", ".join(str(n) for n in sorted(counts)) if counts else shown(parts)
        raise ArgumentError("debug.gradient_noise", "Tensors of as many samples each, two or more", got)
    return int(counts.pop())


class _Gradients:
    """The gradients of samples under a policy, or in float32; the loss scale falls as a GradScaler's does."""

    def __init__(self, model: Any, loss: Any, points: dict[str, Any], active: Policy | None, scale: float | None):
        self.model, self.loss, self.points, self.policy = model, loss, points, active
        self.falls = scale is None and active is not None and active.dtype == float16
        self.scale = FLOAT16_SCALE if self.falls else scale or 1.0

    def __call__(self, samples: list[Tensor], first: int) -> list[Any]:
        """Per Parameter, the gradients of the samples, float64 [samples, ...]. first: the place of the first one."""
        while True:
            found = self._at_scale(samples)
            bad = self._not_finite(found)
            if not bad:
                return found
            if not self.falls or self.scale <= 1:
                name, place = bad
                cure = "explain the step with debug.explain, or pass a lower loss_scale"
                got = f"NaN or inf in {name}, sample {first + place}"
                raise StateError("debug.gradient_noise", "finite gradients", got, cure)
            self.scale /= 2

    def _not_finite(self, found: list[Any]) -> tuple[str, int] | None:
        for name, array in zip(self.points, found, strict=True):
            finite = np.isfinite(array).reshape(len(array), -1).all(1)
            if not finite.all():
                return name, int(np.argmin(finite))
        return None

    def _at_scale(self, samples: list[Tensor]) -> list[Any]:
        start = random.get_rng_state()
        try:
            found = vmap(self._of_sample, randomness="different")(*samples)
        except UnmappedError:  # one after the other
            random.set_rng_state(start)
            rows = [self._of_sample(*sample) for sample in zip(*samples, strict=True)]
            found = [stack(list(column)) for column in zip(*rows, strict=True)]
        return [g.detach().numpy(force=True).astype(np.float64) / self.scale for g in found]

    def _of_sample(self, *sample: Tensor) -> tuple[Tensor, ...]:
        given = [part.unsqueeze(0) for part in sample]
        with autocast(enabled=False) if self.policy is None else autocast(policy=self.policy):
            scaled = need_loss("debug.gradient_noise", self.loss(self.model, *given)).float() * self.scale
        points = list(self.points.values())
        found = grad(scaled, points, allow_unused=True)
        return tuple([zeros_like(p) if g is None else g for p, g in zip(points, found, strict=True)])
