"""Whether only deterministic algorithms run: PyTorch's setting, for the libraries that have faster or smaller ones."""

from __future__ import annotations

from ..base.errors import ArgumentError

_only = True


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Choose whether equal calls must give equal bits, from the next one on.

    True, the default: only algorithms that always sum in the same order run. False: on an NVIDIA GPU cuDNN may also
    take others for convolutions and for the backward pass of attention; docs/numerics.md has what either costs. Nothing
    changes on a CPU. warn_only, which in PyTorch is about ops without a deterministic algorithm, changes nothing: every
    op here has one. Raises ArgumentError for what is no bool.
    """
    global _only
    for name, value in (("mode", mode), ("warn_only", warn_only)):
        if not isinstance(value, bool):
            raise ArgumentError("use_deterministic_algorithms", f"{name} True or False", repr(value))
    _only = mode


def are_deterministic_algorithms_enabled() -> bool:
    """Whether only deterministic algorithms run."""
    return _only
