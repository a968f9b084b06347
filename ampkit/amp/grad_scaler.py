"""GradScaler: keeps small gradients from underflowing in 16 bits by scaling the loss, and skips steps that overflow.

An iteration is `scale` -> backward -> `step` -> `update`, top to bottom in this file. The loss scale, its counters and
found_inf live on the device. The host reads them in two places only: in the monitor that stops a training whose scale
collapses, and where the user asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import numpy as np

from .. import backends
from ..base.dtypes import Array, float64
from ..base.errors import DTypeError, StateError, switch
from ..base.html import facts
from ..core.autograd.scale_tag import ZEROED, ScaleTag, count_scaled, mixed_scales, rescale
from ..core.capture.recorder import uses
from ..core.fp_errors import ignore_fp_errors
from ..core.saved_state import need_keys
from ..core.tensor import Tensor, note_changes
from ..optim.flat.arena import Span, gradients_of
from ..optim.flat.memory import read_scalar
from ..optim.optimizer import Optimizer
from .found_inf import FoundInf, OptState, StepResult
from .loss_scale import LossScale, ScaleState
from .scale_monitor import ScaleMonitor
from .scaled_loss import scaled
from .scaler_checks import need_loss, no_gradients, refuse_arguments, scale_number

_ONCE = "call scaler.update() at the end of every iteration"


class GradScaler:
    """Dynamic loss scaling, PyTorch's interface.

    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(). A step whose gradients overflow is skipped,
    and with it what follows optimizer steps (schedules, averages); the scale backs off. After growth_interval steps
    without overflow it grows.

    device: where the scale lives; by default where the first loss is. init_scale, growth_factor (> 1), backoff_factor
    (between 0 and 1), growth_interval (>= 1). enabled=False passes everything through. min_scale, max_scale: bounds.
    hysteresis: the scale backs off from the overflow of this number in a row, counted from 1, on.
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
        # Since the last update, by a weak reference to the optimizer: that of one that is dropped counts, too.
        self._checks: dict[ref[Optimizer], FoundInf] = {}
        self._tag: ScaleTag | None = None  # of the present scale; None once it may have changed
        self.monitor = ScaleMonitor()

    # an iteration

    def scale(self, outputs: Any) -> Any:
        """`outputs` times the scale, in float32: a Tensor, or a list or tuple of them, nested or not.

        Raises DTypeError for anything else, StateError for a Tensor that is scaled already.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            need_loss(outputs)
            self._scale.on(backends.backend_of(outputs.array))
            uses(self)
            return scaled(outputs, self._present_tag())
        if isinstance(outputs, (list, tuple)):
            found = [self.scale(item) for item in outputs]
            return type(outputs)(*found) if hasattr(outputs, "_fields") else type(outputs)(found)
        raise DTypeError("scaler.scale", "a Tensor, or a list or tuple of Tensors", f"a {type(outputs).__name__}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of `optimizer` by the scale, in place, once per update: to clip or inspect them.

        Raises StateError if that was done, for gradients that this scaler did not scale, and out of order.
        """
        if not self._enabled:
            return
        check = self._check_of("unscale_", optimizer)
        if check.state is OptState.STEPPED:
            cure = "the order is backward, unscale_, step, update"
            raise StateError("unscale_() is being called after step().", cure=cure)
        present = optimizer.present()
        check = self._check_of_present(optimizer, present, check)
        if check.state is OptState.UNSCALED:
            line = "unscale_() has already been called on this optimizer since the last update()."
            raise StateError(line, cure=_ONCE)
        self._unscale(present, check)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> StepResult:
        """Unscale the gradients unless `unscale_` has, and step if all of them are finite.

        Gradients that were written after `unscale_` are checked again. Raises StateError for a closure, for a second
        step before `update`, for an optimizer without any gradient, and for gradients that this scaler did not scale.
        """
        if not self._enabled:
            if not callable(getattr(optimizer, "step", None)):
                raise DTypeError("scaler.step", "an optimizer", f"a {type(optimizer).__name__}")
            return StepResult(None, optimizer.step(*args, **kwargs))
        refuse_arguments(args, kwargs)
        check = self._check_of("step", optimizer)
        if optimizer.needs_closure:
            cure = "call optimizer.step(closure) without a scaler, in float32 or bfloat16"
            raise StateError("scaler.step", "an optimizer that needs no closure", type(optimizer).__name__, cure)
        if check.state is OptState.STEPPED:
            raise StateError("step() has already been called since the last update().", cure=_ONCE)
        present = optimizer.present()
        check = self._check_of_present(optimizer, present, check)
        if check.state is OptState.UNSCALED:
            self._check_again(present, check)
        else:
            self._unscale(present, check)
        if check.flag is None or not check.first_nonfinite:
            raise no_gradients(optimizer)
        value = step_if_finite(optimizer, present, check.flag)
        check.state = OptState.STEPPED
        return StepResult(check.flag, value)

    def update(self, new_scale: Any = None) -> None:
        """Grow the scale or back off, by found_inf of the iteration's steps, or set it to `new_scale`.

        Raises StateError if no step was checked, ArgumentError for a scale out of bounds, and ScaleCollapseError where
        training cannot go on: 50 overflows in a row, or one at min_scale. The parameters are unharmed then.
        """
        if not self._enabled:
            return
        state = self._need_state("update")
        uses(self)
        checks = [check for check in self._checks.values() if check.flag is not None]
        if new_scale is not None:
            self._scale.set(scale_number(new_scale))
        elif not checks:
            cure = "call scaler.step(optimizer) before scaler.update()"
            raise StateError("No inf checks were recorded prior to update.", cure=cure)
        rank = None if self._tag is None else self._tag.nonfinite_rank
        self._checks.clear()
        self._tag = None
        if new_scale is None:
            self._update_scale(state, checks, rank)

    # its parts

    def _present_tag(self) -> ScaleTag:
        assert self._scale.state is not None
        if self._tag is None:
            scale = self._scale.state.scale
            with backends.device_guard(scale):
                self._tag = ScaleTag(self._scale, scale.copy())
        return self._tag

    def _unscale(self, present: list[Span], check: FoundInf) -> None:
        """Divide the gradients of `present` by the scale, and check whether they are finite, in one pass."""
        state, gradients = self._scale.state, gradients_of(present)
        assert state is not None
        self._to_present_scale(gradients)
        with backends.device_guard(state.scale):
            inverse_scale = 1.0 / state.scale.astype(float64)
        check.check(present, inverse_scale)
        for gradient in gradients:
            gradient._scale_tag = None
        note_changes(gradients)
        if present:
            check.state = OptState.UNSCALED

    def _to_present_scale(self, gradients: list[Tensor]) -> None:
        """Rescale gradients from before the scale changed. StateError for gradients that this scaler did not scale."""
        tags = [gradient._scale_tag for gradient in gradients]
        if self._tag is not None and tags.count(self._tag) == len(tags):
            return
        count_scaled("scaler.step or unscale_", gradients)
        foreign = sum(1 for tag in tags if tag is None or (tag.owner is not self._scale and tag is not ZEROED))
        if foreign:
            got = f"{foreign} of {len(tags)} that are not"
            cure = "call scaler.scale(loss).backward() for every loss, and optimizer.zero_grad() after every step"
            raise StateError("scaler.step or unscale_", "gradients scaled by this GradScaler", got, cure)
        with ignore_fp_errors():
            for gradient, tag in zip(gradients, tags, strict=True):
                if tag is not None and tag is not ZEROED and tag is not self._tag:
                    rescale(gradient.array, tag, self._present_tag())

    def _check_again(self, present: list[Span], check: FoundInf) -> None:
        """Check gradients that were unscaled before, and may have been written to since."""
        where = "scaler.step after unscale_"
        if count_scaled(where, gradients_of(present)):
            raise mixed_scales(where)
        check.check(present, None)

    def _update_scale(self, state: ScaleState, checks: list[FoundInf], nonfinite_rank: Array | None) -> None:
        with backends.device_guard(state.scale):
            found_inf, *others = (backends.to_device_of(check.flag, state.scale) for check in checks)
            for other in others:
                found_inf = np.logical_or(found_inf, other)
            before = state.scale.copy()
        self._scale.update(found_inf)
        limits = self._scale.min_scale, self._scale.hysteresis
        self.monitor.record(checks, found_inf, before, state.scale, *limits, nonfinite_rank)

    def read_by_steps(self, reads: Any) -> Iterator[tuple[Callable[[Any], Any], Any]]:
        """Where a step reads the rule of the scale on the host, for recorded ones (see core/capture/host_reads.py)."""
        yield vars(self).get, "_enabled"
        yield vars(self).get, "_scale"
        for name in ("growth_factor", "backoff_factor", "growth_interval", "hysteresis", "min_scale", "max_scale"):
            yield vars(self._scale).get, name
        yield vars(self._scale).get, "state"

    def _need_state(self, where: str) -> ScaleState:
        if self._scale.state is None:
            line = (
                f"Attempted {where} but _scale is None.  This may indicate your script did not use "
                "scaler.scale(loss or outputs) earlier in the iteration."
            )
            raise StateError(line, cure="call scaler.scale(loss).backward() first")
        return self._scale.state

    def _check_of(self, where: str, optimizer: Optimizer) -> FoundInf:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(f"scaler.{where}", "an ampkit optimizer", f"a {type(optimizer).__name__}")
        if optimizer.differentiable:
            cure = "divide the gradients by scaler.get_scale(), and call optimizer.step()"
            raise StateError(f"scaler.{where}", "an optimizer without differentiable=True", "one with it", cure)
        self._need_state(where)
        key = ref(optimizer)
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = FoundInf()
        return check

    def _check_of_present(self, optimizer: Optimizer, present: list[Span], check: FoundInf) -> FoundInf:
        # After an error between unscale_ and step the gradients were dropped, and new ones, scaled, took their place.
        if check.state is OptState.UNSCALED:
            tags = [gradient._scale_tag for gradient in gradients_of(present)]
            if tags and all(tag is not None and tag.owner is self._scale for tag in tags):
                check = self._checks[ref(optimizer)] = FoundInf()
        return check

    def __repr__(self) -> str:
        if not self._enabled:
            return "GradScaler(enabled=False)"
        words = {"scale": self.get_scale(), "growth_factor": self._scale.growth_factor}
        words |= {"backoff_factor": self._scale.backoff_factor, "growth_interval": self._scale.growth_interval}
        return f"GradScaler({', '.join(f'{name}={value:g}' for name, value in words.items())})"

    def _repr_html_(self) -> str:
        if not self._enabled:
            return facts("GradScaler, disabled", {})
        rule = self._scale
        scale, finite, _ = rule.values()
        grows = f"times {rule.growth_factor:g} after {rule.growth_interval} finite steps in a row; {finite} so far"
        backs_off = f"times {rule.backoff_factor:g} after an overflow"
        return facts("GradScaler", {"scale": f"{scale:g}", "grows": grows, "backs off": backs_off})

    # settings and state

    def is_enabled(self) -> bool:
        """Whether it is enabled."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale, 1.0 if disabled; waits for the device."""
        return self._scale.values()[0] if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by when it grows."""
        return self._scale.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set it; more than 1."""
        self._scale.set_growth_factor(new_factor)

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after an overflow."""
        return self._scale.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set it; between 0 and 1."""
        self._scale.set_backoff_factor(new_factor)

    def get_growth_interval(self) -> int:
        """How many steps in a row without overflow make the scale grow."""
        return self._scale.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set it; at least 1. If as many have passed already, the next one makes the scale grow."""
        self._scale.set_growth_interval(new_interval)

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's keys, and the counter of hysteresis; empty if disabled. Call it after `update`."""
        return self._scale.state_dict() if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, ampkit's or PyTorch's; a scale beyond min_scale or max_scale is clamped.

        Raises, before anything changes, StateError for an empty dict, ArgumentError for one that lacks keys or is out
        of range. A disabled scaler accepts any dict and ignores it.
        """
        if not self._enabled:
            need_keys("GradScaler.load_state_dict", state_dict, ())
            return
        self._scale.load_state_dict(state_dict)
        self._tag = None

    def __getstate__(self) -> dict[str, Any]:
        if self._checks:
            line = (
                "A GradScaler instance may only be pickled at the beginning of an iteration, "
                "or at the end after scaler.update()."
            )
            raise StateError(line, cure="call scaler.update() first")
        return {**self.__dict__, "_tag": None}


def skip_unless_finite(scaler: GradScaler, optimizer: Optimizer, loss: Array) -> None:
    """Have the next `scaler.step(optimizer)` skip if `loss` [] is not finite, even if all gradients are."""
    if scaler.is_enabled():
        check = scaler._check_of("step", optimizer)
        if check.state is OptState.UNSCALED:
            check = scaler._check_of_present(optimizer, optimizer.present(), check)
        with backends.device_guard(loss):
            bad = np.logical_not(np.isfinite(loss))
            check.flag = bad if check.flag is None else np.logical_or(backends.to_device_of(check.flag, loss), bad)


def step_if_finite(optimizer: Optimizer, present: list[Span], found_inf: Array) -> Any:
    """Step with the spans `present` unless found_inf; the device decides, the host does not wait."""
    own_step = type(optimizer).step is not Optimizer.step or "step" in vars(optimizer)
    if not own_step and not optimizer.has_step_hooks():
        with backends.device_guard(found_inf):
            all_finite = np.logical_not(found_inf)
        return optimizer.advance(present, all_finite)
    if read_scalar(found_inf):  # a step of its own takes no flag
        optimizer.calls += 1
        return None
    return optimizer.step()
