"""The state in which a pass over the tape runs, backward or forward: that of the tensors, not of the caller."""

from __future__ import annotations

from typing import Any

from ampkit import backends

from .. import fp_errors, policy
from .grad_mode import RECORDING, _recording


def enter_pass(traced: bool) -> tuple[Any, ...]:
    """Turn autocast and floating-point warnings off, and recording on or off. Returns the token for `leave_pass`.

    A pass makes the device of each gradient the current one, and `leave_pass` the caller's again. Two functions, since
    every backward calls them and a context manager takes longer.
    """
    device = None if backends.gpus is None else backends.gpus.use(None)
    return policy.enter(None), fp_errors.push_ignore(), _recording.replace(RECORDING[traced]), device


def leave_pass(token: tuple[Any, ...]) -> None:
    """Restore what `enter_pass` changed."""
    region, errors, recording, device = token
    _recording.restore(recording)
    fp_errors.pop_ignore(errors)
    policy.leave(region)
    if device is not None:
        backends.gpus.leave(device)
