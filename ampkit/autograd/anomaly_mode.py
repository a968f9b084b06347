"""PyTorch's anomaly detection: every backward says where a NaN came from (see ampkit.debug.detect_nonfinite)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from ..base.errors import switch

__all__ = ["detect_anomaly", "set_detect_anomaly"]

# Starts the detection, and returns what ends it: registered by ampkit.debug, which builds on all of this package.
detectors: list[Callable[[], Callable[[], None]]] = []


class _Anomaly:
    """Whether anomalies are detected in this process, and what ends it."""

    on = False
    ends: tuple[Callable[[], None], ...] = ()

    def turn(self, on: bool) -> None:
        """Start or end the detection, unless it is as it should be."""
        if on and not self.on:
            self.ends = tuple([start() for start in detectors])
        elif self.on and not on:
            for end in self.ends:
                end()
            self.ends = ()
        self.on = on


_anomaly = _Anomaly()


class set_detect_anomaly:
    """From now on raise NonFiniteError for infinity and NaN that reach a loss or a gradient; as a block, only there.

    mode: on or off. check_nan=False checks nothing. Gradients that overflow because of a GradScaler's scale, which
    skips that step, raise nothing, and neither do infinities that come to nothing. See ampkit.debug.detect_nonfinite
    for what the error says and what it costs. Holds for all threads.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        mode = switch("set_detect_anomaly", "mode", mode)
        check_nan = switch("set_detect_anomaly", "check_nan", check_nan)
        self._before = _anomaly.on
        _anomaly.turn(mode and check_nan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        _anomaly.turn(self._before)


class detect_anomaly:
    """Within the block, raise NonFiniteError for infinity and NaN that reach a loss or a gradient.

    See `set_detect_anomaly`.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check = switch("detect_anomaly", "check_nan", check_nan)

    def __enter__(self) -> Self:
        self._before = _anomaly.on
        _anomaly.turn(self._check)
        return self

    def __exit__(self, *error: object) -> None:
        _anomaly.turn(self._before)
