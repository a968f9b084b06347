"""`torch.jit`: decorators that change nothing, since Python code runs directly."""

from __future__ import annotations

from typing import Any, Final

from ....nn import Module
from ...refused import refused

__all__ = [
    "Final", "ScriptModule", "annotate", "export", "freeze", "ignore", "interface", "is_scripting", "is_tracing",
    "load", "optimize_for_inference", "save", "script", "script_method", "trace", "trace_module", "unused",
]  # fmt: skip

_WEIGHTS = "save the weights: torch.save(model.state_dict(), path)"
ScriptModule = Module
load, save = refused("torch.jit.load", _WEIGHTS), refused("torch.jit.save", _WEIGHTS)


def script(obj: Any = None, *args: Any, **options: Any) -> Any:
    """`obj` as it is."""
    return obj


export = unused = interface = script_method = trace = trace_module = freeze = optimize_for_inference = script


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value as it is."""
    return the_value


def ignore(drop: Any = False, **options: Any) -> Any:
    """The function as it is; with an argument, a decorator that changes nothing."""
    return drop if callable(drop) else lambda function: function


def is_scripting() -> bool:
    """False."""
    return False


is_tracing = is_scripting
