"""GradScaler: keeps small gradients alive in 16 bits by scaling the loss, and skips the steps that overflow.

The scale, its counters and the verdict on a step live on the device; nothing here reads them from the host except the
guard that stops a training whose scale collapses, and questions that the user asks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..backends import Array
from ..base.dtypes import float64
from ..base.errors import ArgumentError, DTypeError, StateError, switch
from ..core.autograd.scale_tag import ZEROED, ScaleTag, count_scaled, mixed_scales, rescale
from ..core.fp_errors import ignore_fp_errors
from ..core.saved_state import need_keys
from ..core.tensor import Tensor, uses
from ..optim.argument_checks import refuse_scaled
from ..optim.flat.memory import look
from ..optim.flat.segment import Slot
from ..optim.optimizer import Optimizer
from ..optim.options import plain
from .found_inf import Guard, Stage, StepResult, Verdict
from .loss_scale import LossScale, State
from .scaled_loss import need_loss, scaled

_ONCE = "call scaler.update() at the end of every iteration"


class GradScaler:
    """Dynamic loss scaling, PyTorch's interface.

    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(). A step whose gradients overflow is skipped,
    as is everything that follows real steps, and the scale backs off; after growth_interval good steps it grows.

    device: where the scale lives; by default where the first loss is. init_scale, growth_factor (> 1), backoff_factor
    (between 0 and 1), growth_interval (>= 1). enabled=False passes everything through. min_scale, max_scale: bounds.
    hysteresis: the overflow in a row, counted from 1, from which on the scale backs off.
    Raises ArgumentError for values out of range, DeviceError for a device that this machine lacks.
    Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; hysteresis as in Megatron-LM.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float | None = None,
        max_scale: float | None = None,
        hysteresis: int = 1,
    ):
        self._enabled = switch("GradScaler", "enabled", enabled)
        if device is not None and enabled:
            backends.get(device)
        rule = (growth_factor, backoff_factor, growth_interval)
        self._scale = LossScale(init_scale, *rule, min_scale, max_scale, hysteresis)
        self._verdicts: dict[Optimizer, Verdict] = {}
        self._tag: ScaleTag | None = None  # of the scale at present; None once it may have moved
        self.guard = Guard()

    # the iteration

    def scale(self, outputs: Any) -> Any:
        """`outputs` times the scale, in float32: a Tensor, or a list or tuple of them, nested or not.

        Raises DTypeError for anything else, StateError for a Tensor that is scaled already.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return self._scaled(outputs)
        if isinstance(outputs, (list, tuple)):
            made = [self.scale(item) for item in outputs]
            return type(outputs)(*made) if hasattr(outputs, "_fields") else type(outputs)(made)
        raise DTypeError("scaler.scale", "a Tensor, or a list or tuple of Tensors", f"a {type(outputs).__name__}")

    def _scaled(self, loss: Tensor) -> Tensor:
        need_loss(loss)
        self._scale.on(backends.backend_of(loss.array))
        uses(self)
        return scaled(loss, self._present())

    def _present(self) -> ScaleTag:
        assert self._scale.state is not None
        if self._tag is None:
            scale = self._scale.state.scale
            with backends.device_guard(scale):
                self._tag = ScaleTag(self, scale.copy())
        return self._tag

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by the scale, in place, once per update: to clip or look at them.

        Raises StateError if that was done, for gradients that this scaler did not scale, and out of order.
        """
        if not self._enabled:
            return
        verdict = self._verdict("unscale_", optimizer)
        if verdict.stage is Stage.UNSCALED:
            line = "unscale_() has already been called on this optimizer since the last update()."
            raise StateError(line, help=_ONCE)
        if verdict.stage is Stage.STEPPED:
            cure = "the order is backward, unscale_, step, update"
            raise StateError("unscale_() is being called after step().", help=cure)
        self._divide(optimizer, verdict)

    def _divide(self, optimizer: Optimizer, verdict: Verdict) -> list[Slot]:
        present, state = optimizer.present(), self._need_state("unscale_")
        self._bring_up(present)
        with backends.device_guard(state.scale):
            inverse = 1.0 / state.scale.astype(float64)
        verdict.check(present, lambda run: backends.to_device_of(inverse, run.gradient).astype(run.block.dtype))
        for slot in present:
            gradient = slot.parameter._grad
            assert gradient is not None
            gradient.tag = None
            gradient.changed()
        if present:
            verdict.stage = Stage.UNSCALED
        return present

    def _bring_up(self, present: list[Slot]) -> None:
        # To the scale at present, whichever this scaler had when their loss was scaled.
        held = [(g, g.tag) for slot in present if (g := slot.parameter._grad) is not None]
        count_scaled("scaler.step or unscale_", [gradient for gradient, _ in held])
        strange = sum(1 for _, tag in held if tag is None or (tag.owner is not self and tag is not ZEROED))
        if strange:
            got = f"{strange} of {len(held)} that are not"
            cure = "call scaler.scale(loss).backward() for every loss, and optimizer.zero_grad() after every step"
            raise StateError("scaler.step or unscale_", "gradients scaled by this GradScaler", got, cure)
        with ignore_fp_errors():
            for gradient, tag in held:
                if tag is not None and tag is not ZEROED and tag is not self._tag:
                    rescale(gradient.array, tag, self._present())

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> StepResult:
        """Unscale the gradients unless `unscale_` has, and step where all of them are finite.

        Gradients that were written after `unscale_` are checked again. Raises StateError for a closure, for a second
        step before `update`, for an optimizer without any gradient, and for gradients that this scaler did not scale.
        """
        if not self._enabled:
            return StepResult(None, optimizer.step(*args, **kwargs))
        _refuse(args, kwargs)
        verdict = self._verdict("step", optimizer)
        if optimizer.needs_closure:
            cure = "call optimizer.step(closure) without a scaler, in float32 or bfloat16"
            raise StateError("scaler.step", "an optimizer that needs no closure", type(optimizer).__name__, cure)
        if verdict.stage is Stage.STEPPED:
            raise StateError("step() has already been called since the last update().", help=_ONCE)
        again = verdict.stage is Stage.UNSCALED
        present = self._check_again(optimizer, verdict) if again else self._divide(optimizer, verdict)
        if verdict.overflow is None:
            raise _no_gradients(optimizer)
        result = StepResult(verdict.overflow, self._advance(optimizer, present, verdict.overflow))
        verdict.stage = Stage.STEPPED
        return result

    def _check_again(self, optimizer: Optimizer, verdict: Verdict) -> list[Slot]:
        present = optimizer.present()
        try:
            refuse_scaled("scaler.step", [slot.parameter for slot in present], "")
        except StateError:
            raise mixed_scales("scaler.step after unscale_") from None
        verdict.check(present, None)
        return present

    def _advance(self, optimizer: Optimizer, present: list[Slot], overflow: Array) -> Any:
        if type(optimizer).step is Optimizer.step and "step" not in vars(optimizer):
            with backends.device_guard(overflow):
                go = np.logical_not(overflow)
            return optimizer.advance(present, go)
        return None if look(overflow) else optimizer.step()  # a step of its own cannot be told on the device

    def update(self, new_scale: Any = None) -> None:
        """Move the scale after the steps of an iteration, or set it to `new_scale`.

        Raises StateError if no step was checked, ArgumentError for a scale out of bounds, and ScaleCollapseError where
        training cannot go on: 50 overflows in a row, or one at min_scale. The parameters are unharmed then.
        """
        if not self._enabled:
            return
        state = self._need_state("update")
        uses(self)
        verdicts = [v for v in self._verdicts.values() if v.overflow is not None]
        if new_scale is not None:
            self._scale.set(_one(new_scale))
        elif not verdicts:
            cure = "call scaler.step(optimizer) before scaler.update()"
            raise StateError("No inf checks were recorded prior to update.", help=cure)
        self._verdicts.clear()
        self._tag = None
        if new_scale is None:
            self._move(state, verdicts)

    def _move(self, state: State, verdicts: list[Verdict]) -> None:
        with backends.device_guard(state.scale):
            found = [backends.to_device_of(verdict.overflow, state.scale) for verdict in verdicts]
            overflow = found[0]
            for other in found[1:]:
                overflow = np.logical_or(overflow, other)
            before = state.scale.copy()
        self._scale.move(overflow)
        self.guard.count(verdicts, overflow, before, state.scale, self._scale.low, self._scale.hysteresis)

    # what it needs

    def _need_state(self, where: str) -> State:
        if self._scale.state is None:
            line = (
                f"Attempted {where} but _scale is None.  This may indicate your script did not use "
                "scaler.scale(loss or outputs) earlier in the iteration."
            )
            raise StateError(line, help="call scaler.scale(loss).backward() first")
        return self._scale.state

    def _verdict(self, where: str, optimizer: Optimizer) -> Verdict:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(f"scaler.{where}", "an ampkit optimizer", f"a {type(optimizer).__name__}")
        self._need_state(where)
        verdict = self._verdicts.get(optimizer)
        if verdict is None or (verdict.stage is Stage.UNSCALED and self._scaled_anew(optimizer)):
            verdict = self._verdicts[optimizer] = Verdict()
        return verdict

    def _scaled_anew(self, optimizer: Optimizer) -> bool:
        # An error between unscale_ and step cut the iteration short, and its gradients were dropped.
        gradients = [slot.parameter._grad for slot in optimizer.present()]
        return bool(gradients) and all(g is not None and g.tag is not None and g.tag.owner is self for g in gradients)

    # questions and settings

    def is_enabled(self) -> bool:
        """Whether it scales at all."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale, 1.0 if disabled; waits for the device."""
        return self._scale.values()[0] if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by when it grows."""
        return self._scale.growth

    def set_growth_factor(self, new_factor: float) -> None:
        """Set it; more than 1."""
        self._scale.set_growth(new_factor)

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after an overflow."""
        return self._scale.backoff

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set it; between 0 and 1."""
        self._scale.set_backoff(new_factor)

    def get_growth_interval(self) -> int:
        """How many good steps in a row make the scale grow."""
        return self._scale.interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set it; at least 1. If as many good steps have passed already, the next one makes the scale grow."""
        self._scale.set_interval(new_interval)

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's keys, and the count of hysteresis; empty if disabled. Take it after `update`."""
        return self._scale.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, ours or PyTorch's; a scale beyond min_scale or max_scale is moved there.

        Raises, before anything changes, StateError for an empty dict, ArgumentError for one that lacks keys or is out
        of range. Disabled, it takes any dict and keeps nothing of it.
        """
        if not self._enabled:
            need_keys("GradScaler.load_state_dict", state_dict, ())
            return
        self._scale.load_state_dict(state_dict)
        self._tag = None

    def __getstate__(self) -> dict[str, Any]:
        if self._verdicts:
            line = (
                "A GradScaler instance may only be pickled at the beginning of an iteration, "
                "or at the end after scaler.update()."
            )
            raise StateError(line, help="call scaler.update() first")
        return {**self.__dict__, "_tag": None}


def _refuse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = [item for item in (*args, *kwargs.values()) if item is not None]
    if any(callable(item) for item in given):
        cure = "compute the loss and call backward before scaler.step(optimizer)"
        raise StateError("Closure use is not currently supported if GradScaler is enabled.", help=cure)
    if given:
        raise ArgumentError("scaler.step", "an optimizer alone", f"{len(given)} arguments more")


def _one(value: Any) -> Any:
    if isinstance(value, Tensor) and (value.numel() != 1 or value.requires_grad):
        raise ArgumentError("scaler.update", "a scale of one element that requires no grad", repr(value))
    return value.item() if isinstance(value, Tensor) else plain(value)


def _no_gradients(optimizer: Optimizer) -> StateError:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    frozen = sum(1 for p in parameters if not p.requires_grad)
    cure = (
        f"none of its {len(parameters)} parameters has a gradient, and {frozen} of them require none: "
        "was backward called since zero_grad, does the loss depend on them, or was it detached?"
    )
    return StateError("No inf checks were recorded for this optimizer.", help=cure)
