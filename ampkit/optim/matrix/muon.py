"""Muon: momentum whose update of a matrix is made orthogonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from ampkit.backends import Array
from ampkit.base import dtypes
from ampkit.base.dtypes import float64
from ampkit.base.errors import ArgumentError, check_choice
from ampkit.base.limits import Count, Limits, NotNegative, Number, Probability
from ampkit.base.registry import register_optimizer

from ..adam import AdamW
from ..argument_checks import group_options, hyperparameters, is_number, need_number
from ..elementwise import Step
from ..elementwise import update as update_elements
from ..flat.arena import Span
from ..flat.memory import narrow, select_into
from ..flat.moments import StateDtype, store, values_of
from ..flat.segment import Segment
from ..optimizer import Optimizer
from ..param_group import ParamGroup
from .hidden import hidden_groups
from .orthogonal import newton_schulz

Iterated = Literal["float32", "float16", "bfloat16"]
AdjustLr = Literal["original", "match_rms_adamw"]
# a, b, c of the iteration, tuned for a steep rise from 0: Jordan et al. 2024, as PyTorch takes them
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MOST_STEPS = 99  # of the iteration; PyTorch's limit


class Slot(NamedTuple):
    """A parameter's arrays in an update, as matrices: master weights, gradient, momentum; its flat 16-bit copies."""

    master: Array
    gradient: Array
    momentum: Array
    copies: list[Array]


def muon_update(slot: Slot, lr: Array, momentum: Array, all_finite: Array | None, options: ParamGroup) -> None:
    """Update one matrix, its momentum and its copies, in place; the plain array code that defines Muon."""
    p, g, held, kind = slot.master, slot.gradient, slot.momentum, slot.master.dtype
    push = momentum.astype(kind)
    g = -g if options["maximize"] else g
    new = held + (g - held) * (1 - push)
    update = g + (new - g) * push if options["nesterov"] else new
    iterated = float64 if kind == float64 else dtypes.parse(options["ns_dtype"])
    constants = options["ns_coefficients"], options["ns_steps"], options["eps"]
    direction = newton_schulz(update, *constants, iterated)
    rate = (lr * lr_factor(options["adjust_lr_fn"], p.shape)).astype(kind)
    select_into(held, new, all_finite)
    select_into(p, p * (1 - lr * options["weight_decay"]).astype(kind) - direction * rate, all_finite)
    for copy in slot.copies:
        narrow(p.reshape(-1), copy)


def lr_factor(adjust_lr_fn: str | None, shape: Sequence[int]) -> float:
    """What the learning rate of a matrix [m, n] is multiplied with; see Muon."""
    if adjust_lr_fn == "match_rms_adamw":
        return 0.2 * math.sqrt(max(shape))
    return math.sqrt(max(1.0, shape[0] / shape[1]))


class Muon(Optimizer):
    """b <- momentum b + (1 - momentum) g; p <- (1 - lr weight_decay) p - lr f O, O about the orthogonal factor of b.

    O is that of momentum b + (1 - momentum) g with nesterov; see `newton_schulz`. For hidden matrices: embeddings, the
    output layer, biases and gains are better trained by AdamW (MuonWithAuxAdam does both). A parameter of more than two
    dimensions, as a convolution's, counts as the matrix [out, all others]; PyTorch takes matrices alone.
    f: with adjust_lr_fn "original", or None, sqrt(max(1, m / n)) for a matrix [m, n]; with "match_rms_adamw" 0.2
    sqrt(max(m, n)), for which the learning rate and weight decay of AdamW fit. maximize=True climbs.
    lr: learning rate, before f. nesterov: look ahead along the momentum. ns_coefficients: those of the iteration's
    polynomial. ns_steps: iterations for the orthogonal factor, up to 99. eps: the least norm that the momentum is
    divided by. adjust_lr_fn: how the learning rate follows from a matrix's shape. ns_dtype: in which the iteration
    runs; PyTorch's is bfloat16, whose singular values were off by up to 0.04 (docs/optimizers.md).
    Computed in float32, float64 for float64 parameters, whose iteration is in float64 too.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md).
    state_dtype: of the moments, "float32", "bfloat16", "float8" or "int8" (docs/optimizers.md).
    Raises ArgumentError for options out of range, and for a parameter of fewer than two dimensions.
    Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; "match_rms_adamw": Liu et al. 2025, arXiv:2502.16982.
    """

    moments: tuple[str, ...] = ("momentum_buffer",)
    device_keys: tuple[str, ...] = ("lr", "momentum")
    counts_steps = False

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-3,
        weight_decay: NotNegative = 0.1,
        momentum: Probability = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[Number, Number, Number] = COEFFICIENTS,
        eps: NotNegative = 1e-7,
        ns_steps: Count = 5,
        adjust_lr_fn: AdjustLr | None = None,
        *,
        maximize: bool = False,
        ns_dtype: Iterated = "float32",
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        super().__init__(params, hyperparameters(locals()))

    def check_options(self, options: dict[str, Any]) -> None:
        where, given = type(self).__name__, options.get("ns_coefficients", COEFFICIENTS)
        super().check_options({key: value for key, value in options.items() if key != "ns_coefficients"})
        if not isinstance(given, (tuple, list)) or len(given) != 3 or not all(map(is_number, given)):
            raise ArgumentError(where, "three ns_coefficients, numbers", repr(given))
        steps = options.get("ns_steps", 1)
        need_number(where, "ns_steps", steps, Limits(ge=1, le=MOST_STEPS))
        if not isinstance(steps, int):
            raise ArgumentError(where, "ns_steps as a whole number", repr(steps))
        check_choice(where, "adjust_lr_fn", options.get("adjust_lr_fn"), "original", "match_rms_adamw", None)
        check_choice(where, "ns_dtype", options.get("ns_dtype", "float32"), "float32", "float16", "bfloat16")

    def _need_group(self, group: Any, taken: Any) -> tuple[list[Any], dict[str, Any]]:
        parameters, options = super()._need_group(group, taken)
        for number, parameter in enumerate(parameters):
            if is_orthogonal(options) and parameter.ndim < 2:
                what = f"{parameter._dotted_name or f'parameter {number}'!r} {list(parameter.shape)}"
                cure = "give biases and gains to AdamW: optim.MuonWithAuxAdam takes both (see optim.hidden_matrices)"
                raise ArgumentError(type(self).__name__, "matrices", what, cure)
        return parameters, options

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        master = span.master
        for segment in span.segments:
            if segment.stop > segment.start:
                flat = master[segment.start - span.start : segment.stop - span.start]
                self._update_matrix(segment, flat, group, all_finite)

    def _update_matrix(self, segment: Segment, master: Array, group: ParamGroup, all_finite: Array | None) -> None:
        stored, arena = segment.moment("momentum_buffer"), segment.arena
        is_wide = stored.dtype == arena.dtype
        momentum = stored if is_wide else values_of(stored, arena.dtype)
        slot = self._slot(segment, master, momentum)
        muon_update(slot, group.device["lr"], group.device["momentum"], all_finite, group)
        if not is_wide:
            assert arena.random_bits is not None
            store(stored, momentum, arena.random_bits.later(1).skip(segment.start), all_finite)

    def _slot(self, segment: Segment, master: Array, momentum: Array) -> Slot:
        arena, shape = segment.arena, (segment.shape[0], -1)
        copies = [flat[segment.start : segment.stop] for flat in arena.copies.values()]
        return Slot(master.reshape(shape), segment.gradient.reshape(shape), momentum.reshape(shape), copies)


