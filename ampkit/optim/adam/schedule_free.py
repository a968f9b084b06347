"""AdamWScheduleFree: AdamW whose weights are averaged while it trains, in place of a schedule that falls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ampkit import backends
from ampkit.backends import Array
from ampkit.base.errors import ArgumentError, StateError
from ampkit.base.limits import Fraction, Limits, NotNegative, Probability, Whole
from ampkit.base.registry import register_optimizer
from ampkit.core.fp_errors import ignore_fp_errors

from ..argument_checks import LimitsByName, hyperparameters
from ..elementwise import Elementwise, Step
from ..flat.arena import Span, spans
from ..flat.memory import narrow, select_into
from ..flat.segment import Segment, mark_all_updated
from ..param_group import ParamGroup
from ..state import Entry

_COUNTS = ("k", "lr_max", "scheduled_lr", "weight_sum")


class _Weighting(NamedTuple):
    """What the next step of a group is to be: 0-d float64 arrays.

    k: its number. scheduled_lr: the learning rate, with warmup. lr_max: the largest so far. weight_sum: the weights of
    the average, summed up. share: the weight of this step in the average, as a share of weight_sum.
    """

    k: Array
    scheduled_lr: Array
    lr_max: Array
    weight_sum: Array
    share: Array


def _weighting(values: Mapping[str, Array], options: Mapping[str, Any]) -> _Weighting:
    count, warmup = values["k"] + 1, options["warmup_steps"]
    lr = values["lr"] * (np.minimum(1.0, count / warmup) if warmup else 1.0)
    largest = np.maximum(lr, values["lr_max"])
    weight = np.power(count, options["r"]) * np.power(largest, options["weight_lr_power"])
    total = values["weight_sum"] + weight
    any_weight = np.greater(total, 0)  # not while the learning rate is 0
    share = np.where(any_weight, weight / np.where(any_weight, total, 1.0), 0.0)
    return _Weighting(count, lr, largest, total, share)


def _count(group: ParamGroup, all_finite: Array | None) -> None:
    held = group.device
    with backends.device_guard(held["k"]):
        flag = None if all_finite is None else backends.to_device_of(all_finite, held["k"])
        for name, value in _weighting(held, group)._asdict().items():
            if name in held:
                select_into(held[name], value, flag)


@register_optimizer
class AdamWScheduleFree(Elementwise):
    """z <- z - lr (g / (sqrt(v / (1 - b2^t)) + eps) + weight_decay y); x <- (1 - c) x + c z; y = (1 - b1) z + b1 x.

    v <- b2 v + (1 - b2) g^2. x is the average of z that replaces a falling schedule: c is the weight of a step,
    k^r lr_max^weight_lr_power, as a share of the weights so far. Gradients are taken at y. The parameters are y in
    train mode, where every step happens, and x in eval mode: call `eval()` before the model is evaluated or saved, and
    `train()` before training goes on. Trainer, recipes and their checkpoints do so themselves.

    z begins at the parameters. t counts the real steps of each parameter, k those of its group; lr_max is the largest
    learning rate so far. maximize=True climbs; foreach changes nothing. Computed in float32, float64 for float64
    parameters; lr, c and b2^t in float64.
    warmup_steps: steps of linear rise to the learning rate. r: power of the step's number in its weight.
    weight_lr_power: power of the largest learning rate so far in it.
    stochastic_rounding=True stores no float32 master weights of 16-bit parameters (docs/numerics.md); x is then rounded
    to the nearest.
    Raises ArgumentError for options out of range, StateError for a step in eval mode.
    Defazio et al. 2024, arXiv:2405.15682, algorithm 1; the arguments are those of the authors' package `schedulefree`.
    """

    moments = ("z", "exp_avg_sq", "y")  # y: the parameters of train mode, while it is in eval mode
    device_keys = ("lr", "betas", *_COUNTS)
    stepped_keys = _COUNTS
    decoupled = True
    flags = Elementwise.flags | {"train_mode"}
    limits: ClassVar[LimitsByName] = {
        **Elementwise.limits,
        **dict.fromkeys(_COUNTS, Limits(ge=0)),
        "lr_max": Limits(ge=-1),  # where `schedulefree` begins
    }

    def __init__(
        self,
        params: Any,
        lr: NotNegative = 2.5e-3,
        betas: tuple[Fraction, Probability] = (0.9, 0.999),
        eps: NotNegative = 1e-8,
        weight_decay: NotNegative = 0,
        warmup_steps: Whole = 0,
        r: NotNegative = 0.0,
        weight_lr_power: NotNegative = 2.0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        stochastic_rounding: bool = False,
    ):
        options = hyperparameters(locals())
        super().__init__(params, {**options, **dict.fromkeys(_COUNTS, 0.0), "train_mode": True})

    # a step

    def present(self) -> list[Span]:
        if not all(group.get("train_mode", True) for group in self.param_groups):
            got, cure = "eval mode, where the parameters are their average", "call optimizer.train() before it"
            raise StateError("AdamWScheduleFree.step", "train mode", got, cure)
        return super().present()

    def needs_moment(self, group: ParamGroup, name: str) -> bool:
        return name != "y"

    @staticmethod
    def scalars(step: Step) -> Sequence[Any]:
        (first, second), next_step = step.betas, _weighting(step.values, step.options)
        lr, share = next_step.scheduled_lr, next_step.share
        pull = lr * (first * (1 - share) - 1)
        root, take = np.sqrt(step.bias_correction(second)), 1 - second
        fresh = np.where(np.equal(step.steps, 0), 1.0, 0.0)
        return lr, share, pull, root, take, step.options["eps"], step.options["weight_decay"], fresh

    @staticmethod
    def update_elements(p: Array, g: Array, moments: Sequence[Any], scalars: Sequence[Any]) -> None:
        (z, v, *_), (lr, share, pull, root, take, eps, decay, fresh) = moments, scalars
        z[...] = np.where(fresh == 1, p, z)
        v *= 1 - take
        v += g * g * take
        d = g / (np.sqrt(v) / root + eps) + p * decay
        p += (z - p) * share  # x and z of the new y, without x
        p += d * pull
        z -= d * lr

    def advance(self, present: list[Span], all_finite: Array | None) -> None:
        super().advance(present, all_finite)
        with ignore_fp_errors():
            for group in self.param_groups:
                _count(group, all_finite)

    # its two modes

    def train(self) -> None:
        """Make the parameters y, where gradients are taken; after `eval()` bit for bit those of before.

        An element that was changed in eval mode is taken as one of x, and y follows from it.
        """
        self._switch(True, _restore)

    def eval(self) -> None:
        """Make the parameters x, the average, which is evaluated and saved."""
        self._switch(False, _average)

    def _switch(self, mode: bool, move: Callable[[Span, Array], None]) -> None:
        if all(group["train_mode"] == mode for group in self.param_groups):
            return
        self.follow_parameters()
        for group in self.param_groups:
            if group["train_mode"] != mode:
                for span in spans(group.segments, of_equal_steps=True):
                    with ignore_fp_errors(), backends.device_guard(span.weights):
                        move(span, backends.to_device_of(group.device["betas"], span.weights)[0])
                group["train_mode"] = mode
        self._forget_y()

    def _forget_y(self) -> None:
        for group in self.param_groups:
            for arena in group.arenas if group["train_mode"] else ():
                arena.moments.pop("y", None)

    # states, also those of `schedulefree`, which count the steps of groups alone

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(_with_steps(state_dict))

    def _need_entries(self, where: str, entries: dict[int, dict[str, Any]]) -> dict[Segment, Entry]:
        checked = super()._need_entries(where, entries)
        for segment, (steps, arrays) in checked.items():
            if steps and "z" not in arrays and segment.stop > segment.start:
                raise ArgumentError(where, f"the whole state of {segment.describe()}", "one without z")
        return checked

    def _load(self, entries: dict[int, dict[str, Any]], checked: dict[Segment, Entry]) -> None:
        super()._load(entries, checked)
        self._forget_y()


def _average(span: Span, first: Array) -> None:
    """Keep y and make the parameters of a span x = y + (1 - 1 / b1) (z - y)."""
    kept, y = span.moment("y"), _weights(span)
    kept[...] = y
    _write(span, _mixed(span, y, 1 - 1 / first))


def _restore(span: Span, first: Array) -> None:
    """Make the parameters of a span y: that which was kept or, where x is not that of `_average`, from x."""
    x = _weights(span)
    y = _mixed(span, x, 1 - first)
    if "y" in span.arena.moments:
        kept = span.moment("y")
        average = _as_stored(span, _mixed(span, kept, 1 - 1 / first))
        y = np.where(np.equal(average, x), kept, y)
    _write(span, y)


def _mixed(span: Span, weights: Array, share: Array) -> Array:
    # weights + share (z - weights); the weights where there was no step, and so no z
    begun = np.greater(span.steps, 0)
    return np.where(begun, weights + (span.moment("z") - weights) * share.astype(weights.dtype), weights)


def _weights(span: Span) -> Array:
    """A copy of the weights of a span in the dtype of its moments."""
    for segment in span.segments:
        if segment.needs_refresh:
            segment.master_weights()
    return span.arena.backend.cast(span.weights, span.arena.dtype).copy()


def _as_stored(span: Span, values: Array) -> Array:
    backend, stored = span.arena.backend, span.weights.dtype
    return backend.cast(backend.cast(values, stored), span.arena.dtype)


def _write(span: Span, values: Array) -> None:
    weights = span.weights
    weights[...] = span.arena.backend.cast(values, weights.dtype)
    for copy in span.copies:
        narrow(weights, copy)
    mark_all_updated(span.segments)


def _with_steps(state_dict: Any) -> Any:
    """A state whose parameters have the steps of their group where they have none of their own."""
    try:
        counts = {number: group["k"] for group in state_dict["param_groups"] for number in group["params"]}
        entries = state_dict["state"].items()
        state = {number: {"step": counts[number], **entry} if entry else entry for number, entry in entries}
    except (TypeError, LookupError, AttributeError, ValueError):
        return state_dict  # which loading refuses
    return {**state_dict, "state": state}


def begin_training(optimizer: Any) -> None:
    """Bring an AdamWScheduleFree to train mode; any other optimizer has none."""
    if isinstance(optimizer, AdamWScheduleFree):
        optimizer.train()


def end_training(optimizer: Any) -> None:
    """Bring an AdamWScheduleFree to eval mode; any other optimizer has none."""
    if isinstance(optimizer, AdamWScheduleFree):
        optimizer.eval()


@contextmanager
def averaged(optimizer: Any) -> Iterator[bool]:
    """In the block an AdamWScheduleFree is in eval mode; no other optimizer changes. -> whether it was switched."""
    switches = isinstance(optimizer, AdamWScheduleFree) and any(g["train_mode"] for g in optimizer.param_groups)
    if switches:
        optimizer.eval()
    try:
        yield switches
    finally:
        if switches:
            optimizer.train()
