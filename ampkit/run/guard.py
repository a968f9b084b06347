"""Guard: keeps a run's weights from gradients that are not finite, and says afterwards where those came from.

In float16 the GradScaler skips such steps and goes on; where no smaller scale is a cure, a replay says why. In float32
and bfloat16 they are a fault: the device skips the step, and every later one, until the host has read that it did and
ends the run. So the weights are still those of before, and the batch can be run again with every op looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from .. import backends, nn
from ..amp.found_inf import FoundInf
from ..amp.grad_scaler import step_if_finite
from ..amp.scale_monitor import ScaleMonitor
from ..base.dtypes import bool_
from ..base.errors import NonFiniteError
from ..core import random
from ..core.autograd.grad_mode import no_grad
from ..core.capture.recorder import uses
from ..core.tensor import Tensor
from ..debug import Finding
from ..debug.detect import explained
from ..debug.repeat.unchanged import Copies, copies, put_back, unchanged
from ..distributed.pipelining.model_stage import whole_model

Batch = tuple[Tensor, ...]
OVERFLOWS = 10  # in a row, which divide the scale by 1024, before a replay tells whether a smaller one can help


class Guard:
    """Steps an optimizer if the loss and all gradients are finite, and never again after they were not.

    failed: whether they were not, a bool [] on the device.
    """

    def __init__(self, device: str):
        self.failed = backends.get(device).zeros((), bool_)

    def step(self, optimizer: Any, loss: Tensor, norm: Tensor | None) -> Tensor:
        """Step `optimizer`, whose gradients have the norm `norm`, if it was computed. -> whether it was skipped []."""
        uses(self)
        present = optimizer.present()
        with backends.device_guard(self.failed):
            values = [loss.array] if norm is None else [loss.array, norm.array]
            for value in values:
                finite = np.isfinite(backends.to_device_of(value, self.failed))
                np.logical_or(self.failed, np.logical_not(finite), out=self.failed)
        if norm is None:
            found = FoundInf()
            found.check(present, None)
            if found.flag is not None:
                with backends.device_guard(self.failed):
                    np.logical_or(self.failed, backends.to_device_of(found.flag, self.failed), out=self.failed)
        step_if_finite(optimizer, present, self.failed)
        return Tensor(self.failed.copy())


class Explanation(NamedTuple):
    """What a replay has found: an account to go on with after the first line of an error, and the cure, or nothing."""

    account: str
    cure: str

    @property
    def text(self) -> str:
        """The account and the cure."""
        return self.account + (f"\n  cure: {self.cure}" if self.cure else "")


class Replay:
    """Runs steps and evaluations of a run again, with every op looked at, to say where infinity or NaN came from.

    It keeps the batches, the random state and the buffers of the steps that the host has not checked yet. run: a
    `loop.Run`. A replay is at a loss scale of 1 and updates nothing: buffers and the random state are afterwards as
    they were. explained: whether one has found something, or has looked at a loss that is not finite. silent: whether
    none takes place, as in a run that tries out a cure.
    """

    def __init__(self, run: Any):
        self._reference = ref(run)  # weak: the run holds its replay
        self.explained = self.silent = False
        self._buffers = list(run.model.buffers())
        self._steps: dict[int, tuple[Sequence[Batch], tuple[int, int], Copies]] = {}

    @property
    def _run(self) -> Any:
        run = self._reference()
        assert run is not None
        return run

    def keep(self, number: int, batches: Sequence[Batch]) -> None:
        """Remember step `number`, which begins now."""
        self._steps[number] = batches, random.get_rng_state(), copies(self._buffers)

    def undo(self, number: int) -> None:
        """Give the buffers, running statistics among them, the values that they had before step `number`."""
        put_back(self._steps[number][2])

    def checked(self, number: int) -> None:
        """Forget the steps before `number`, which the host has looked at."""
        for old in [step for step in self._steps if step < number]:
            del self._steps[old]

    def step(self, number: int) -> Explanation:
        """What was not finite in step `number`."""
        if number not in self._steps:
            return Explanation("", "")
        batches, state, _ = self._steps[number]

        def backward() -> None:
            for batch, draws in zip(batches, self._run.draws(len(batches)), strict=True):
                with draws, self._run.region:
                    loss = self._run.loss_of(self._run.model, *batch)
                    mean = loss / len(batches) if len(batches) > 1 else loss
                mean.backward()

        return self._in_words(lambda: self._explain(self._run.model, state, backward))

    def skipped(self, number: int, loss: float, monitor: ScaleMonitor) -> str:
        """What the user should know of step `number`, which a GradScaler has skipped: "" if all is as it should be.

        loss: of the step. monitor: of the scaler, after it. Explained, once, are a loss that is not finite, and
        gradients that are not where the scale has fallen far, or below 1, and they are not at 1 either.
        """
        finite = math.isfinite(loss)
        if self.explained or self.silent or (finite and monitor.skips % OVERFLOWS and monitor.history[-1][1] >= 1):
            return ""
        why = self.step(number)
        if not finite:
            return f"step {number} is skipped: its loss is {loss}{why.text}"
        self.explained = why.cure != ""  # else the scale is too large, and nothing else
        what = f"step {number} is skipped, and a smaller loss scale does not help: its gradients are not finite at 1"
        return f"{what}{why.text}" if self.explained else ""

    def evaluation(self, model: nn.Module, batches: Iterable[Batch]) -> Explanation:
        """What was not finite in the evaluation of `model` over `batches`."""

        def forward(batch: Batch) -> Tensor:
            with no_grad(), self._run.region:
                loss: Tensor = self._run.loss_of(model, *batch)
                return loss

        training = model.training
        model.eval()
        try:
            found = (self._explain(model, random.get_rng_state(), partial(forward, batch)) for batch in batches)
            with whole_model(model):  # ranks may have other numbers of batches
                return self._in_words(lambda: next((finding for finding in found if finding is not None), None))
        finally:
            model.train(training)

    def _in_words(self, find: Callable[[], Finding | None]) -> Explanation:
        if self.silent:
            return Explanation("", "")
        self.explained = True
        why = self._explanation(find)
        found = self._run.ranks.gathered(why)  # of each rank's part of the data
        rank = next((rank for rank, each in enumerate(found) if each.cure), 0)
        return found[rank] if rank == 0 else Explanation(f"\non rank {rank}:{found[rank].account}", found[rank].cure)

    @staticmethod
    def _explanation(find: Callable[[], Finding | None]) -> Explanation:
        try:
            finding = find()
        except Exception as error:  # such as too little memory: the run's own error matters more
            return Explanation(f"; running it again to see why failed: {type(error).__name__}", "")
        if finding is None:
            return Explanation("; run again at a loss scale of 1, the same data were finite", "")
        return Explanation(f"\n{finding.account}", finding.advice)

    def _explain(self, model: nn.Module, state: tuple[int, int], step: Callable[[], Any]) -> Finding | None:
        self._run.optimizer.zero_grad()
        try:
            with unchanged(model), whole_model(model):
                random.set_rng_state(state)
                return explained(step, training=self._run.training)
        finally:
            self._run.optimizer.zero_grad()


def not_finite(where: str, needs: str, got: str, why: Explanation, cure: str) -> NonFiniteError:
    """The error of a run that cannot go on; cure: what the recipe can do where the values have grown too large."""
    untried = "learning rate" in why.cure and "optimizer.lr=" not in why.cure
    cures = f"{why.cure}; in this recipe: {cure}" if untried else why.cure or cure
    return NonFiniteError(f"{where}: needs {needs}, got {got}{why.account}", cure=cures)
