"""What a training script of others is to `scripts.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Script(NamedTuple):
    """A script of a checkout with its arguments, its data, and how many losses are compared.

    stand_ins: which of tests/peers/stand_ins take the place of libraries. label: what tells its name from others'.
    """

    source: str
    path: str
    arguments: str = ""
    data: Callable[[Path], None] | None = None
    before: str = ""
    losses: int = 8
    tolerance: float = 1e-4
    label: str = ""
    stand_ins: str = "gymnasium matplotlib six.py tiktoken.py torchvision"
    environment: Mapping[str, str] = {"STAND_IN_IMAGES": "32"}

    @property
    def name(self) -> str:
        model = self.arguments.partition("--model ")[2].split()
        return " ".join([self.source, self.path.removesuffix(".py"), *model[:1], self.label]).rstrip()