def is_orthogonal(group: Any) -> bool:
    """Whether a group of MuonWithAuxAdam is Muon's."""
    return bool(group.get("use_muon", True))


class MuonWithAuxAdam(Muon):
    """Muon for the groups with use_muon=True, AdamW for those with use_muon=False: one optimizer for a whole model.

        hidden, others = optim.hidden_matrices(model)
        optimizer = optim.MuonWithAuxAdam([
            {"params": hidden, "use_muon": True, "lr": 0.02}, {"params": others, "use_muon": False, "lr": 1e-3}
        ])

    The options of Muon are the defaults of its groups; see Muon. adam_lr: learning rate of AdamW's, None for lr, which
    fits with adjust_lr_fn="match_rms_adamw". betas: decay rates of AdamW's running means. adam_eps: added to AdamW's
    denominator.
    Raises ArgumentError for options out of range, for a group that does not say use_muon, and as Muon.
    The names and the division are those of Jordan et al. 2024, https://github.com/KellerJordan/Muon.
    """

    moments = ("momentum_buffer", "exp_avg", "exp_avg_sq")
    non_negative = ("exp_avg_sq",)
    device_keys = ("lr", "momentum", "betas")
    counts_steps = True
    flags = Muon.flags | {"use_muon"}

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 1e-3,
        weight_decay: NotNegative = 0.1,
        momentum: Probability = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[Number, Number, Number] = COEFFICIENTS,
        eps: NotNegative = 1e-7,
        ns_steps: Count = 5,
        adjust_lr_fn: AdjustLr | None = None,
        *,
        adam_lr: NotNegative | None = None,
        betas: tuple[Probability, Probability] = (0.9, 0.95),
        adam_eps: NotNegative = 1e-8,
        maximize: bool = False,
        ns_dtype: Iterated = "float32",
        stochastic_rounding: bool = False,
        state_dtype: StateDtype = "float32",
    ):
        options = hyperparameters(locals() | {"params": None})
        groups = group_options(params, "MuonWithAuxAdam")
        given = {key: options.pop(key) for key in ("adam_lr", "adam_eps")}
        for key, value in given.items():
            if value is not None or key == "adam_eps":
                need_number("MuonWithAuxAdam", key, value, Limits(ge=0))
        adam = {"lr": lr if given["adam_lr"] is None else given["adam_lr"], "eps": given["adam_eps"]}
        # Muon's constructor would only check what Optimizer's does.
        super(Muon, self).__init__([self._with(adam, group) for group in groups], options)

    @staticmethod
    def _with(adam: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        if "use_muon" not in group:
            cure = 'give dicts with "params" and "use_muon"; optim.hidden_matrices(model) divides the parameters'
            raise ArgumentError("MuonWithAuxAdam", "groups that say use_muon", f"one with {', '.join(group)}", cure)
        return dict(group) if group["use_muon"] else {**adam, **group}

    def needs_moment(self, group: ParamGroup, name: str) -> bool:
        """Whether an update of `group` reads the moment `name`."""
        return (name == "momentum_buffer") is is_orthogonal(group)

    def update(self, group: ParamGroup, span: Span, all_finite: Array | None) -> None:
        if is_orthogonal(group):
            super().update(group, span, all_finite)
        else:
            adamw_update(group, span, all_finite)


def adamw_update(group: ParamGroup, span: Span, all_finite: Array | None) -> None:
    """One update of AdamW with the options of `group`."""
    step = Step(AdamW, group, group.device, span.steps, all_finite, 0.0, span.random_bits)
    moments = [span.moment("exp_avg"), span.moment("exp_avg_sq"), None]
    update_elements(span.weights, span.gradient, moments, span.copies, step)


register_optimizer(MuonWithAuxAdam, name="muon", groups=hidden_groups)
