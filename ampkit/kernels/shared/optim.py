"""The rules of optimizers.h by the Python function of an optimizer that each computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampkit import optim

from .headers import rules

RULES: dict[Callable[..., None], str] = {getattr(optim, name).update_elements: name for name in rules()}


def rule_of(step: Any) -> str | None:
    """The rule of a Step's optimizer, also of a subclass that computes its own scalars; None if kernels have none."""
    return RULES.get(step.rule.update_elements)
