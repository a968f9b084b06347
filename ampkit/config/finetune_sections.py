"""The [finetune] and [lora] sections: what of a model is trained, and how fast."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..base.limits import Count, Limits, Positive, Probability
from .field_types import Section

Share = Annotated[float, Limits(gt=0, le=1)]


class Finetune(Section):
    """What of a model is trained, and at which learning rate; see docs/finetuning.md.

    freeze: paths of modules or parameters that are not trained, with all below; `*` stands for any one part of a path;
    their batch norms stay in eval mode. layer_decay: the learning rate of a layer over that of the next; the top has
    optimizer.lr. lr_factors: factors of the learning rate, by the path of a module; the last pattern that matches
    counts.
    """

    freeze: list[str] = Field(default=[])
    layer_decay: Share = 1.0
    lr_factors: dict[str, Positive] = Field(default_factory=dict)


class Lora(Section):
    """Low-rank adaptation: the weights are frozen, and a product of two small matrices beside each is trained.

    r: rank of the products; unset, there are none. lora_alpha: a product counts times lora_alpha / r. lora_dropout:
    the probability of a zero in the input of these products. target_modules: the modules to adapt, by path or by the
    end of it; "all-linear": every Linear but the output layer. modules_to_save: modules that are trained whole, as a
    new head. use_rslora: divide lora_alpha by the root of r.
    """

    r: Count | None = None
    lora_alpha: Positive = 8.0
    lora_dropout: Probability = 0.0
    target_modules: list[str] = Field(default=["all-linear"])
    modules_to_save: list[str] = Field(default=[])
    use_rslora: bool = False
