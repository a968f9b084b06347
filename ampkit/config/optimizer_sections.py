"""The [optimizer] and [schedule] sections.

stochastic_rounding: of an optimizer, in place of float32 masters, for parameters that are themselves in 16 bits.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .field_types import AboveOne, AtLeastOne, Betas, Count, NotNegative, Number, Part, Positive, Section, Share, Whole


class SGD(Section):
    """`optim.SGD`."""

    name: Literal["sgd"]
    lr: Positive = 1e-3
    momentum: Share = 0.0
    nesterov: bool = False
    weight_decay: NotNegative = 0.0
    stochastic_rounding: bool = False


class Adam(Section):
    """`optim.Adam` or `optim.RAdam`: weight_decay joins the gradient."""

    name: Literal["adam", "radam"]
    lr: Positive = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    stochastic_rounding: bool = False


class AdamW(Section):
    """`optim.AdamW`: weight_decay shrinks the weight."""

    name: Literal["adamw"] = "adamw"
    lr: Positive = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.01
    stochastic_rounding: bool = False


class Adamax(Section):
    """`optim.Adamax`: the largest gradient of late for the root mean square."""

    name: Literal["adamax"]
    lr: Positive = 2e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    stochastic_rounding: bool = False


class NAdam(Section):
    """`optim.NAdam`: Adam that looks ahead along its momentum."""

    name: Literal["nadam"]
    lr: Positive = 2e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    momentum_decay: NotNegative = 4e-3
    decoupled_weight_decay: bool = False
    stochastic_rounding: bool = False


class Adadelta(Section):
    """`optim.Adadelta`: the gradient in units of the weights."""

    name: Literal["adadelta"]
    lr: Positive = 1.0
    rho: Annotated[float, Field(ge=0, le=1)] = 0.9
    eps: Positive = 1e-6
    weight_decay: NotNegative = 0.0
    stochastic_rounding: bool = False


class Adagrad(Section):
    """`optim.Adagrad`: step sizes fall with all gradients so far."""

    name: Literal["adagrad"]
    lr: Positive = 1e-2
    lr_decay: NotNegative = 0.0
    eps: Positive = 1e-10
    weight_decay: NotNegative = 0.0
    initial_accumulator_value: NotNegative = 0.0
    stochastic_rounding: bool = False


class RMSprop(Section):
    """`optim.RMSprop`: the gradient over its running root mean square."""

    name: Literal["rmsprop"]
    lr: Positive = 1e-2
    alpha: Share = 0.99
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    momentum: Share = 0.0
    centered: bool = False
    stochastic_rounding: bool = False


class Rprop(Section):
    """`optim.Rprop`: a step size for each weight; for whole batches."""

    name: Literal["rprop"]
    lr: Positive = 1e-2
    etas: Annotated[tuple[Part, AboveOne], Field(strict=False)] = (0.5, 1.2)
    step_sizes: Annotated[tuple[NotNegative, Positive], Field(strict=False)] = (1e-6, 50.0)
    stochastic_rounding: bool = False


class ASGD(Section):
    """`optim.ASGD`: ever smaller steps; from step `t0` on its state holds the average of the weights."""

    name: Literal["asgd"]
    lr: Positive = 1e-2
    lambd: NotNegative = 1e-4
    alpha: NotNegative = 0.75
    t0: Number = 1e6
    weight_decay: NotNegative = 0.0
    stochastic_rounding: bool = False


class Lion(Section):
    """`optim.Lion`: the sign of a momentum; lr 3 to 10 times smaller than AdamW's."""

    name: Literal["lion"]
    lr: Positive = 1e-4
    betas: Betas = (0.9, 0.99)
    weight_decay: NotNegative = 0.0
    stochastic_rounding: bool = False


class LAMB(Section):
    """`optim.LAMB`: for large batches, a step in proportion to each parameter's norm."""

    name: Literal["lamb"]
    lr: Positive = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: Positive = 1e-6
    weight_decay: NotNegative = 0.01
    stochastic_rounding: bool = False


class Adafactor(Section):
    """`optim.Adafactor`: second moments as a row and a column."""

    name: Literal["adafactor"]
    lr: Positive = 1e-2
    beta2_decay: Annotated[Number, Field(le=0)] = -0.8
    d: AtLeastOne = 1.0
    weight_decay: NotNegative = 0.0
    stochastic_rounding: bool = False


class Constant(Section):
    """The learning rate as it is, after `warmup` steps of linear rise."""

    name: Literal["constant"] = "constant"
    warmup: Whole = 0


class Cosine(Section):
    """Down to `eta_min` along half a cosine, after `warmup` steps of linear rise."""

    name: Literal["cosine"]
    warmup: Whole = 0
    eta_min: NotNegative = 0.0


class Step(Section):
    """Times `gamma` every `step_size` steps, after `warmup` steps of linear rise."""

    name: Literal["step"]
    warmup: Whole = 0
    step_size: Count
    gamma: Positive = 0.1


class Linear(Section):
    """Straight down to `end_factor` of the learning rate, after `warmup` steps of linear rise."""

    name: Literal["linear"]
    warmup: Whole = 0
    end_factor: Annotated[float, Field(ge=0, le=1)] = 0.0


class OneCycle(Section):
    """`OneCycleLR`: up from lr / div_factor over a share `pct_start` of the run, then down along a cosine."""

    name: Literal["onecycle"]
    pct_start: Part = 0.3
    div_factor: Positive = 25.0
    final_div_factor: Positive = 1e4
