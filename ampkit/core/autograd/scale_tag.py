"""ScaleTag: which loss scale a gradient carries.

A gradient that a GradScaler's loss scale multiplied is tagged with it, so that nobody takes it for the gradient itself,
and so that a sum of different scales is refused where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ampkit import backends
from ampkit.backends import Array
from ampkit.base.dtypes import float64
from ampkit.base.errors import StateError


class ScaleTag:
    """A GradScaler's loss scale between two of its updates.

    owner: the GradScaler. factor: what gradients that carry this tag were multiplied by, 0-d float32 on the device.
    """

    __slots__ = ("factor", "owner")

    def __init__(self, owner: Any, factor: Array):
        self.owner, self.factor = owner, factor


# The tag of a gradient that was set to zero: zero is right at any scale, so the next gradient's tag takes its place.
ZEROED = ScaleTag(None, None)
# The tag of a sum of different scales. It need not be a mistake: what a generator's loss leaves in the discriminator is
# forgotten before anybody reads it.
MIXED = ScaleTag(None, None)


def combine_tags(gradient: Array, held: ScaleTag | None, new: ScaleTag | None) -> ScaleTag | None:
    """The tag of `gradient`, which carries `held`, once something that carries `new` is to be added to it.

    A scale that the same GradScaler had before is exchanged for the new one, in place. MIXED for scaled and unscaled,
    and for two GradScalers.
    """
    if held is ZEROED or new is held:
        return new
    if held is None or new is None or held.owner is not new.owner:
        return MIXED
    rescale(gradient, held, new)
    return new


def rescale(gradient: Array, old: ScaleTag, new: ScaleTag) -> None:
    """Exchange the scale that `gradient` carries, in place; exact where both are powers of two."""
    with backends.device_guard(gradient):
        was, now = (backends.to_device_of(tag.factor, gradient) for tag in (old, new))
        gradient *= (now.astype(float64) / was).astype(gradient.dtype)


def count_scaled(where: str, gradients: Iterable[Any]) -> int:
    """How many of `gradients`, Tensors, are scaled by a GradScaler. Raises StateError for one that is MIXED."""
    tags = [gradient.tag for gradient in gradients]
    if MIXED in tags:
        raise mixed_scales(where)
    return sum(tag is not None and tag is not ZEROED for tag in tags)


def mixed_scales(where: str) -> StateError:
    """The error for a gradient that is scaled meeting one that is not, or that is scaled by another GradScaler."""
    cure = (
        "scale every loss of a step with the same scaler, call backward before scaler.unscale_, and "
        "scaler.update() and optimizer.zero_grad() after every step"
    )
    return StateError(where, "gradients that are all scaled by one GradScaler, or none", "a mixture", cure)
