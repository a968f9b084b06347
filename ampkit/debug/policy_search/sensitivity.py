"""What 16 bits change in the loss and the gradients of a model, on the same batch and random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from ...base.dtypes import float16, float32
from ...base.errors import DTypeError, NonFiniteError
from ...core.autograd.tape import grad
from ...core.policy import Policy, autocast
from ...core.tensor import Tensor
from ..repeat.unchanged import need_loss, need_module, unchanged

_AVERAGED = 19  # batches: (1 + m) / (1 - m) for a momentum m, or beta of Adam, of 0.9
_SCALES = (65536.0, 4096.0, 256.0, 16.0, 1.0)

Loss = Callable[..., Tensor]  # (model, *batch) -> the mean loss []


class Sensitivity(NamedTuple):
    """How far a policy is from float32 over some batches.

    loss: |loss - loss in float32| / |loss in float32|, the mean. gradient: the L2 norm of the difference of all
    parameters' gradients, unscaled, relative to that of the gradient in float32, the root mean square. Infinite where
    a value is not finite.
    """

    loss: float
    gradient: float

    @property
    def error(self) -> float:
        """The relative error of the loss that training under the policy is predicted to have.

        The error of the loss itself, and the share of the descent that is lost. Roundings are close to independent of
        the gradient g: a step along g + d with |d| = r |g| has a cosine of 1 / sqrt(1 + r^2) to g, and adds r^2 to the
        second-order term, both of order r^2. They are independent from batch to batch too, and a step follows the mean
        over many, of _AVERAGED with the usual momentum: what is left of r^2 is that part of it.
        """
        return self.loss + self.gradient**2 / _AVERAGED


class Gradients(NamedTuple):
    """The loss of a batch and `scale` times its gradients, arrays by parameter or None where there is none."""

    loss: float
    arrays: list[Any]
    scale: float

    def square(self) -> float:
        """The squared L2 norm of the gradients."""
        return sum(_square(array, self.scale) for array in self.arrays if array is not None)

    def differences(self, other: Gradients) -> tuple[float, float]:
        """|loss - other loss| / |loss| and |gradient - other gradient|^2 / |gradient|^2; infinite if not finite."""
        pairs = zip(self.arrays, other.arrays, strict=True)
        above = sum(_square(b, other.scale, a, self.scale) for a, b in pairs if a is not None and b is not None)
        loss, below = abs(self.loss - other.loss), self.square()
        if not math.isfinite(loss) or not math.isfinite(above):
            return math.inf, math.inf
        return loss / abs(self.loss) if self.loss else loss, above / below if below else above


def _square(array: Any, scale: float, other: Any = 0.0, other_scale: float = 1.0) -> float:
    # The sum of (array / scale - other / other_scale)^2, added in float64.
    with np.errstate(all="ignore"):  # what is not finite is an answer here
        difference = array / scale - other / other_scale
        return float((difference * difference).sum(dtype=np.float64))


class Evaluation:
    """Losses and gradients of `model` under policies, repeatable: see `unchanged`.

    loss: (model, *batch) -> Tensor []. Raises ArgumentError for a model that is no module, DTypeError for parameters
    that are not float32.
    """

    def __init__(self, model: Any, loss: Loss):
        need_module("debug.tune", model)
        self.model, self.loss = model, loss
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        wide = next((p for p in self.parameters if p.array.dtype != float32), None)
        if wide is not None:
            cure = "keep the parameters in float32: autocast casts them (amp.parameters=float32 in a recipe)"
            raise DTypeError("debug.tune", "parameters in float32", wide.array.dtype.name, cure)

    def gradients(self, batch: Sequence[Any], policy: Policy | None) -> Gradients:
        """The loss of `batch` under `policy` (None: float32) and its gradients.

        Those of float16 are computed with a loss scale, as in training: the largest of _SCALES that does not overflow.
        Random numbers and buffers are as they were before.
        """
        for scale in _SCALES if policy is not None and policy.low_dtype == float16 else (1.0,):
            with unchanged(self.model):
                loss = self.forward(batch, policy)
                found = Gradients(float(loss), self.backward(loss, scale), scale)
            if math.isfinite(found.square()) or not math.isfinite(found.loss):
                break
        return found

    def forward(self, batch: Sequence[Any], policy: Policy | None) -> Tensor:
        """The loss of `batch` under `policy`, a float32 Tensor [] on the tape."""
        with nullcontext() if policy is None else autocast(policy=policy):
            loss = self.loss(self.model, *batch)
        return need_loss("debug.tune", loss).float()

    def backward(self, loss: Tensor, scale: float = 1.0) -> list[Any]:
        """The gradients of scale * loss as arrays, None where there is none."""
        seed = Tensor(np.full_like(loss.array, scale))
        found = grad(loss, self.parameters, seed, allow_unused=True) if self.parameters else ()
        return [None if gradient is None else gradient.array for gradient in found]

    def sensitivity(self, batches: Sequence[Any], policy: Policy) -> Sensitivity:
        """The sensitivity of the model to `policy` over `batches`."""
        return sensitivities(self, batches, [(None, policy)], lambda done: None)[0]


def sensitivities(
    evaluation: Evaluation,
    batches: Sequence[Any],
    pairs: Sequence[tuple[Policy | None, Policy]],
    show: Callable[[int], None],
) -> list[Sensitivity]:
    """The sensitivity to the second policy of each pair, compared with the first (None: float32).

    show(done) is called after each evaluation of a batch. Raises NonFiniteError if the loss or a gradient is not finite
    in float32.
    """
    sums = np.zeros((len(pairs), 2))
    for number, batch in enumerate(batches):
        wide = {reference: evaluation.gradients(batch, reference) for reference in {None, *dict(pairs)}}
        base = wide[None]
        if not math.isfinite(base.loss + base.square()):
            needs = f"a loss and gradients that are finite in float32, in batch {number}"
            got = "gradients that are not" if math.isfinite(base.loss) else f"a loss of {base.loss}"
            raise NonFiniteError("debug.tune", needs, got)
        for at, (reference, policy) in enumerate(pairs):
            sums[at] += wide[reference].differences(evaluation.gradients(batch, policy))
            show(number * len(pairs) + at + 1)
    return [Sensitivity(float(loss), math.sqrt(gradient)) for loss, gradient in sums / len(batches)]
