"""ScaleTag: the loss scale that a gradient is multiplied by.

A gradient of a scaled loss carries a tag. So clipping or stepping on scaled gradients raises, and so does using a sum
of gradients of different scales.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ampkit import backends
from ampkit.base.dtypes import Array, float64
from ampkit.base.errors import StateError

NO_RANK = 2**31 - 1


class ScaleTag:
    """The loss scale of a GradScaler between two of its updates.

    owner: the LossScale of the GradScaler. factor: what gradients with this tag are multiplied by, 0-d float32 on the
    device.
    nonfinite_rank: of gradients that were averaged over ranks, the first rank whose own were not all finite, int32 [1]
    on the device, NO_RANK if there is none; None for others.
    """

    __slots__ = ("factor", "nonfinite_rank", "owner")

    def __init__(self, owner: Any, factor: Array):
        self.owner, self.factor = owner, factor
        self.nonfinite_rank: Array | None = None


# The tag of a gradient that was zeroed: zero is correct at any scale, so the tag of the next gradient replaces it.
ZEROED = ScaleTag(None, None)
# The tag of a sum of gradients of different scales. That is an error only where the sum is used: the gradients that a
# generator's loss leaves in the discriminator are zeroed unread.
MIXED = ScaleTag(None, None)


def combine_tags(gradient: Array, held: ScaleTag | None, new: ScaleTag | None) -> ScaleTag | None:
    """The tag of `gradient`, whose tag is `held`, after a gradient with tag `new` is added to it.

    If both are tags of the same GradScaler, `gradient` is rescaled in place to the new scale. MIXED if one is scaled
    and the other is not, or if they belong to two GradScalers.
    """
    if held is ZEROED or new is held:
        return new
    if held is None or new is None or held.owner is not new.owner:
        return MIXED
    rescale(gradient, held, new)
    return new


def rescale(gradient: Array, old: ScaleTag, new: ScaleTag) -> None:
    """Multiply `gradient` in place by new.factor / old.factor; exact if both are powers of two."""
    with backends.device_guard(gradient):
        was, now = (backends.to_device_of(tag.factor, gradient) for tag in (old, new))
        gradient *= (now.astype(float64) / was).astype(gradient.dtype)


def count_scaled(where: str, gradients: Iterable[Any]) -> int:
    """The number of `gradients` (Tensors) that are scaled by a GradScaler. Raises StateError for a MIXED one."""
    tags = [gradient._scale_tag for gradient in gradients]
    if MIXED in tags:
        raise mixed_scales(where)
    return len(tags) - tags.count(None) - tags.count(ZEROED)


def mixed_scales(where: str) -> StateError:
    """The error for a sum of scaled and unscaled gradients, or of gradients scaled by two GradScalers."""
    cure = (
        "scale every loss of a step with the same scaler, call backward before scaler.unscale_, and "
        "scaler.update() and optimizer.zero_grad() after every step"
    )
    return StateError(where, "gradients that are all scaled by one GradScaler, or none", "a mixture", cure)
