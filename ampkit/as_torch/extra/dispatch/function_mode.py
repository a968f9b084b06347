"""`torch.overrides.TorchFunctionMode`: a base for classes whose instances would take over functions in a block."""

from __future__ import annotations

from typing import Any

from ....base.errors import StateError

__all__ = ["TorchFunctionMode"]


class TorchFunctionMode:
    """Can be subclassed and made; entering one raises StateError, since functions of ampkit are not taken over."""

    def __enter__(self) -> Any:
        cure = "ampkit.observe.watch(callback) sees every op; ampkit.debug.FlopCounter counts their work"
        raise StateError(type(self).__name__, "functions that a mode can take over", "ampkit's", cure)

    def __exit__(self, *error: object) -> None:
        """Nothing was taken over."""
