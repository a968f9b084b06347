"""`torch.jit`: decorators that change nothing, since Python code runs directly."""

from __future__ import annotations

import builtins
from contextlib import nullcontext
from typing import Any, Final, get_origin

from .... import fork, wait
from ....base.missing_names import INSTEAD_OF_SCRIPTED
from ....core.autograd.tasks import Future
from ....nn import Module
from ...refused import refused

__all__ = [
    "Final", "Future", "ScriptFunction", "ScriptModule", "TracerWarning", "_copy_to_script_wrapper", "_drop",
    "_isinstance", "_overload", "_overload_method",
    "_script_if_tracing", "annotate", "export", "fork", "freeze", "ignore", "interface", "is_scripting", "is_tracing",
    "isinstance", "load", "optimize_for_inference", "optimized_execution", "save", "script", "script_if_tracing",
    "script_method", "set_fusion_strategy", "trace", "trace_module", "unused", "wait",
]  # fmt: skip

load, save = (refused(f"torch.jit.{name}", INSTEAD_OF_SCRIPTED) for name in ("load", "save"))


class ScriptModule(Module):
    """A base of models of others; no other module is one."""


class ScriptFunction:
    """The class of no function."""


def script(obj: Any = None, *args: Any, **options: Any) -> Any:
    """`obj` as it is."""
    return obj


export = unused = interface = script_method = trace = trace_module = freeze = optimize_for_inference = script
script_if_tracing = _script_if_tracing = _overload = _overload_method = _drop = _copy_to_script_wrapper = script


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


class TracerWarning(Warning):
    """What PyTorch warns of as it traces; for filters of warnings."""


def _isinstance(obj: Any, target_type: Any) -> bool:
    """Whether `obj` is of the type, of its origin where it is a generic one."""
    return builtins.isinstance(obj, get_origin(target_type) or target_type)


isinstance = _isinstance


def optimized_execution(should_optimize: bool) -> Any:
    """A context that changes nothing."""
    return nullcontext()


def set_fusion_strategy(strategy: Any) -> list[Any]:
    """Does nothing; returns the former setting, none."""
    return []
