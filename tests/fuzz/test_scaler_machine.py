"""Compare random sequences of GradScaler calls with a reference model: states, weights and errors must be equal.

Longer: `HYPOTHESIS_PROFILE=long pytest tests/fuzz/test_scaler_machine.py`.
"""

from __future__ import annotations

import math
import os
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ampkit import AmpkitError, GradScaler, Tensor, optim
from ampkit.nn import Parameter
from fuzz.scaler import PLAIN, SKIPS, Model, Optimizer, ParameterModel, Refused

LR = 0.25
at = st.integers(0, 1)
finite = st.sampled_from([0.0, 0.5, 1.0, -2.0, 4.0])
bad = st.sampled_from([math.inf, -math.inf, math.nan])


class ScalerMachine(RuleBasedStateMachine):
    """A scaler and two optimizers, with one and two parameters."""

    @initialize(
        scale=st.sampled_from([1.0, 2.0**10, 2.0**16]),
        growth=st.sampled_from([2.0, 4.0]),
        backoff=st.sampled_from([0.5, 0.25]),
        interval=st.integers(1, 4),
        enabled=st.sampled_from([True] * 9 + [False]),
        low=st.sampled_from([1.0, 2.0**-60]),
        high=st.sampled_from([2.0**16, 2.0**24]),
        hysteresis=st.integers(1, 3),
    )
    def begin(self, scale, growth, backoff, interval, enabled, low, high, hysteresis):
        self.scaler = GradScaler(
            None, scale, growth, backoff, interval, enabled, min_scale=low, max_scale=high, hysteresis=hysteresis
        )
        self.parameters = [[Parameter(np.ones(2, np.float32)) for _ in range(count)] for count in (1, 2)]
        self.optimizers = [optim.SGD(held, lr=LR) for held in self.parameters]
        held = [Optimizer([ParameterModel([1.0, 1.0]) for _ in one], LR) for one in self.parameters]
        self.model = Model(scale, growth, backoff, interval, enabled, low, high, hysteresis, held)
        self.saved: list = []

    def both(self, ours, theirs):
        """Call both; return both results, or None if both raise the same error."""
        try:
            wanted = theirs()
        except Refused as refused:
            self.refused(ours, refused.error, refused.line)
            return None
        return ours(), wanted

    def refused(self, ours, error, line):
        """Assert that the scaler raises this error with this message."""
        with pytest.raises(AmpkitError) as caught:
            ours()
        assert type(caught.value).__name__ == error
        assert line in str(caught.value)

    def numbers(self, data, count):
        every = finite if not self.model.enabled else st.one_of(finite, finite, finite, bad)
        return data.draw(st.lists(every, min_size=count, max_size=count))

    @rule(at=at, which=at, data=st.data(), scaled=st.sampled_from([True] * 5 + [False]))
    def backward(self, at, which, data, scaled):
        which = min(which, len(self.parameters[at]) - 1)
        more = self.numbers(data, 2)
        loss = (self.parameters[at][which] * Tensor(np.array(more, np.float32))).sum()
        (self.scaler.scale(loss) if scaled else loss).backward()
        self.model.backward(at, which, more, scaled)

    @rule(at=at)
    def unscale(self, at):
        self.both(lambda: self.scaler.unscale_(self.optimizers[at]), lambda: self.model.unscale(at))

    @rule(at=at)
    def step(self, at):
        found = self.both(lambda: self.scaler.step(self.optimizers[at]), lambda: self.model.step(at))
        if found is not None:
            assert found[0].skipped == found[1]

    @rule(data=st.data(), times=st.integers(1, 4), look=st.booleans())
    def train(self, data, times, look):
        """A training loop, so that calls come in order and the scale changes; look: call `unscale_` before `step`."""
        self.zero_grad(0), self.zero_grad(1)
        for _ in range(times):
            for at in (0, 1)[: data.draw(st.integers(1, 2))]:
                self.backward(at, at, data, True)
                if look:
                    self.unscale(at)
                    self.clip(at, 0.5)
                self.step(at)
            self.update(None)
            self.zero_grad(0), self.zero_grad(1)

    @rule(at=at, data=st.data())
    def write_after_unscaling(self, at, data):
        """Make a gradient infinite after it was unscaled."""
        self.zero_grad(at)
        self.backward(at, 0, data, True)
        self.unscale(at)
        self.plant(at, 0, math.inf)
        self.step(at)

    @rule(new_scale=st.sampled_from([None, None, None, 4.0, 2.0**14, 2.0**30]))
    def update(self, new_scale):
        self.both(lambda: self.scaler.update(new_scale), lambda: self.model.update(new_scale))

    @rule(at=at, most=st.sampled_from([0.5, 2.0]))
    def clip(self, at, most):
        def clipped():
            optim.clip_grad_value_(self.parameters[at], most)

        self.both(clipped, lambda: self.model.clip(at, most))

    @rule(at=at)
    def zero_grad(self, at):
        self.optimizers[at].zero_grad()
        for one in self.model.optimizers[at].held:
            one.gradient, one.kind = None, PLAIN

    @rule(at=at, which=at, value=bad)
    def plant(self, at, which, value):
        """Overwrite a gradient by hand, before or after `unscale_`."""
        which = min(which, len(self.parameters[at]) - 1)
        held = self.model.optimizers[at].held[which]
        if held.gradient is not None and self.model.enabled:
            self.parameters[at][which].grad.fill_(value)
            held.gradient = [value, value]

    @rule(at=at)
    def plain_step(self, at):
        """A step without the scaler, which refuses scaled gradients."""
        model = self.model.optimizers[at]
        if all(one.finite() for one in model.present()):

            def step():
                model.refuse("scaled", "mixed")
                model.step()

            self.both(self.optimizers[at].step, step)

    @rule(interval=st.integers(1, 4))
    def set_growth_interval(self, interval):
        self.scaler.set_growth_interval(interval)
        self.model.interval = interval

    @rule()
    def save(self):
        self.saved.append(self.scaler.state_dict())

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load(self, data):
        state = data.draw(st.sampled_from([*self.saved, {}]))
        self.both(lambda: self.scaler.load_state_dict(state), lambda: self.model.load(state))

    @rule()
    def pickled(self):
        """Pickle the scaler, allowed between iterations only; continue with the copy if no gradient is pending."""

        def theirs():
            if self.model.asked:
                raise Refused("StateError", "may only be pickled at the beginning of an iteration")

        found = self.both(lambda: pickle.loads(pickle.dumps(self.scaler)), theirs)
        if found is not None and not any(one.present() for one in self.model.optimizers):
            self.scaler = found[0]
            self.model.begun = False

    @invariant()
    def the_scale_is_the_models(self):
        assert self.scaler.get_scale() == (self.model.scale if self.model.enabled else 1.0)
        assert self.scaler.is_enabled() == self.model.enabled
        assert self.scaler.state_dict() == self.model.state()

    @invariant()
    def the_weights_are_the_models(self):
        for parameters, model in zip(self.parameters, self.model.optimizers, strict=True):
            for parameter, held in zip(parameters, model.held, strict=True):
                assert parameter.tolist() == held.values
                assert np.isfinite(parameter.numpy(force=True)).all()

    @invariant()
    def plain_gradients_are_the_models(self):
        for parameters, model in zip(self.parameters, self.model.optimizers, strict=True):
            for parameter, held in zip(parameters, model.held, strict=True):
                assert (parameter.grad is None) == (held.gradient is None)
                if held.kind == PLAIN and held.gradient is not None:
                    assert np.array_equal(parameter.grad.tolist(), held.gradient, equal_nan=True)


assert SKIPS == 50

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
ScalerMachine.TestCase.settings = settings(
    max_examples=1000 if LONG else 25,
    stateful_step_count=50 if LONG else 15,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.cpu
class TestScaler(ScalerMachine.TestCase):
    """25 sequences of 15 calls; with the profile "long" 1,000 of 50."""
