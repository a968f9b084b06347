"""A stand-in for gymnasium: a pole on a cart, by explicit Euler steps, the same in every process."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class _Pole:
    spec = SimpleNamespace(reward_threshold=30.0)

    def __init__(self):
        self.draw = np.random.default_rng(0)

    def reset(self, seed=None):
        self.draw = np.random.default_rng(seed) if seed is not None else self.draw
        self.state = self.draw.uniform(-0.05, 0.05, 4)
        return self.state.astype(np.float32), {}

    def step(self, action):
        x, v, angle, omega = self.state
        push = 10.0 if action == 1 else -10.0
        turn = 14.7 * np.sin(angle) - 1.4 * push
        self.state = np.array([x + 0.02 * v, v + 0.18 * push, angle + 0.02 * omega, omega + 0.02 * turn])
        return self.state.astype(np.float32), 1.0, bool(abs(angle) > 0.21), False, {}

    def render(self):
        return None

    def close(self):
        pass


def make(name, render_mode=None):
    """The pole, whatever the name."""
    return _Pole()
