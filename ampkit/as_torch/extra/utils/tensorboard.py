"""`torch.utils.tensorboard`: ampkit's SummaryWriter, which leaves out what it does not write."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from ....utils import tensorboard

__all__ = ["SummaryWriter"]


class SummaryWriter(tensorboard.SummaryWriter):
    """`ampkit.utils.tensorboard.SummaryWriter`.

    Graphs, embeddings, meshes, curves, sounds and videos are left out with a warning: no number of a run depends on
    what it logs.
    """

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("add_"):
            return functools.partial(_left_out, name)
        raise AttributeError(f"'SummaryWriter' object has no attribute {name!r}", name=name, obj=self)


def _left_out(name: str, *args: Any, **kwargs: Any) -> None:
    warnings.warn(f"SummaryWriter.{name}: ampkit writes no event for it", UserWarning, stacklevel=2)
